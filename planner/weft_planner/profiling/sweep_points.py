"""Choose what a sweep measures, and cut it to what the engine holds and to the requests that are allowed."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from weft_planner.profiling.engine_client import EngineFacts
from weft_planner.profiling.engine_grid import prompt_of

KV_SHARE = 0.9
"""Of the KV cache: a fuller engine preempts."""

Curve = Literal["context", "generation", "aggregated"]
CURVES: tuple[Curve, ...] = ("context", "generation", "aggregated")


@dataclass(frozen=True, slots=True)
class SweepGrid:
    """What is measured; an empty tuple leaves a curve out, as does ``answer_tokens`` = 0 that of the whole engine.

    * ``prompts`` x ``clients``: the context curve.
    * ``contexts`` x ``concurrency``: the generation curve.
    * the shortest of ``contexts`` as prompt, answers of ``answer_tokens``, x ``concurrency``: the aggregated curve.
    """

    prompts: tuple[int, ...] = (128, 512, 1024, 2048, 4096, 8192)
    clients: tuple[int, ...] = (1, 2, 4)
    contexts: tuple[int, ...] = (1024, 4096)
    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    answer_tokens: int = 128


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One point of a curve: ``tokens`` of each prompt, or that each sequence holds, at a concurrency."""

    curve: Curve
    tokens: int
    concurrency: int

    def __str__(self) -> str:
        """Return what messages call it."""
        return f"{self.curve} {self.tokens} x {self.concurrency}"


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The points, curve by curve, what costs least first, and what was left out because the engine cannot hold it."""

    points: tuple[SweepPoint, ...]
    left_out: tuple[str, ...] = ()


def plan_points(grid: SweepGrid, facts: EngineFacts, *, steps: int) -> SweepPlan:
    """Return the points that fit the engine's longest sequence and its KV cache."""
    block = facts.block_size
    held = sorted({prompt_of(tokens, block) + steps // 2 for tokens in grid.contexts})
    points = [SweepPoint("context", tokens, n) for tokens, n in product(grid.prompts, grid.clients)]
    points += [SweepPoint("generation", tokens, n) for tokens, n in product(held, grid.concurrency)]
    if grid.answer_tokens and grid.contexts:
        points += [SweepPoint("aggregated", min(grid.contexts), n) for n in grid.concurrency]
    longer = {"context": 1, "generation": 2 * steps, "aggregated": grid.answer_tokens}
    fitting, left_out = list[SweepPoint](), dict[str, list[SweepPoint]]()
    for point in points:
        longest = point.tokens + longer[point.curve]
        needed = longest if point.curve == "context" else point.concurrency * (-(-longest // block) * block)
        if facts.max_model_len and longest > facts.max_model_len:
            left_out.setdefault(f"beyond the engine's {facts.max_model_len} tokens of a sequence", []).append(point)
        elif facts.kv_capacity_tokens and needed > KV_SHARE * facts.kv_capacity_tokens:
            left_out.setdefault(f"beyond the engine's {facts.kv_capacity_tokens} tokens of KV", []).append(point)
        else:
            fitting.append(point)
    # Curve by curve: prompts of another one would evict the prefixes of the sequences that decode together.
    fitting.sort(key=lambda p: (CURVES.index(p.curve), p.tokens * p.concurrency, p.concurrency))
    return SweepPlan(tuple(fitting), tuple(listed(reason, which) for reason, which in left_out.items()))


def listed(reason: str, points: Sequence[SweepPoint]) -> str:
    """Return a note about points."""
    return f"{reason}: {', '.join(map(str, points))}"
