"""What the simulator says beforehand: which mode the default runs in, each contender's goodput, and each run."""

from collections.abc import Sequence
from statistics import fmean

from bench.live.cells import CONTEXT, GPU, MODEL, Cell
from bench.live.contenders import Contender
from bench.live.record import Predicted
from bench.live.search import goodput_of, next_step, rate_of, step_of
from bench.live.workloads import sample_of, workload_of
from bench.paper.goodputs import GOAL

from weft_e2e.agreement.scenario import shaken
from weft_planner.evaluation.candidates import Candidate, runnable_policies
from weft_planner.evaluation.goodput_search import finalists, goodputs
from weft_planner.evaluation.trials import Trials
from weft_planner.programs.inputs import prepare_inputs
from weft_planner.request.reading import Request, request_of
from weft_planner.simulation import Outcome, PolicyChoice, simulate, summarise
from weft_planner.workload.sessions import Sample

GPUS_PER_NODE = 8
GUESS = 1.0
"""Sessions per second at which searches begin."""
STEPS = 20
"""Rates that a simulated search tries at most."""
SHAKEN = 5
"""Simulated runs whose mean is a run's prediction."""
STAND_IN = PolicyChoice(route="colocated", mode="", order="fcfs")
"""The shape of an outcome for co-located peers, which are not simulated; none of its figures is shown."""


def default_policy(cell: Cell) -> str:
    """Return the policy, with its mode, that a service of this layout runs by default."""
    if cell.colocated:
        return "colocated"
    inputs = prepare_inputs(_request(cell))
    trials = Trials(inputs)
    modes = [Candidate(cell.layout_kind, cell.groups, policy) for policy in runnable_policies(inputs.request)]
    picked = finalists(trials, modes, rate=GUESS, goal=GOAL, start=1.0, count=len(modes))
    carried = [fmean(goodputs(trials, one.candidate, one.bracket, rate=GUESS, goal=GOAL)) for one in picked]
    return f"weft/{picked[carried.index(max(carried))].candidate.policy.mode}"


def _request(cell: Cell) -> Request:
    gpus = sum(group.gpus for group in cell.groups)
    pool = {"name": "gpu", "gpuType": GPU, "gpusPerNode": GPUS_PER_NODE, "gpus": gpus, "degrees": [1, 2, 4, 8]}
    workload = workload_of(cell.kind).model_dump(by_alias=True, exclude_none=True)
    return request_of(
        {
            "model": {"name": MODEL, "maxModelLen": CONTEXT},
            "slo": {"ttft": cell.ttft_s, "itl": cell.itl_s},
            "workload": {**workload, "arrivalRate": GUESS},
            "engine": {"type": "vllm", "chunked": True},
            "capacity": {"gpus": gpus, "pools": [pool]},
        }
    )


def predicted_goodput(cell: Cell, contender: Contender, *, seeds: Sequence[int], sessions: int) -> float | None:
    """Return the goodput that simulating the very runs gives, sessions/s; None where nobody can simulate the contender.

    Where no rate holds the goal it is 0.
    """
    if contender.choice(cell) is None:
        return None
    shares: dict[int, dict[int, float]] = {}
    while (step := next_step(shares, seeds, start=step_of(GUESS), resolution=1, most=STEPS)) is not None:
        for seed in seeds:
            sample = sample_of(cell.kind, rate=rate_of(step), seed=seed, sessions=sessions)
            _, predicted = predict(cell, contender, sample, 1.0, count=1)
            shares.setdefault(step, {})[seed] = predicted.met if predicted is not None else 0.0
    found = goodput_of(shares)
    return 0.0 if found.bound == "<" else found.rate


def predict(
    cell: Cell, contender: Contender, sample: Sample, slow: float, *, count: int = SHAKEN
) -> tuple[Outcome, Predicted | None]:
    """Return one simulated run, and the mean of a few where the simulator knows the contender (seconds on the GPU)."""
    choice = contender.choice(cell)
    runs = [
        simulate(
            shaken(sample, seed) if seed else sample,
            cell.layout,
            cell.costs(slow),
            choice or STAND_IN,
            [cell.slo(slow)],
            options=contender.options(cell, slow),
            seed=seed,
        )
        for seed in range(count if choice is not None else 1)
    ]
    if choice is None:
        return runs[0], None
    summary = summarise(runs)
    return runs[0], Predicted(
        met=summary.attained.value,
        ttft_p95=summary.ttft.p95.value / slow,
        itl_mean=summary.itl.mean.value / slow,
        local=summary.local_share,
    )
