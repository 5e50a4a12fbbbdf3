"""Choose what to time on a live engine: the shapes that fit it.

Those at the ends of the grid come first, so that a profile can be made wherever the time is up; all others in the
order in which each costs least.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from weft_core.cost import Link
from weft_planner.profiling.engine_client import EngineFacts
from weft_planner.profiling.measurements import GridCell

_KV_SHARE = 0.9
"""Fuller, the engine would throw cached prefixes out between the timings that need them."""
_SHORT = 4096
"""Longer histories are not tried beside a batch, in tokens."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The lengths to combine, in tokens; ``contexts`` are per sequence, ``chunks`` ride along with a decode batch."""

    histories: tuple[int, ...] = (0, 1024, 4096, 16384)
    increments: tuple[int, ...] = (32, 128, 512, 1024, 2048, 4096, 8192)
    batches: tuple[int, ...] = (1, 4, 16, 64, 128)
    contexts: tuple[int, ...] = (256, 1024, 4096, 16384)
    chunks: tuple[int, ...] = (128, 512, 2048)
    transfers: tuple[int, ...] = (256, 1024, 4096, 16384)


@dataclass(frozen=True, slots=True)
class TransferEnds:
    """The degrees of the engine that is profiled and of the one that reads its KV (0: none), and their link.

    With ``back`` the way back is timed, too.
    """

    degree: int
    decode_degree: int = 0
    link: Link = "inter-node"
    back: bool = False


@dataclass(frozen=True, slots=True)
class GridPlan:
    """The cells to time, and what was left out because the engine cannot hold it."""

    cells: tuple[GridCell, ...]
    left_out: tuple[str, ...] = field(default=())


def plan_cells(grid: Grid, facts: EngineFacts, ends: TransferEnds, *, steps: int, most_batch: int) -> GridPlan:
    """Return the cells that fit the engine: histories in whole KV blocks, decode prompts one token beyond one.

    Such a prompt, sent again, computes its last token only, so that all sequences of a batch begin to decode at once.
    """
    block = facts.block_size
    histories = sorted({_rounded(h, block) for h in grid.histories})
    cells = [
        GridCell("prefill", ends.degree, history=h, increment=max(2, i))
        for h, i in product(histories, sorted(set(grid.increments)))
    ]
    cells += [
        GridCell("step", ends.degree, batch=batch, context=batch * (prompt_of(each, block) + steps // 2))
        for batch, each in product(sorted(set(grid.batches)), sorted(set(grid.contexts)))
    ]
    fitting = [cell for cell in cells if not _too_large(cell, facts, steps=steps, most_batch=most_batch)]
    cells += _mixed(grid, fitting)
    if ends.decode_degree:
        for tokens in sorted({prompt_of(t, block) for t in grid.transfers}):
            there = GridCell("transfer", ends.degree, tokens=tokens, destination=ends.decode_degree, link=ends.link)
            cells.append(there)
            if ends.back:
                cells.append(replace(there, degree=ends.decode_degree, destination=ends.degree, way="back"))
    kept, left_out = [], []
    for cell in dict.fromkeys(cells):
        reason = _too_large(cell, facts, steps=steps, most_batch=most_batch)
        if reason:
            left_out.append(f"{cell}: {reason}")
        else:
            kept.append(cell)
    kept.sort(key=_order)
    first = sorted(set(_ends(kept)), key=_order)
    return GridPlan(tuple(dict.fromkeys((*first, *kept))), tuple(left_out))


def _mixed(grid: Grid, fitting: Sequence[GridCell]) -> Iterator[GridCell]:
    """Yield steps with a chunk, for the middle of what fits alone: of what does not, none would fit either."""
    steps = [cell for cell in fitting if cell.function == "step"]
    histories = [cell.history for cell in fitting if cell.function == "prefill" and cell.history <= _SHORT]
    if not steps or not histories:
        return
    batches, contexts = sorted({cell.batch for cell in steps}), sorted({cell.context // cell.batch for cell in steps})
    middle = contexts[max(0, len(contexts) // 2 - 1)]
    few = sorted({batches[len(batches) // 4], batches[-len(batches) // 4]})
    for batch, chunk, history in product(few, sorted(set(grid.chunks)), sorted({min(histories), max(histories)})):
        yield replace(steps[0], history=history, batch=batch, context=batch * middle, chunk=chunk)


def _ends(cells: Sequence[GridCell]) -> Iterator[GridCell]:
    """Yield what no fit goes without: the least and the most of each of the two lengths that a function depends on."""
    prefills = [cell for cell in cells if cell.function == "prefill"]
    yield from _corners(prefills, lambda cell: cell.history)
    plain = [cell for cell in cells if cell.function == "step" and not cell.chunk]
    yield from _corners(plain, lambda cell: cell.batch)
    yield from _corners(plain, lambda cell: cell.context // cell.batch)  # the largest batch may have one context only
    for way in ("there", "back"):
        moved = [cell for cell in cells if cell.function == "transfer" and cell.way == way]
        yield from moved[:1] + moved[-1:]


def _corners(cells: Sequence[GridCell], outer: Callable[[GridCell], int]) -> Iterator[GridCell]:
    for end in {f(map(outer, cells)) for f in (min, max)} if cells else ():
        of_it = [cell for cell in cells if outer(cell) == end]
        yield min(of_it, key=_order)
        yield max(of_it, key=_order)


def prompt_of(tokens: int, block: int) -> int:
    """Return the length nearest to ``tokens`` that is one more than whole blocks, at least one block."""
    return max(block, _rounded(tokens, block)) + 1


def prompt_length(cell: GridCell, steps: int) -> int:
    """Return the prompt of each sequence of a step's batch, so that halfway through ``steps`` it has its context."""
    return cell.context // cell.batch - steps // 2


def _rounded(tokens: int, block: int) -> int:
    return round(tokens / block) * block


def _too_large(cell: GridCell, facts: EngineFacts, *, steps: int, most_batch: int) -> str:
    longest = {
        "prefill": cell.history + cell.increment + 1,
        "step": (cell.context // cell.batch + 2 * steps if cell.batch else 0),
        "transfer": cell.tokens + 1,
    }[cell.function]
    longest = max(longest, cell.history + cell.chunk + 1)
    if facts.max_model_len and longest > facts.max_model_len:
        return f"longer than the engine's limit of {facts.max_model_len} tokens"
    each = cell.context // cell.batch + 2 * steps if cell.batch else 0
    held = sum(
        count * _blocks(n, facts) for count, n in ((cell.batch, each), (1, cell.history + cell.chunk), (1, longest))
    )
    if facts.kv_capacity_tokens and held > _KV_SHARE * facts.kv_capacity_tokens:
        return f"needs {held} tokens of KV, the engine holds {facts.kv_capacity_tokens}"
    if most_batch and cell.batch > most_batch:
        return f"larger than a batch of {most_batch}"
    return ""


def _blocks(tokens: int, facts: EngineFacts) -> int:
    """Return the tokens of the whole KV blocks that a sequence takes: an engine short of them computes it in turns."""
    return -(-tokens // facts.block_size) * facts.block_size


def _order(cell: GridCell) -> tuple[int, ...]:
    """Order cells so that longer prefixes follow the shorter ones they begin with, and both ways each other."""
    kind = ("prefill", "transfer", "step").index(cell.function)
    if cell.function == "step":
        return kind, int(cell.chunk > 0), cell.context // cell.batch, cell.batch, cell.history, cell.chunk
    return kind, 0, cell.history, cell.increment, cell.tokens, int(cell.way == "back")
