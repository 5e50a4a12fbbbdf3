"""Fit a grid into the time there is: fewer lengths between the ends first, then fewer repeats, then shorter ends.

Costs are estimated from a few timings of the engine itself. A profile of fewer shapes, each timed, is worth more than
the first half of a large grid.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from weft_planner.profiling.engine_grid import Grid, prompt_length
from weft_planner.profiling.measurements import GridCell

_LEAST = {"histories": 2, "increments": 3, "batches": 3, "contexts": 2, "chunks": 0, "transfers": 2}
"""Lengths of each kind that a fit needs, where noise may take a shape or two."""
_MIDDLE = 4
"""So many lengths of a kind, or more, are thinned between the ends before anything else."""
_MARGIN = 1.25
_PAIR = 4
"""Short requests of a transfer's pair, both ways."""
_PAIRS = 3

_WAIT = 1 / 3
"""Of the budget: a shape that takes longer leaves too little for those that a fit needs."""
SHORTEST_WAIT_S = 5.0
"""A busy machine alone makes an answer so late."""


def longest_wait(budget_s: float) -> float:
    """Return for how many seconds of a budget one answer may be waited for."""
    return max(SHORTEST_WAIT_S, _WAIT * budget_s)


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """What an engine takes about: seconds of a request, of each prompt token, and of a step."""

    request_s: float
    token_s: float
    step_s: float

    def seconds(self, cells: Sequence[GridCell], *, repeats: int, steps: int) -> float:
        """Return about how long timing these cells takes, so many times each."""
        return _MARGIN * sum(self._first(cell, steps) + repeats * self._each(cell, steps) for cell in cells)

    def _first(self, cell: GridCell, steps: int) -> float:
        """Return what fills the cache; longer prefixes begin with shorter ones, so about half is there."""
        if cell.function == "step":
            return self.token_s * cell.batch * prompt_length(cell, steps) / 2
        return 0.0

    def _each(self, cell: GridCell, steps: int) -> float:
        if cell.function == "prefill":
            return 2 * self.request_s + self.token_s * (cell.increment + 0.1 * cell.history)
        if cell.function == "transfer":
            return 0.0 if cell.way == "back" else _PAIRS * (_PAIR * self.request_s + self.token_s * cell.tokens)
        batch = self.step_s * (1 + cell.batch / 16)
        filled = self.request_s * (1 + 0.2 * cell.batch)
        if cell.chunk:
            return filled + 10 * batch + 2 * self.request_s + self.token_s * (cell.chunk + 0.1 * cell.history)
        return filled + 1.3 * steps * batch


@dataclass(frozen=True, slots=True)
class FittedGrid:
    """A grid with repeats that fit the budget, and what was left out for it."""

    grid: Grid
    repeats: int
    left_out: tuple[str, ...] = ()


Cost = Callable[[Grid, int], float]


def fitting(grid: Grid, repeats: int, cost: Cost, budget_s: float) -> FittedGrid:
    """Return what of a grid can be timed within a budget; the least that a fit needs always stays.

    Lengths that cost nothing, because the engine cannot hold them, are no ends of a grid.
    """
    original, wanted = grid, repeats
    grid = _without_idle(grid, cost)
    held = grid
    for stage in (_middles, None, _ends):
        while cost(grid, repeats) > budget_s:
            if stage is None:
                if repeats <= 2:
                    break
                repeats -= 1
                continue
            smaller = min(stage(grid), key=lambda other: cost(other, repeats), default=None)
            if smaller is None:
                break
            grid = smaller
    if repeats > 1 and cost(grid, repeats) > budget_s:
        repeats = 1
    words = [
        f"{name} {', '.join(map(str, gone))}"
        for name in Grid.__dataclass_fields__
        if (gone := [n for n in getattr(held, name) if n not in getattr(grid, name)])
    ]
    words += [f"{repeats} instead of {wanted} repeats"] if repeats < wanted else []
    if not words:
        return FittedGrid(original, repeats)
    return FittedGrid(grid, repeats, (f"left out for the budget of {budget_s:.0f} s: {'; '.join(words)}",))


def _without_idle(grid: Grid, cost: Cost) -> Grid:
    # Which batches and contexts chunks ride along with depends on all others: without one they may cost more.
    plain = _needed(replace(grid, chunks=()), cost)
    return _needed(replace(plain, chunks=grid.chunks), cost, "chunks")


def _needed(grid: Grid, cost: Cost, *names: str) -> Grid:
    for name in names or Grid.__dataclass_fields__:
        for value in sorted(getattr(grid, name), reverse=True):
            smaller = _less(grid, name, value)
            if getattr(smaller, name) and cost(smaller, 1) >= cost(grid, 1):
                grid = smaller
    return grid


def _middles(grid: Grid) -> Iterator[Grid]:
    for name in _LEAST:
        values = sorted(set(getattr(grid, name)))
        if len(values) >= _MIDDLE:
            yield _less(grid, name, min(values[1:-1], key=lambda value: _gap_without(values, value)))


def _gap_without(values: Sequence[int], value: int) -> float:
    """Return how far apart its neighbours are, as a ratio: lengths that stay are spread evenly over their orders."""
    at = values.index(value)
    return values[at + 1] / max(1, values[at - 1])


def _ends(grid: Grid) -> Iterator[Grid]:
    for name, least in _LEAST.items():
        values = sorted(set(getattr(grid, name)))
        if len(values) > least:
            yield _less(grid, name, values[-1])


def _less(grid: Grid, name: str, value: int) -> Grid:
    return replace(grid, **{name: tuple(n for n in getattr(grid, name) if n != value)})
