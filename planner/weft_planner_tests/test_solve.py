import math
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from weft_core.analytic import derive_profile
from weft_core.cost import CostProfile
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_core.parallelism import gpus_of
from weft_core.plan import Plan, plan_from_json
from weft_core.policies.registry import MODES
from weft_core.profile_json import profile_from_json, profile_to_json
from weft_planner.evaluation.goodput_search import CLOSE
from weft_planner.plan.solve import solve
from weft_planner.programs import search, solver
from weft_planner.programs.packing import pack
from weft_planner.programs.placement import node_sizes
from weft_planner_tests.effort import answered, solved
from weft_planner_tests.requests import LLAMA, request


@cache
def base() -> tuple[Plan, CostProfile]:
    """Solve the shared request once."""
    return planned()


def planned(**changes: Any) -> tuple[Plan, CostProfile]:
    plan, profiles = solved(request(**changes))
    return plan, profiles[plan.groups[0].pool]


def refused(**changes: Any) -> tuple[str, str]:
    result = answered(request(**changes))
    assert result["status"] == "infeasible"
    assert set(result) == {"status", "reason", "message", "shortfall"}
    return str(result["reason"]), str(result["message"])


def fits(plan: Plan, nodes: list[int]) -> bool:
    return pack(nodes, [gpus_of(group.degree) for group in plan.groups for _ in range(group.replicas)]) is not None


@pytest.mark.parametrize(
    ("model", "gpus", "ttft", "itl", "workload"),
    [
        (LLAMA, 16, 5.0, 0.05, {"rounds": 3, "firstPrompt": 1027, "increment": 1027, "decode": 50, "gap": 0.3}),
        (LLAMA, 8, 1.0, 0.05, {"rounds": 3.96, "firstPrompt": 317, "increment": 131, "decode": 13, "gap": 0.6}),
        (
            "Qwen/Qwen3-32B", 32, 1.0, 0.035,
            {"rounds": 11.32, "firstPrompt": 2156, "increment": 388, "decode": 47, "gap": 2},
        ),
        (
            "mistralai/Mixtral-8x7B-Instruct-v0.1", 16, 0.3, 0.05,
            {"rounds": 3, "firstPrompt": 1027, "increment": 1027, "decode": 50, "gap": 0.3},
        ),
    ],
)  # fmt: skip
def test_the_papers_workloads_get_plausible_plans(
    model: str, gpus: int, ttft: float, itl: float, workload: dict[str, float]
) -> None:
    """Table 1's workloads at 0.4 sessions a second on the GPUs that the paper gives them."""
    changes: dict[str, Any] = {
        "model.name": model,
        "capacity.gpus": gpus,
        "slo.ttft": ttft,
        "slo.itl": itl,
        "workload": {"arrivalRate": 0.4, **workload},
    }
    plan, profile = planned(**changes)
    assert [group.role for group in plan.groups] == ["prefill", "decode"]
    assert plan.layout == "disaggregated"
    assert plan.policy is not None
    assert plan.policy.mode in MODES  # what the router can run
    assert plan.gpus <= gpus
    assert plan.predicted.gpus == plan.gpus
    assert fits(plan, node_sizes(gpus, 8))
    assert plan.predicted.slo_met
    assert plan.predicted.source == "simulation"
    assert plan.predicted.goodput is not None
    assert plan.predicted.goodput.value > 0.4
    least_itl = min(profile.t_dec(batch=1, context=1000, degree=n) for n in profile.degrees)
    assert least_itl * 0.99 <= plan.predicted.itl_p95_s
    assert 0.015 < plan.predicted.ttft_mean_s < plan.predicted.ttft_p95_s <= ttft
    assert plan.groups[0].gpus >= plan.groups[1].gpus / 2  # prompts outnumber answers 12 to 20 times


def test_the_answer_reads_back_as_plan_and_profiles() -> None:
    result = answered(request())
    plan, profile = base()
    assert result["status"] == "ok"
    assert isinstance(result["plan"], dict)
    assert isinstance(result["profile"], dict)
    assert isinstance(result["profiles"], Mapping)
    assert plan_from_json(result["plan"]) == plan
    assert profile_from_json(result["profile"]) == profile
    assert set(result["profiles"]) == {"h20"}
    assert len(plan.revision) == 10
    assert 1 <= len(plan.alternatives) <= 6
    assert "per session: every TTFT met" in plan.slo_reading
    assert "P95" in plan.slo_reading


def test_a_plan_states_everything_that_decides() -> None:
    plan, _ = base()
    predicted = plan.predicted
    assert predicted.attainment is not None
    assert predicted.reading == "session, mean ITL"
    assert predicted.readings["session, mean ITL"] == predicted.attainment.value
    assert predicted.ttft_first is not None
    assert predicted.ttft_later is not None
    assert 0 < predicted.ttft_first.p50_s < predicted.ttft_first.p95_s
    assert {(u.role, u.degree) for u in predicted.use} == {(g.role, g.degree) for g in plan.groups}
    assert all(0 < u.utilisation <= 1 for u in predicted.use)
    assert predicted.kv_headroom is not None
    assert {limit.kind for limit in predicted.limits} == {"compute", "kv", "link", "ttft", "itl"}
    shares = [limit.share for limit in predicted.limits]
    assert shares == sorted(shares, reverse=True)
    assert predicted.cost_per_hour is None
    kinds = {alternative.layout for alternative in plan.alternatives}
    assert kinds >= {"disaggregated"}
    assert all(alternative.note for alternative in plan.alternatives if not alternative.runnable)


def test_prices_give_costs() -> None:
    plan, _ = planned(**{"capacity.pools.0.pricePerGpuHour": 2.5})
    assert plan.predicted.cost_per_hour == pytest.approx(2.5 * plan.gpus)
    tokens = 0.8 * (3 * 1027 + 3 * 50) * 3600 / 1e6  # a million in an hour
    assert plan.predicted.cost_per_million_tokens == pytest.approx(2.5 * plan.gpus / tokens, rel=0.1)


def test_no_runnable_alternative_is_better() -> None:
    plan, _ = base()
    assert plan.predicted.goodput is not None
    for alternative in plan.alternatives:
        assert alternative.predicted.goodput is not None
        if alternative.runnable:
            assert alternative.predicted.goodput.value * (1 - CLOSE) <= plan.predicted.goodput.value
    named = {(a.layout, a.groups, a.policy) for a in plan.alternatives} | {(plan.layout, plan.groups, plan.policy)}
    assert len(named) == 1 + len(plan.alternatives)


def test_cost_takes_fewer_gpus_that_still_hold_the_slo_with_headroom() -> None:
    fast, _ = base()
    cheap, _ = planned(objective="cost")
    assert cheap.predicted.slo_met
    assert cheap.gpus < fast.gpus
    assert cheap.predicted.goodput is not None
    assert cheap.predicted.goodput.value >= 0.8 * 1.2
    assert "fewest GPUs" in cheap.reason
    tighter, _ = planned(objective="cost", headroom=2.0)
    assert tighter.gpus > cheap.gpus


def test_an_slo_out_of_reach_still_gets_the_best_plan_and_what_would_hold() -> None:
    plan, _ = planned(**{"slo.ttft": 0.2})
    assert not plan.predicted.slo_met
    assert "No layout of 16 GPUs holds the SLO" in plan.reason
    assert plan.shortfall is not None
    assert plan.shortfall.binding == "ttft"
    assert plan.shortfall.nearest_ttft_s is not None
    assert plan.shortfall.nearest_ttft_s > 0.2
    assert plan.shortfall.nearest_itl_s == 0.05
    held, _ = planned(**{"slo.ttft": plan.shortfall.nearest_ttft_s})
    assert held.predicted.slo_met


def test_an_overload_says_what_load_these_gpus_carry_and_how_many_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # short runs cannot tell the GPUs that just hold the load from those that just do not
    plan, _ = planned(**{"workload.arrivalRate": 6})
    assert not plan.predicted.slo_met
    assert plan.predicted.ttft_p95_s == math.inf
    assert plan.shortfall is not None
    assert plan.shortfall.binding == "gpus"
    assert "of the arrival rate" in plan.shortfall.message
    assert plan.shortfall.least_gpus is not None
    assert plan.shortfall.remedies[0].path == "capacity.gpus"
    enough, _ = planned(**{"workload.arrivalRate": 6, "capacity.gpus": plan.shortfall.least_gpus})
    assert enough.predicted.slo_met


def test_an_itl_out_of_reach_is_told_with_one_that_holds() -> None:
    plan, _ = planned(**{"slo.itl": 0.012})
    assert plan.shortfall is not None
    assert plan.shortfall.binding == "itl"
    assert plan.shortfall.nearest_ttft_s == 5.0
    assert plan.shortfall.nearest_itl_s is not None
    held, _ = planned(**{"slo.itl": plan.shortfall.nearest_itl_s})
    assert held.predicted.slo_met


def test_a_budget_too_small_for_the_slo_is_told_with_one_that_does() -> None:
    changes = {"capacity.pools.0.pricePerGpuHour": 2.0, "workload.arrivalRate": 1.6}
    plan, _ = planned(budgetPerHour=8.0, **changes)
    assert plan.predicted.cost_per_hour is not None
    assert plan.predicted.cost_per_hour <= 8
    assert plan.shortfall is not None
    assert plan.shortfall.binding == "budget"
    (remedy,) = [r for r in plan.shortfall.remedies if r.path == "budgetPerHour"]
    held, _ = planned(budgetPerHour=remedy.value, **changes)
    assert held.predicted.slo_met


def test_bounds_are_kept() -> None:
    plan, _ = planned(bounds={"prefill": {"min": 2, "max": 2}, "decode": {"min": 3}})
    assert plan.groups[0].replicas == 2
    assert plan.groups[1].replicas >= 3


def test_roles_and_pools_are_kept() -> None:
    pools = [
        {
            "name": "front",
            "gpuType": "nvidia-h20",
            "gpusPerNode": 8,
            "degrees": [2, 4],
            "roles": ["prefill"],
            "gpus": 8,
        },
        {"name": "back", "gpuType": "nvidia-h20", "gpusPerNode": 4, "degrees": [2, 4], "roles": ["decode"], "gpus": 4},
    ]
    plan, _ = planned(**{"capacity.pools": pools})
    assert [(group.role, group.pool) for group in plan.groups] == [("prefill", "front"), ("decode", "back")]
    assert plan.groups[0].gpus <= 8
    assert plan.groups[1].gpus <= 4


def test_workers_fit_their_nodes() -> None:
    plan, _ = planned(**{"capacity.gpus": 12, "capacity.pools.0.gpusPerNode": 6})
    assert all(gpus_of(group.degree) <= 6 for group in plan.groups)
    assert fits(plan, [6, 6])


def test_free_gpus_of_real_nodes_decide() -> None:
    """On nodes of which four, four, three and three GPUs are free, nothing larger than 4 can be placed."""
    plan, _ = planned(**{"capacity.pools.0.nodes": [3, 4, 3, 4]})
    assert plan.nodes_seen
    assert fits(plan, [4, 4, 3, 3])
    budget_only, _ = base()
    assert not fits(budget_only, [4, 4, 3, 3])


def test_what_runs_stays_unless_another_layout_is_clearly_better() -> None:
    plan, _ = base()
    second = next(a for a in plan.alternatives if a.runnable and a.groups != plan.groups)
    running = [{"role": g.role, "degree": g.degree, "replicas": g.replicas, "pool": g.pool} for g in second.groups]
    kept, _ = planned(current=running, minImprovement=0.9)
    assert kept.groups == second.groups
    eager, _ = planned(current=running, minImprovement=0)
    assert eager.predicted.goodput is not None
    assert kept.predicted.goodput is not None
    assert eager.predicted.goodput.value >= kept.predicted.goodput.value * (1 - CLOSE)


def test_what_runs_is_among_the_alternatives_wherever_it_ranks() -> None:
    """The operator weighs a change against it, so it must be there even if few alternatives are asked for."""
    plan, _ = base()
    last = plan.alternatives[-1]
    running = [{"role": g.role, "degree": g.degree, "replicas": g.replicas, "pool": g.pool} for g in last.groups]
    changed, _ = solve(request(current=running, minImprovement=0), top=1)
    assert changed.groups != last.groups
    assert len(changed.alternatives) <= 2
    assert last.groups in [a.groups for a in changed.alternatives]


def test_a_plan_says_what_traffic_it_is_for() -> None:
    plan, _ = base()
    load = request().workload
    valid, goodput = plan.validity, plan.predicted.goodput
    assert valid is not None
    assert goodput is not None
    assert (valid.arrival_rate, valid.rounds, valid.gap_s) == (load.arrival_rate, load.rounds.mean, load.gap.mean)
    tokens = (load.first_prompt.mean, load.increment.mean, load.decode.mean)
    assert (valid.first_prompt, valid.increment, valid.decode) == pytest.approx(tokens, rel=1e-6)
    assert (valid.rate_low, valid.rate_high) == pytest.approx((0, max(load.arrival_rate, goodput.low)), rel=1e-6)
    cheap, _ = planned(objective="cost", headroom=0.25)
    assert cheap.validity is not None
    assert cheap.validity.rate_low == pytest.approx(load.arrival_rate / 1.25, rel=1e-6)


def test_a_model_that_fits_nowhere_is_refused_with_figures_and_what_would_do() -> None:
    reason, message = refused(**{"capacity.pools.0.gpuType": "nvidia-l4"} | {"capacity.pools.0.degrees": [1, 2, 4]})
    assert reason == "ModelDoesNotFit"
    assert "GB" in message
    assert "degree 8 would do" in message
    assert answered(
        request(**{"capacity.pools.0.gpuType": "nvidia-l4", "capacity.pools.0.degrees": [8], "model.maxModelLen": 8192})
    )["status"] == "ok"  # fmt: skip


def test_a_context_that_does_not_fit_is_refused_with_one_that_does() -> None:
    reason, message = refused(**{"model.maxModelLen": 10_000_000})
    assert reason == "ContextDoesNotFit"
    capacity = derive_profile(MODELS[LLAMA], GPUS["nvidia-h20"], degrees=(8,)).kv_capacity(8)
    assert str(capacity) in message
    assert answered(request(**{"model.maxModelLen": capacity}))["status"] == "ok"


def test_too_few_gpus_are_refused_with_the_number_that_would_do() -> None:
    reason, message = refused(**{"capacity.gpus": 3})
    assert reason == "TooFewGpus"
    assert "allow 4 GPUs" in message
    assert answered(request(**{"capacity.gpus": 4}))["status"] == "ok"


def test_bounds_that_need_more_than_there_is_are_refused() -> None:
    reason, message = refused(**{"capacity.gpus": 8, "bounds": {"prefill": {"min": 4}}})
    assert reason == "BoundsUnsatisfiable"
    assert "need 10 GPUs" in message


def test_nodes_too_small_for_both_roles_are_refused_with_enough_of_them() -> None:
    changes = {"capacity.gpus": 9, "capacity.pools.0.gpusPerNode": 6, "capacity.pools.0.degrees": [4]}
    reason, message = refused(**changes)
    assert reason == "NotPlaceable"
    assert "10 GPUs of pool h20 would do" in message
    assert answered(request(**{**changes, "capacity.gpus": 10}))["status"] == "ok"


def test_a_role_without_pool_is_named() -> None:
    reason, message = refused(**{"capacity.pools.0.roles": ["decode"]})
    assert reason == "NoPoolForRole"
    assert "prefill" in message


def test_unknown_names_are_refused_with_the_nearest() -> None:
    reason, message = refused(**{"model.name": "meta-llama/Llama-3.1-70B"})
    assert reason == "UnknownModel"
    assert f"did you mean {LLAMA}?" in message
    reason, message = refused(**{"capacity.pools.0.gpuType": "h20"})
    assert reason == "UnknownGpu"
    assert "nvidia-h20" in message


def test_pools_of_two_gpu_types_are_planned_each_by_its_profile() -> None:
    pool = {"name": "x", "gpuType": "nvidia-h100", "degrees": [4, 8], "gpus": 8}
    given = request()
    pools = [{**given.capacity.pools[0].model_dump(by_alias=True, exclude_none=True), "gpus": 8}, pool]
    result = answered(request(**{"capacity.pools": pools}))
    assert isinstance(result["plan"], dict)
    plan = plan_from_json(result["plan"])
    assert {group.pool for group in plan.groups} <= {"h20", "x"}
    assert isinstance(result["profiles"], Mapping)
    assert set(result["profiles"]) == {"h20", "x"}
    both = [a for a in plan.alternatives if len({group.pool for group in a.groups}) == 2]
    assert all(a.runnable or any(word in a.note for word in ("mixedDegrees", "mode", "layouts")) for a in both)


def test_a_given_profile_is_used_and_a_wrong_one_refused_by_field() -> None:
    profile = profile_to_json(derive_profile(MODELS[LLAMA], GPUS["nvidia-h20"], degrees=(4, 8), engine="measured"))
    plan, used = planned(profile=profile)
    assert used.engine == "measured"
    assert {group.degree for group in plan.groups} <= {4, 8}
    assert refused(profile={**profile, "gpu": "nvidia-h100"})[0] == "ProfileInvalid"
    assert "profile.model" in refused(profile={**profile, "model": "other"})[1]
    assert "profile.degrees: at least one row" in refused(profile={**profile, "degrees": []})[1]
    assert "profile.transfers" in refused(profile={**profile, "transfers": profile["transfers"][:1]})[1]  # type: ignore[index]
    assert "profile one of the pools' degrees" in refused(**{"profile": profile, "capacity.pools.0.degrees": [1, 2]})[1]


def test_efficiency_and_precision_change_the_costs() -> None:
    plan, _ = base()
    slow, _ = planned(analytic={"compute": 0.3, "prefillOverhead": 0.05})
    assert slow.predicted.ttft_p95_s > plan.predicted.ttft_p95_s
    _, eight_bit = planned(**{"model.dtype": "fp8", "model.kvCacheDtype": "fp8"})
    assert 1 in eight_bit.degrees
    assert eight_bit.kv_bytes_per_token == 80 * 2 * 8 * 128


def test_rounds_cut_off_by_the_context_limit_are_mentioned() -> None:
    plan, _ = planned(**{"model.maxModelLen": 2048, "workload.arrivalRate": 0.1})
    assert "would exceed maxModelLen 2048" in plan.reason


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ((sys.executable, "-c", "import os, sys; sys.stdin.readline(); os.abort()"), "ended with status -6"),
        ((sys.executable, "-c", "import sys, time; sys.stdin.readline(); time.sleep(60)"), "no answer within"),
        ((sys.executable, "-c", "raise SystemExit('no solver here')"), "no solver here"),
        (("weft-has-no-such-solver",), "cannot be started"),
    ],
)
def test_a_solver_that_crashes_hangs_or_is_missing_is_replaced_and_said(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], said: str
) -> None:
    expected, _ = base()
    monkeypatch.setattr(solver, "COMMAND", command)
    monkeypatch.setattr(solver, "GRACE_S", 0.2)
    monkeypatch.setattr(search, "LIMIT_S", 0.1)
    plan, _ = solve(request())
    assert plan.groups == expected.groups
    assert plan.search == "enumeration"
    assert any(said in note and "tried instead" in note for note in plan.notes)
