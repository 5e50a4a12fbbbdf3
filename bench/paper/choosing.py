"""Ask the planner: which of weft's modes a cell's layout should run, and which layout its GPUs should form.

The planner sees the setting's cost model but not its prediction errors, and sessions of other seeds than those that
its choice is scored on.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import fmean

from bench.paper.cells import CONTEXT, GPU, GPUS_PER_NODE, MODEL_NAMES, Cell, Setting
from bench.paper.goodputs import GOAL

from weft_core.efficiency import Efficiency
from weft_core.parallelism import Degree
from weft_core.plan import PlannedGroup
from weft_core.policies.registry import MODES
from weft_core.policies.routing.weft import STATISTICS
from weft_core.slo import Reading
from weft_planner.evaluation.candidates import Candidate, chosen_modes, runnable_policies
from weft_planner.evaluation.goodput_search import STEP, Finalist, finalists, goodputs
from weft_planner.evaluation.trials import Trials
from weft_planner.plan.solve import solve
from weft_planner.programs.inputs import prepare_inputs
from weft_planner.request.reading import Request, request_of
from weft_planner.simulation import AMPD, Layout, PolicyChoice, layout_of

PLANNING_SEED = 1000
"""First of the planner's seeds; scoring uses small numbers."""
FINALISTS = 3
PREDICTION_ERROR = 0.3
"""Lognormal sigma that the planner takes its own predictions to be wrong by, in every setting alike."""
WORTH_A_CHANGE = 1.05
"""AMPD's own rule stays where no mode of Weft's carries this much more: below, sessions of other seeds may differ."""
RENAMED = {
    "prefill_overhead_s": "prefillOverhead",
    "decode_overhead_s": "decodeOverhead",
    "kv_latency_s": "kvLatency",
    "compute": "compute",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """What the planner says: layout and policy."""

    layout: Layout
    policy: PolicyChoice

    def __str__(self) -> str:
        return f"{self.layout} {name_of(self.policy)}"


def name_of(policy: PolicyChoice) -> str:
    """Name a mode of Weft's rule, with the share of the ITL SLO for its slices where it is not the usual one."""
    share = "" if policy.chunk_share is None else f" {policy.chunk_share:g}"
    return (policy.mode or policy.route) + share


def weft(mode: str, reading: Reading, *, share: float | None = None) -> PolicyChoice:
    """Return Weft's rule in a mode, reading the ITL as the SLO does; ``share`` of the ITL SLO for its slices."""
    return PolicyChoice(mode=mode, params={"itl_statistic": float(STATISTICS.index(reading.itl))}, chunk_share=share)


def request(cell: Cell, setting: Setting, reading: Reading, *, rate: float) -> Request:
    """Return the planning request of a cell, with all that Weft could run."""
    slo = cell.slo
    return request_of(
        {
            "model": {"name": MODEL_NAMES[cell.model], "maxModelLen": CONTEXT},
            "slo": {"ttft": slo.ttft_s, "itl": slo.itl_s, "unit": reading.unit, "itlStatistic": reading.itl},
            "workload": {**cell.workload.model_dump(by_alias=True, exclude_none=True), "arrivalRate": rate},
            "engine": {"type": "vllm", "chunked": True, "layouts": ["disaggregated", "colocated", "symmetric"]},
            "routing": {"modes": list(MODES), "predictionError": PREDICTION_ERROR},
            "capacity": {
                "gpus": cell.gpus,
                "pools": [
                    {
                        "name": "gpu",
                        "gpuType": GPU,
                        "gpusPerNode": GPUS_PER_NODE,
                        "gpus": cell.gpus,
                        "degrees": [1, 2, 4, 8],
                    }
                ],
            },
            "analytic": _changed(setting.efficiency),
            "seed": PLANNING_SEED,
        }
    )


def _changed(efficiency: Efficiency) -> Mapping[str, float]:
    default = asdict(Efficiency())
    return {RENAMED[name]: value for name, value in asdict(efficiency).items() if value != default[name]}


def mode_by_default(cell: Cell, setting: Setting, reading: Reading) -> str:
    """Return the first of the modes that a plan chooses from where a service names none."""
    return chosen_modes(request(cell, setting, reading, rate=1.0))[0]


def best_mode(cell: Cell, setting: Setting, reading: Reading, *, rate: float) -> PolicyChoice:
    """Return the mode with which the planner's simulations carry most on the cell's published layout.

    Each mode counts with the worse of runs as predicted and runs with prediction errors; AMPD's rule is the last
    resort. ``rate`` in sessions per second is only where it begins to look.
    """
    layout = cell.layout
    groups = (
        PlannedGroup("prefill", layout.prefill[0].degree, len(layout.prefill), "gpu"),
        PlannedGroup("decode", layout.decode[0].degree, len(layout.decode), "gpu"),
    )
    inputs = prepare_inputs(request(cell, setting, reading, rate=rate))
    trials = Trials(inputs)
    modes = [Candidate("disaggregated", groups, policy) for policy in runnable_policies(inputs.request)]
    picked = finalists(trials, modes, rate=rate, goal=GOAL, start=1.0, count=FINALISTS)
    carried = [_goodput(trials, one, rate=rate) for one in picked]
    best = max(carried)
    kept = Candidate("disaggregated", groups, AMPD)
    (standing,) = finalists(trials, [kept], rate=rate, goal=GOAL, start=1.0, count=1)
    if best < WORTH_A_CHANGE * _goodput(trials, standing, rate=rate):
        return AMPD
    return picked[carried.index(best)].candidate.policy


def _goodput(trials: Trials, one: Finalist, *, rate: float) -> float:
    return fmean(goodputs(trials, one.candidate, one.bracket, rate=rate, goal=GOAL))


def best_plan(cell: Cell, setting: Setting, reading: Reading, *, rate: float) -> Choice:
    """Return the planner's plan for the cell's GPUs: layout, kind and policy."""
    plan, _ = solve(request(cell, setting, reading, rate=rate))
    counts: dict[str, dict[Degree, int]] = {"prefill": {}, "decode": {}}
    for group in plan.groups:
        of_role = counts["prefill" if group.role == "prefill" else "decode"]
        of_role[group.degree] = of_role.get(group.degree, 0) + group.replicas
    layout = layout_of(plan.layout, prefill=counts["prefill"], decode=counts["decode"], gpus_per_node=GPUS_PER_NODE)
    if plan.policy is None or plan.policy.route != "weft":
        route = "colocated" if plan.policy is None else plan.policy.route
        share = None if plan.policy is None else plan.policy.chunk_share
        return Choice(layout, PolicyChoice(route=route, mode="", chunk_share=share))
    return Choice(layout, weft(plan.policy.mode, reading, share=plan.policy.chunk_share))


def rung(rate: float) -> float:
    """Return the power of the planner's ladder nearest to a rate, so that a plan does not depend on its last digits."""
    return float(STEP ** round(math.log(rate) / math.log(STEP)))
