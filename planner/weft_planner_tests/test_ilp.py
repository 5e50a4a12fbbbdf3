"""SCIP against trying every pair, on random instances."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_core.plan import Objective, Role
from weft_planner import scip
from weft_planner.enumeration import best_layouts, feasible
from weft_planner.ilp import CEILING, Candidate, Layout, Limits, build, extract, score, share_of_slo
from weft_planner.program import Program
from weft_planner.tau import Tau

POOLS = ("a", "b")


@st.composite
def candidates(draw: st.DrawFn, role: Role) -> list[Candidate]:
    cells = draw(
        st.lists(
            st.tuples(st.sampled_from(POOLS), st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 6)),
            max_size=8,
            unique=True,
        )
    )
    return [
        Candidate(role, pool, degree, k, share=draw(st.floats(0.05, 3)), tau=Tau(1.0, 1.0, 0.5))
        for pool, degree, k in cells
    ]


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    bounds: dict[Role, tuple[int, int | None]] = {
        "prefill": (draw(st.integers(1, 2)), draw(st.sampled_from([None, 2, 4]))),
        "decode": (1, draw(st.sampled_from([None, 1, 5]))),
    }
    return Limits(
        gpus=draw(st.integers(2, 32)),
        pool_gpus={pool: draw(st.integers(1, 24)) for pool in POOLS},
        node_gpus={pool: draw(st.sampled_from([2, 4, 6, 8])) for pool in POOLS},
        workers=bounds,
    )


def solved_by_scip(
    prefill: list[Candidate], decode: list[Candidate], *, within: Limits, objective: Objective, count: int
) -> list[Layout]:
    found: list[Layout] = []
    while len(found) < count:
        excluded = [(layout.prefill, layout.decode) for layout in found]
        built = build(prefill, decode, limits=within, objective=objective, excluded=excluded)
        solution = scip.solve(built.program, time_limit_s=10)
        if solution is None:
            return found
        assert solution.optimal
        layout = extract(built, solution.values)
        assert solution.objective == pytest.approx(score(layout, objective), abs=1e-7)
        found.append(layout)
    return found


@pytest.mark.parametrize("objective", ["latency", "cost"])
@given(prefill=candidates("prefill"), decode=candidates("decode"), within=limits())
@settings(max_examples=40)
def test_the_best_three_equal_those_of_trying_every_pair(
    objective: Objective, prefill: list[Candidate], decode: list[Candidate], within: Limits
) -> None:
    by_scip = solved_by_scip(prefill, decode, within=within, objective=objective, count=3)
    by_hand = best_layouts(prefill, decode, limits=within, objective=objective, count=3)
    assert [score(x, objective) for x in by_scip] == pytest.approx([score(x, objective) for x in by_hand], abs=1e-7)
    assert len(set(by_scip)) == len(by_scip)
    assert all(feasible(layout, within) for layout in by_scip)


def test_a_worker_does_not_span_nodes_and_groups_share_them() -> None:
    within = Limits(
        gpus=12, pool_gpus={"a": 12}, node_gpus={"a": 6}, workers={"prefill": (1, None), "decode": (1, None)}
    )
    tau = Tau(1.0, 1.0, 0.5)
    prefill = [Candidate("prefill", "a", 4, 2, share=0.1, tau=tau), Candidate("prefill", "a", 2, 2, share=0.5, tau=tau)]
    decode = [Candidate("decode", "a", 4, 1, share=0.1, tau=tau)]
    (layout,) = solved_by_scip(prefill, decode, within=within, objective="latency", count=1)
    assert (layout.prefill.degree, layout.prefill.replicas) == (2, 2)  # three workers of 4 need three nodes


def test_every_overload_ranks_behind_every_latency_and_by_its_size() -> None:
    shares = [
        share_of_slo(tau, 1.0)
        for tau in (Tau(0.5, 0.5, 0.2), Tau(1e9, 1.0, 0.97), Tau(float("inf"), 1.0, 1.1), Tau(float("inf"), 1.0, 3.0))
    ]
    assert shares == sorted(shares)
    assert len(set(shares)) == 4
    assert shares[1] == CEILING


def test_among_equal_latencies_the_fewer_gpus_win() -> None:
    tau = Tau(1.0, 1.0, 0.5)
    prefill = [Candidate("prefill", "a", 2, k, share=0.5, tau=tau) for k in (3, 2, 1)]
    decode = [Candidate("decode", "a", 2, k, share=0.5, tau=tau) for k in (2, 1)]
    within = Limits(16, {"a": 16}, {"a": 8}, {"prefill": (1, None), "decode": (1, None)})
    found = solved_by_scip(prefill, decode, within=within, objective="latency", count=6)
    assert [x.gpus for x in found] == sorted(a.gpus + b.gpus for a, b in product(prefill, decode))


def test_a_constraint_without_terms_speaks_about_zero() -> None:
    program = Program()
    variable = program.add_variable("x", "continuous")
    program.add("nothing", [], upper=3)
    program.minimise({variable: 1.0})
    solution = scip.solve(program, time_limit_s=5)
    assert solution is not None
    assert solution.values == (0.0,)
    program.add("impossible", [(variable, 0.0)], lower=1)
    assert scip.solve(program, time_limit_s=5) is None
