"""Compare the planner's choice with an exhaustive search over all layouts, on random services."""

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from bench.paper.cells import GPUS_PER_NODE
from bench.paper.choosing import weft
from bench.paper.goodputs import GOAL, MEAN, OCTAVES, PER_OCTAVE, Carried, rate_of, search, step_of

from weft_core.parallelism import gpus_of
from weft_core.plan import PlannedGroup
from weft_core.slo import Slo
from weft_planner.evaluation.candidates import Candidate, layout_of
from weft_planner.evaluation.load_bound import LoadBound
from weft_planner.evaluation.trials import options_of, slo_classes
from weft_planner.plan.solve import solve
from weft_planner.programs.inputs import PlanInputs, prepare_inputs
from weft_planner.request.reading import Request, request_of
from weft_planner.simulation import PolicyChoice, simulate
from weft_planner.simulation.statistics import attainment
from weft_planner.workload.sessions import Sample, Size, draw

MODELS = ("Qwen/Qwen3-8B", "Qwen/Qwen3-32B", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct",
          "mistralai/Mixtral-8x7B-Instruct-v0.1", "Qwen/Qwen3-30B-A3B")  # fmt: skip
GPU_TYPES = ("nvidia-h20", "nvidia-h100", "nvidia-h200", "nvidia-a100-80")
MODE = "imd"
SHORT_SESSIONS = 200
LONG_SESSIONS = 800
SCREENING_SEED, SCORING_SEEDS = 90, (91, 92)
FINALISTS = 4
LOADS = (0.15, 0.5)
"""The service's load, as a share of what its GPUs could carry if all work were shared ideally."""
HOPELESS = 2.0
"""Beyond what ideal sharing carries by this factor nothing is simulated: no session meets its SLO there."""


@dataclass(frozen=True, slots=True)
class Regret:
    """One random service: the planner's layout and the best of all, sessions per second with the same sessions."""

    service: str
    planned: str
    planned_rate: float
    best: str
    best_rate: float
    layouts: int

    @property
    def share(self) -> float:
        """Return the share of the best goodput that the plan gives away; below 0 the search's screening erred."""
        return 1 - self.planned_rate / self.best_rate if self.best_rate > 0 else 0.0


def random_request(number: int) -> Request:
    """Return a random service of 4, 8 or 16 GPUs, some of whose power it needs.

    Its SLO is a few times what its engine needs when it is idle.
    """
    dice = random.Random(number)  # noqa: S311 - draws an example
    gpus = dice.choice((4, 8, 8, 16))
    model = dice.choice(MODELS)
    lengths = {
        "arrivalRate": 1.0,
        "rounds": round(dice.uniform(1.5, 8), 2),
        "firstPrompt": round(math.exp(dice.uniform(math.log(200), math.log(4000)))),
        "increment": round(math.exp(dice.uniform(math.log(50), math.log(1500)))),
        "decode": round(math.exp(dice.uniform(math.log(20), math.log(300)))),
        "gap": round(dice.uniform(0.2, 3), 2),
    }
    body: dict[str, object] = {
        "model": {"name": model},
        "workload": lengths,
        "engine": {"type": "vllm", "chunked": True, "layouts": ["disaggregated", "colocated", "symmetric"]},
        "routing": {"mode": MODE},
        "capacity": {
            "gpus": gpus,
            "pools": [
                {
                    "name": "gpu",
                    "gpuType": dice.choice(GPU_TYPES),
                    "gpusPerNode": GPUS_PER_NODE,
                    "gpus": gpus,
                    "degrees": [1, 2, 4, 8],
                }
            ],
        },
        "seed": number,
    }
    slo = _slo(request_of({**body, "slo": {"ttft": 10.0, "itl": 1.0}}), dice)
    body["slo"] = {"ttft": slo.ttft_s, "itl": slo.itl_s}
    inputs = prepare_inputs(request_of(body))
    rate = most(inputs, all_layouts(inputs)) * dice.uniform(*LOADS)
    return request_of({**body, "workload": {**lengths, "arrivalRate": float(f"{rate:.3g}")}})


def _slo(asked: Request, dice: random.Random) -> Slo:
    inputs = prepare_inputs(asked)
    profile = inputs.profiles["gpu"]
    degree = max(inputs.degrees["gpu"])
    alone = profile.t_pre(history=0, increment=3 * asked.workload.first_prompt.mean, degree=degree)
    step = profile.t_dec(batch=8, context=8 * asked.workload.first_prompt.mean, degree=degree)
    return Slo(ttft_s=round(alone * dice.uniform(1.5, 5), 4), itl_s=round(step * dice.uniform(1.5, 4), 4))


def regret(number: int) -> Regret:
    """Plan a random service, search all its layouts exhaustively, and score both with sessions neither has seen."""
    asked = random_request(number)
    inputs = prepare_inputs(asked)
    plan, _ = solve(asked)
    policy = weft(MODE, MEAN)
    mine = Candidate(
        plan.layout, plan.groups, policy if plan.layout != "colocated" else PolicyChoice("colocated", mode="")
    )
    every = list(all_layouts(inputs))
    score = _Score(inputs)
    start = step_of(0.5 * most(inputs, every))  # what ideal sharing could carry at all is an octave above
    best = score.screened(every, start - PER_OCTAVE)
    rated = {one.key: _rate(score.goodput(one, start)) for one in [*best, mine]}
    winner = max(best, key=lambda one: (rated[one.key], one.key))
    name = f"{asked.model.name.split('/')[1]} on {asked.capacity.gpus} x {asked.capacity.pools[0].gpu_type}"
    return Regret(name, f"{mine}", rated[mine.key], f"{winner}", rated[winner.key], len(every))


def most(inputs: PlanInputs, layouts: Iterable[Candidate]) -> float:
    """Return the sessions per second that the best layout could carry if its workers shared all work ideally."""
    load_bound = LoadBound(inputs)
    return max(load_bound.most(one.groups) for one in layouts)


def _rate(carried: Carried | None) -> float:
    return carried.rate if carried is not None else 0.0


def all_layouts(inputs: PlanInputs) -> Iterator[Candidate]:
    """Yield every layout with one degree per role that the GPUs allow, and every co-located and symmetric one."""
    gpus = inputs.request.capacity.gpus
    degrees = [gpus_of(degree) for degree in inputs.degrees["gpu"]]  # by tensors alone, as the services ask for
    policy = weft(MODE, MEAN)
    for m in degrees:
        for j in range(1, gpus // m + 1):
            decode = PlannedGroup("decode", m, j, "gpu")
            yield Candidate("colocated", (decode,), PolicyChoice("colocated", mode=""))
            if j > 1:
                yield Candidate("symmetric", (replace(decode, role="both"),), policy)
            for n in degrees:
                for k in range(1, (gpus - m * j) // n + 1):
                    if n % m == 0 or m % n == 0:
                        yield Candidate("disaggregated", (PlannedGroup("prefill", n, k, "gpu"), decode), policy)


class _Score:
    def __init__(self, inputs: PlanInputs) -> None:
        self._inputs = inputs
        self._carrying = LoadBound(inputs)
        self._shares: dict[tuple[str, int, int, int], float] = {}
        self._samples: dict[tuple[int, int, int], Sample] = {}

    def screened(self, layouts: list[Candidate], start: int) -> list[Candidate]:
        """Return the layouts that hold the goal longest while the load rises, by short runs."""
        left, step = layouts, start
        stride = PER_OCTAVE // 4
        while step > start - OCTAVES * PER_OCTAVE and self._holding(left, step) < FINALISTS:
            step -= 2 * stride
        while step < start + OCTAVES * PER_OCTAVE:
            held = [one for one in left if self.share(one, step, SCREENING_SEED, SHORT_SESSIONS) >= GOAL]
            if len(held) < FINALISTS:
                rest = [one for one in left if one not in held]
                rest.sort(key=lambda one: (-self.share(one, step, SCREENING_SEED, SHORT_SESSIONS), one.key))
                return held + rest[: FINALISTS - len(held)]
            left, step = held, step + stride
        return left[:FINALISTS]

    def _holding(self, layouts: list[Candidate], step: int) -> int:
        return sum(self.share(one, step, SCREENING_SEED, SHORT_SESSIONS) >= GOAL for one in layouts)

    def goodput(self, one: Candidate, start: int) -> Carried | None:
        """Return a layout's goodput by longer runs."""
        return search(lambda step: [self.share(one, step, seed, LONG_SESSIONS) for seed in SCORING_SEEDS], start)

    def share(self, one: Candidate, step: int, seed: int, sessions: int) -> float:
        """Return the share of sessions within the SLO in one run."""
        key = (one.key, step, seed, sessions)
        if key not in self._shares and rate_of(step) > HOPELESS * self._carrying.most(one.groups):
            self._shares[key] = 0.0
        if key not in self._shares:
            request = self._inputs.request
            outcome = simulate(
                self._sample(step, seed, sessions),
                layout_of(self._inputs, one),
                self._inputs.profiles,
                one.policy,
                slo_classes(request),
                options=options_of(request, one),
                seed=seed,
            )
            self._shares[key] = attainment(outcome, MEAN)
        return self._shares[key]

    def _sample(self, step: int, seed: int, sessions: int) -> Sample:
        key = (step, seed, sessions)
        if key not in self._samples:
            request = self._inputs.request
            self._samples[key] = draw(
                request.workload,
                max_model_len=request.model.max_model_len,
                round_seconds=request.slo.ttft + request.workload.mean_decode * request.slo.itl,
                seed=seed,
                rate=rate_of(step),
                size=Size(sessions=sessions),
            )
        return self._samples[key]
