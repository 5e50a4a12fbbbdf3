"""A grid that is too large for its time gets thinner between its ends, then less often timed, then shorter."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from weft_planner.profiling.engine_budget import EngineSpeed, fitting
from weft_planner.profiling.engine_client import EngineFacts
from weft_planner.profiling.engine_grid import Grid, TransferEnds, plan_cells

FACTS = EngineFacts("m", "", 4096, 128, 20480, tuple(range(9)))
PACE = EngineSpeed(request_s=0.02, token_s=2e-4, step_s=0.01)


def cost(grid: Grid, repeats: int) -> float:
    cells = plan_cells(grid, FACTS, TransferEnds(1, 1, back=True), steps=16, most_batch=0).cells
    return PACE.seconds(cells, repeats=repeats, steps=16)


def test_a_grid_within_the_budget_stays_as_it_is() -> None:
    found = fitting(Grid(), 3, cost, 1e6)
    assert (found.grid, found.repeats, found.left_out) == (Grid(), 3, ())


def test_middles_go_before_repeats_and_repeats_before_ends() -> None:
    whole = cost(Grid(), 5)
    thinner = fitting(Grid(), 5, cost, 0.95 * whole)
    assert thinner.repeats == 5
    assert (thinner.grid.increments[0], thinner.grid.increments[-1]) == (32, 2048)  # 4096 and more the engine cannot
    fewer = fitting(Grid(), 5, cost, 0.25 * whole)
    assert 2 <= fewer.repeats < 5
    assert "repeats" in fewer.left_out[0]
    least = fitting(Grid(), 5, cost, 0.0)
    assert least.repeats == 1
    assert len(least.grid.increments) == 3
    assert least.grid.chunks == ()


def test_lengths_that_the_engine_cannot_hold_do_not_stand_for_those_that_it_can() -> None:
    """Contexts of 4,096 and 16,384 tokens are beyond its limit: thinned to one of those, steps had one context."""
    for share in (0.9, 0.5, 0.0):
        grid = fitting(Grid(), 3, cost, share * cost(Grid(), 3)).grid
        assert grid.contexts == (256, 1024)
        assert grid.histories == (0, 1024)
        assert grid.batches == (1, 4, 16)


def test_lengths_that_stay_are_spread_over_their_orders() -> None:
    increments = (32, 64, 128, 256, 512, 1024, 2048)
    grid = fitting(Grid(increments=increments), 1, cost, 0.5 * cost(Grid(increments=increments), 1)).grid
    assert (grid.increments[0], grid.increments[-1]) == (32, 2048)
    assert max(b / a for a, b in pairwise(grid.increments)) <= 16


@given(st.floats(0.0, 300.0), st.integers(1, 9))
def test_what_a_fit_needs_stays_and_budgets_are_kept_where_they_can_be(budget: float, repeats: int) -> None:
    found = fitting(Grid(), repeats, cost, budget)
    grid = found.grid
    assert len(grid.histories) >= 2
    assert len(grid.increments) >= 3
    assert min(len(grid.batches), len(grid.contexts), len(grid.transfers)) >= 2
    least = fitting(Grid(), repeats, cost, 0.0)
    assert cost(grid, found.repeats) <= max(budget, cost(least.grid, least.repeats) * 1.001)
