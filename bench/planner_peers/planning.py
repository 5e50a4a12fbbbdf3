"""Ask Weft for a plan of the same GPUs, and time it; and for the layout that it matches by steady rates."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.planner_peers import peer
from bench.planner_peers.cells import ENGINE, Cell, Slo, Traffic
from bench.planner_peers.peer import LARGEST_BATCH, POOL
from bench.planner_peers.tables import without_corrections

from weft_core.cost import CostProfile
from weft_core.parallelism import Degree, parallelism_of
from weft_core.plan import Plan, PlannedPolicy
from weft_core.policies.routing.weft import STATISTICS
from weft_core.profile_json import profile_to_json
from weft_planner.evaluation.candidates import Candidate
from weft_planner.plan.solve import solve
from weft_planner.programs.solver import Solver
from weft_planner.rate_match import WholeWorkers, best_whole_workers, drawn_rounds, profiled_servers
from weft_planner.request.reading import Request, request_of
from weft_planner.simulation import PolicyChoice

PLANNING_SEED = 1000
"""First of the planner's seeds; judging uses small numbers."""
MOST_STRATEGIES = 16
"""As many as a pool may list."""


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """A plan as a candidate of the simulation, and the seconds and processor seconds that it took."""

    candidate: Candidate
    seconds: float
    cpu_seconds: float


def request(
    cell: Cell,
    slo: Slo,
    traffic: Traffic,
    profile: CostProfile,
    *,
    rate: float,
    strategies: Sequence[Degree],
    bidirectional: bool = True,
    seed: int = PLANNING_SEED,
) -> Request:
    """Return the planning request of a cell at so many sessions per second."""
    body: dict[str, Any] = {
        "model": {"name": cell.model, "maxModelLen": traffic.max_model_len},
        "slo": {"ttft": slo.ttft, "itl": slo.itl},
        "workload": traffic.workload(rate).model_dump(by_alias=True, exclude_none=True),
        "engine": {
            "type": ENGINE,
            "chunked": True,
            "bidirectional": bidirectional,
            "decode": {"maxNumSeqs": LARGEST_BATCH},
            "layouts": ["disaggregated", "colocated"],
        },
        "capacity": {
            "gpus": cell.gpus,
            "pools": [
                {
                    "name": POOL,
                    "gpuType": cell.gpu,
                    "gpusPerNode": cell.node_gpus,
                    "gpus": cell.gpus,
                    "parallelism": [_split(degree) for degree in strategies],
                }
            ],
        },
        "profile": profile_to_json(profile),
        "seed": seed,
    }
    return request_of(body)


def strategies_for(profile: CostProfile, cell: Cell, slo: Slo, traffic: Traffic) -> list[Degree]:
    """Return the strategies that Weft chooses from: those that both models price and that hold the context."""
    held = [n for n in cell.strategies if n in profile.degrees and profile.longest_context(n) >= traffic.max_model_len]
    return [n for n in held if peer.prices(cell, slo, traffic, n)][:MOST_STRATEGIES]


def plan_for(asked: Request, solver: Solver) -> PlanAnswer:
    """Return the plan of a request.

    Raises:
        Infeasible: no layout is possible.
    """
    clock, cpu = time.perf_counter(), time.process_time()
    plan, _ = solve(asked, solver=solver)
    seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - cpu
    return PlanAnswer(Candidate(plan.layout, plan.groups, _policy(plan, asked)), seconds, cpu_seconds)


def rate_matched(asked: Request, profile: CostProfile) -> WholeWorkers | None:
    """Return what ``weft plan --rate-match`` has for the GPUs; None where no layout holds the SLO."""
    servers = profiled_servers(asked, profile)
    both = profiled_servers(asked, without_corrections(profile)).aggregated
    return best_whole_workers(replace(servers, aggregated=both), drawn_rounds(asked), asked)


def _policy(plan: Plan, asked: Request) -> PolicyChoice:
    of = plan.policy or PlannedPolicy("colocated")
    params = {"itl_statistic": float(STATISTICS.index(asked.slo.itl_statistic))} if of.route == "weft" else {}
    return PolicyChoice(of.route, of.mode, of.binding, of.order, params, chunk_share=of.chunk_share)


def _split(degree: Degree) -> dict[str, int | bool]:
    parts = parallelism_of(degree)
    return {"tp": parts.tp, "pp": parts.pp, "dp": parts.dp, "ep": parts.ep}
