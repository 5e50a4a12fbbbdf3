import math
from functools import cache
from typing import Any

import pytest

from weft_core.analytic import derive_profile
from weft_core.cost import CostProfile
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_core.plan import Plan, plan_from_json
from weft_core.profile_json import profile_from_json, profile_to_json
from weft_planner import scip
from weft_planner.placement import node_sizes, placeable
from weft_planner.program import Program, Solved
from weft_planner.solve import answer, solve
from weft_planner_tests.requests import LLAMA, request


@cache
def base() -> tuple[Plan, CostProfile]:
    """Solve the shared request once."""
    return solve(request())


def refused(**changes: Any) -> tuple[str, str]:
    result = answer(request(**changes))
    assert result["status"] == "infeasible"
    assert set(result) == {"status", "reason", "message"}
    return str(result["reason"]), str(result["message"])


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
    plan, profile = solve(
        request(
            **{
                "model.name": model,
                "capacity.gpus": gpus,
                "slo.ttft": ttft,
                "slo.itl": itl,
                "workload": {"arrivalRate": 0.4, **workload},
            }
        )
    )
    assert [group.role for group in plan.groups] == ["prefill", "decode"]
    assert plan.gpus <= gpus
    assert plan.predicted.gpus == plan.gpus
    workers = [(group.degree, group.replicas) for group in plan.groups]
    assert placeable(node_sizes(gpus, 8), workers)
    assert plan.predicted.slo_met
    least_itl = min(profile.t_dec(batch=1, context=1000, degree=n) for n in profile.degrees)
    assert least_itl <= plan.predicted.itl_p95_s <= itl
    assert 0.015 < plan.predicted.ttft_mean_s < plan.predicted.ttft_p95_s <= ttft
    assert plan.groups[0].gpus >= plan.groups[1].gpus / 2  # prompts outnumber answers 12 to 20 times


def test_the_answer_reads_back_as_plan_and_profile() -> None:
    result = answer(request())
    plan, profile = base()
    assert result["status"] == "ok"
    assert isinstance(result["plan"], dict)
    assert isinstance(result["profile"], dict)
    assert plan_from_json(result["plan"]) == plan
    assert profile_from_json(result["profile"]) == profile
    assert len(plan.revision) == 10
    assert 1 <= len(plan.alternatives) <= 3
    assert "per session: every TTFT met" in plan.slo_reading
    assert "P95" in plan.slo_reading


def test_no_alternative_is_better_or_the_same() -> None:
    plan, _ = base()
    worst = max(plan.predicted.ttft_p95_s / 5.0, plan.predicted.itl_p95_s / 0.05)
    assert all(alternative.score >= worst - 1e-3 for alternative in plan.alternatives)
    assert len({plan.groups, *(a.groups for a in plan.alternatives)}) == 1 + len(plan.alternatives)


def test_cost_takes_fewer_gpus_that_still_hold_the_slo() -> None:
    fast, _ = base()
    cheap, _ = solve(request(objective="cost"))
    assert cheap.predicted.slo_met
    assert cheap.gpus < fast.gpus
    assert any(alternative.predicted.gpus == cheap.gpus for alternative in fast.alternatives)
    assert "fewest GPUs" in cheap.reason
    smaller, _ = solve(request(**{"objective": "cost", "capacity.gpus": cheap.gpus - 1}))
    assert not smaller.predicted.slo_met
    assert "falls back to the best latency" in smaller.reason


def test_an_slo_out_of_reach_still_gets_the_best_plan_and_what_would_hold() -> None:
    plan, _ = solve(request(**{"slo.ttft": 0.2}))
    assert not plan.predicted.slo_met
    assert "No layout of 16 GPUs holds the SLO" in plan.reason
    assert "would hold" in plan.reason
    feasible, _ = solve(
        request(**{"slo.ttft": plan.predicted.ttft_p95_s * 1.01, "slo.itl": plan.predicted.itl_p95_s * 1.01})
    )
    assert feasible.predicted.slo_met


def test_an_overload_says_what_load_these_gpus_carry() -> None:
    plan, _ = solve(request(**{"workload.arrivalRate": 20}))
    assert plan.predicted.ttft_p95_s == math.inf
    assert "queue grows without end" in plan.reason
    result = answer(request(**{"workload.arrivalRate": 20}))
    assert isinstance(result["plan"], dict)
    assert result["plan"]["predicted"]["ttftP95"] is None


def test_bounds_are_kept() -> None:
    plan, _ = solve(request(bounds={"prefill": {"min": 2, "max": 2}, "decode": {"min": 3}}))
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
    plan, _ = solve(request(**{"capacity.pools": pools}))
    assert [(group.role, group.pool) for group in plan.groups] == [("prefill", "front"), ("decode", "back")]
    assert plan.groups[0].gpus <= 8
    assert plan.groups[1].gpus <= 4


def test_workers_fit_their_nodes() -> None:
    plan, _ = solve(request(**{"capacity.gpus": 12, "capacity.pools.0.gpusPerNode": 6}))
    assert all(group.degree <= 6 for group in plan.groups)
    assert placeable([6, 6], [(group.degree, group.replicas) for group in plan.groups])


def test_a_model_that_fits_nowhere_is_refused_with_figures_and_what_would_do() -> None:
    reason, message = refused(**{"capacity.pools.0.gpuType": "nvidia-l4"} | {"capacity.pools.0.degrees": [1, 2, 4]})
    assert reason == "ModelDoesNotFit"
    assert "GB" in message
    assert "degree 8 would do" in message
    assert answer(
        request(**{"capacity.pools.0.gpuType": "nvidia-l4", "capacity.pools.0.degrees": [8], "model.maxModelLen": 8192})
    )["status"] == "ok"  # fmt: skip


def test_a_context_that_does_not_fit_is_refused_with_one_that_does() -> None:
    reason, message = refused(**{"model.maxModelLen": 10_000_000})
    assert reason == "ContextDoesNotFit"
    capacity = derive_profile(MODELS[LLAMA], GPUS["nvidia-h20"], degrees=(8,)).kv_capacity(8)
    assert str(capacity) in message
    assert answer(request(**{"model.maxModelLen": capacity}))["status"] == "ok"


def test_too_few_gpus_are_refused_with_the_number_that_would_do() -> None:
    reason, message = refused(**{"capacity.gpus": 3})
    assert reason == "TooFewGpus"
    assert "allow 4 GPUs" in message
    assert answer(request(**{"capacity.gpus": 4}))["status"] == "ok"


def test_bounds_that_need_more_than_there_is_are_refused() -> None:
    reason, message = refused(**{"capacity.gpus": 8, "bounds": {"prefill": {"min": 4}}})
    assert reason == "BoundsUnsatisfiable"
    assert "need 10 GPUs" in message


def test_nodes_too_small_for_both_roles_are_refused_with_enough_of_them() -> None:
    changes = {"capacity.gpus": 9, "capacity.pools.0.gpusPerNode": 6, "capacity.pools.0.degrees": [4]}
    reason, message = refused(**changes)
    assert reason == "NotPlaceable"
    assert "12 GPUs of pool h20 would do" in message
    assert answer(request(**{**changes, "capacity.gpus": 12}))["status"] == "ok"


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


def test_mixed_gpu_types_are_refused() -> None:
    pool = {"name": "x", "gpuType": "nvidia-h100", "degrees": [8]}
    given = request()
    pools = [given.capacity.pools[0].model_dump(by_alias=True), pool]
    reason, _ = refused(**{"capacity.pools": pools})
    assert reason == "MixedGpuTypes"


def test_a_given_profile_is_used_and_a_wrong_one_refused_by_field() -> None:
    profile = profile_to_json(derive_profile(MODELS[LLAMA], GPUS["nvidia-h20"], degrees=(4, 8), engine="measured"))
    plan, used = solve(request(profile=profile))
    assert used.engine == "measured"
    assert {group.degree for group in plan.groups} <= {4, 8}
    assert refused(profile={**profile, "gpu": "nvidia-h100"})[0] == "ProfileInvalid"
    assert "profile.model" in refused(profile={**profile, "model": "other"})[1]
    assert "profile.degrees: at least one row" in refused(profile={**profile, "degrees": []})[1]
    assert "profile.transfers" in refused(profile={**profile, "transfers": profile["transfers"][:1]})[1]  # type: ignore[index]
    assert "profile one of the pools' degrees" in refused(**{"profile": profile, "capacity.pools.0.degrees": [1, 2]})[1]


def test_efficiency_and_precision_change_the_costs() -> None:
    plan, _ = base()
    slow, _ = solve(request(analytic={"compute": 0.3, "prefillOverhead": 0.05}))
    assert slow.predicted.ttft_p95_s > plan.predicted.ttft_p95_s
    _, eight_bit = solve(request(**{"model.dtype": "fp8", "model.kvCacheDtype": "fp8"}))
    assert 1 in eight_bit.degrees
    assert eight_bit.kv_bytes_per_token == 80 * 2 * 8 * 128


def test_rounds_cut_off_by_the_context_limit_are_mentioned() -> None:
    plan, _ = solve(request(**{"model.maxModelLen": 2048, "workload.arrivalRate": 0.1}))
    assert "would exceed maxModelLen 2048" in plan.reason


def test_a_solver_without_answer_is_replaced_by_enumeration_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = base()

    def fails(program: Program, *, time_limit_s: float) -> Solved | None:
        raise scip.SolverError("SCIP ended with status timelimit and no solution within 10 s")

    monkeypatch.setattr(scip, "solve", fails)
    plan, _ = solve(request())
    assert plan.groups == expected.groups
    assert "enumerated instead" in plan.reason
