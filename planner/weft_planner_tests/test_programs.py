"""Both integer programs against trying everything, and each family of constraints by an example."""

from dataclasses import replace
from itertools import islice, product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weft_core.plan import ROLES, Objective, Role
from weft_planner.phases.latency import PhaseLatency
from weft_planner.programs import form_a, form_b, scip
from weft_planner.programs.enumeration import greedy_mixed
from weft_planner.programs.group_options import CEILING, GroupOption, LayoutPair, PlanLimits, share_of_slo
from weft_planner.programs.mixed import LoadLevel, WorkerOption
from weft_planner.programs.program import Program
from weft_planner_tests.instances import best_mixed, check_form_a, check_form_b, optimum

TAU = PhaseLatency(1.0, 1.0, 0.5)
WORKERS: dict[Role, tuple[int, int | None]] = {"prefill": (1, None), "decode": (1, None)}


def limits(gpus: int = 16, *, nodes: tuple[int, ...] = (8, 8), **more: object) -> PlanLimits:
    return replace(PlanLimits(gpus, {"a": nodes}, WORKERS), **more)  # type: ignore[arg-type]


def candidate(role: Role, degree: int, k: int, share: float, *, pool: str = "a", kv: int = 0) -> GroupOption:
    return GroupOption(role, pool, degree, k, share=share, tau=TAU, kv_tokens=kv)


def best(
    prefill: list[GroupOption],
    decode: list[GroupOption],
    within: PlanLimits,
    *,
    objective: Objective = "latency",
    count: int = 1,
) -> list[LayoutPair]:
    return list(islice(form_a.best(prefill, decode, limits=within, objective=objective, solve=optimum), count))


def names(layouts: list[LayoutPair]) -> list[str]:
    return [f"P{x.prefill.degree}x{x.prefill.replicas} D{x.decode.degree}x{x.decode.replicas}" for x in layouts]


@example(83675)
@given(st.integers(0, 10**9))
@settings(max_examples=60)
def test_form_a_finds_the_best_three_of_every_pair(seed: int) -> None:
    check_form_a(seed)


@given(st.integers(0, 10**9))
@settings(max_examples=15)
def test_form_b_finds_the_best_three_of_every_count(seed: int) -> None:
    check_form_b(seed)


def test_a_worker_does_not_span_nodes_and_groups_share_them() -> None:
    prefill = [candidate("prefill", 4, 2, 0.1), candidate("prefill", 2, 2, 0.5)]
    decode = [candidate("decode", 4, 1, 0.1)]
    # Three workers of 4 need three nodes.
    assert names(best(prefill, decode, limits(12, nodes=(6, 6)))) == ["P2x2 D4x1"]


def test_free_gpus_on_the_wrong_nodes_are_of_no_use() -> None:
    prefill = [candidate("prefill", 8, 1, 0.1), candidate("prefill", 1, 8, 0.5)]
    decode = [candidate("decode", 1, 1, 0.1)]
    assert names(best(prefill, decode, limits(16, nodes=(8, 1)))) == ["P8x1 D1x1"]
    assert names(best(prefill, decode, limits(16, nodes=(4, 4, 4)))) == ["P1x8 D1x1"]


def test_the_ratio_bounds_prefill_workers_for_each_decode_worker() -> None:
    prefill = [candidate("prefill", 2, k, 0.9 / k) for k in (1, 2, 3, 4)]
    decode = [candidate("decode", 2, k, 0.9 / k) for k in (1, 2, 3, 4)]
    assert names(best(prefill, decode, limits(ratio=(3.0, None)))) == ["P2x4 D2x1"]
    assert names(best(prefill, decode, limits(ratio=(None, 0.5)))) == ["P2x2 D2x4"]


def test_decode_workers_hold_what_sessions_need() -> None:
    decode = [candidate("decode", 1, 1, 0.1, kv=100), candidate("decode", 2, 1, 0.5, kv=300)]
    prefill = [candidate("prefill", 1, 1, 0.1)]
    assert names(best(prefill, decode, limits(kv_tokens=250.0))) == ["P1x1 D2x1"]


def test_degrees_that_cannot_exchange_kv_do_not_meet() -> None:
    prefill = [candidate("prefill", 8, 1, 0.1), candidate("prefill", 2, 1, 0.5)]
    decode = [candidate("decode", 4, 1, 0.1)]
    assert names(best(prefill, decode, limits(barred=frozenset({(8, 4)})))) == ["P2x1 D4x1"]


def test_a_budget_bounds_latency_and_prices_decide_cost() -> None:
    prefill = [candidate("prefill", 1, 2, 0.4, pool="a"), candidate("prefill", 1, 1, 0.8, pool="b")]
    decode = [candidate("decode", 1, 1, 0.5, pool="a")]
    two = limits(nodes=(8,), prices={"a": 1.0, "b": 3.0})
    two = replace(two, nodes={"a": (8,), "b": (8,)})
    # Two cheap GPUs cost less than one dear one.
    assert names(best(prefill, decode, two, objective="cost")) == ["P1x2 D1x1"]
    assert names(best(prefill, decode, replace(two, budget=3.5))) == ["P1x2 D1x1"]
    assert names(best(prefill, decode, replace(two, prices={}), objective="cost")) == ["P1x1 D1x1"]
    assert best(prefill, decode, replace(two, budget=2.0)) == []


def test_a_small_gain_is_not_worth_a_change() -> None:
    prefill = [candidate("prefill", 2, 2, 0.50), candidate("prefill", 4, 1, 0.49)]
    decode = [candidate("decode", 4, 1, 0.2)]
    running: dict[tuple[Role, str, int], int] = {("prefill", "a", 2): 2, ("decode", "a", 4): 1}
    assert names(best(prefill, decode, limits())) == ["P4x1 D4x1"]
    assert names(best(prefill, decode, limits(current=running, inertia=0.005))) == ["P2x2 D4x1"]
    assert names(best(prefill, decode, limits(current=running, inertia=0.001))) == ["P4x1 D4x1"]


def test_among_equal_latencies_the_fewer_gpus_win() -> None:
    prefill = [candidate("prefill", 2, k, 0.5) for k in (3, 2, 1)]
    decode = [candidate("decode", 2, k, 0.5) for k in (2, 1)]
    found = best(prefill, decode, limits(), count=6)
    assert [x.gpus for x in found] == sorted(a.gpus + b.gpus for a, b in product(prefill, decode))


def test_every_overload_ranks_behind_every_latency_and_by_its_size() -> None:
    shares = [
        share_of_slo(tau, 1.0)
        for tau in (
            PhaseLatency(0.5, 0.5, 0.2),
            PhaseLatency(1e9, 1.0, 0.97),
            PhaseLatency(float("inf"), 1.0, 1.1),
            PhaseLatency(float("inf"), 1.0, 3.0),
        )
    ]
    assert shares == sorted(shares)
    assert len(set(shares)) == 4
    assert shares[1] == CEILING


def mixed_kinds() -> list[WorkerOption]:
    levels = {n: (LoadLevel(0.5 * n, 0.4), LoadLevel(0.9 * n, 0.8)) for n in (1, 2, 4)}
    return [WorkerOption(role, "a", n, levels[n], kv_tokens=100 * n) for role in ROLES for n in (1, 2, 4)]


def test_form_b_mixes_degrees_where_one_alone_does_not_fit() -> None:
    # 7 GPUs on nodes of 4 and 3: one degree per role leaves one idle.
    within = limits(7, nodes=(4, 3))
    (found,) = islice(
        form_b.best(mixed_kinds(), rate=2.6, limits=within, objective="latency", solve=optimum), 1
    )  # 2.6 needs 6 GPUs at the high level, 10.4 at the low one
    assert found.gpus <= 7
    assert max(found.shares) == 0.8
    by_hand = best_mixed(mixed_kinds(), rate=2.6, limits=within, objective="latency", count=1)
    assert by_hand[0].gpus == found.gpus


def test_a_rule_of_thumb_stands_in_for_form_b() -> None:
    within = limits(12, nodes=(8, 4))
    found = list(greedy_mixed(mixed_kinds(), rate=2.0, limits=within, objective="cost"))
    exact = best_mixed(mixed_kinds()[:2] + mixed_kinds()[3:5], rate=2.0, limits=within, objective="cost", count=1)
    assert found[-1].gpus <= exact[0].gpus + 1
    assert max(found[-1].shares) <= 1


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


@pytest.mark.parametrize("kind", ["binary", "integer"])
def test_whole_numbers_are_whole(kind: str) -> None:
    program = Program()
    x = program.add_variable("x", kind)  # type: ignore[arg-type]
    program.add("at least", [(x, 2.0)], lower=1)
    program.minimise({x: 1.0})
    solution = scip.solve(program, time_limit_s=5)
    assert solution is not None
    assert solution.values == (1.0,)
