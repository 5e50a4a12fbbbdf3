"""Show what memory below the GPUs would bring to a plan: the same workers and policy with each set of KV tiers."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft_core.plan import Plan
from weft_core.prediction import Prediction
from weft_planner.evaluation.candidates import Candidate
from weft_planner.evaluation.goodput_search import CLOSE, GoodputBracket, goodputs
from weft_planner.evaluation.predictions import predict
from weft_planner.evaluation.trials import Trials
from weft_planner.programs.inputs import prepare_inputs
from weft_planner.request.parts import KVTierSize
from weft_planner.request.reading import Request
from weft_planner.simulation.loading import load_simulator
from weft_planner.simulation.records import SERVED
from weft_planner.simulation.statistics import estimate
from weft_planner.stages import Progress
from weft_planner.study.naming import policy_of

Tiers = tuple[KVTierSize, ...]
SIMULATING = "simulating KV tiers"


@dataclass(frozen=True, slots=True)
class TierRow:
    """What a set of tiers gives: what is predicted at the workload's own rate, and the shares of history tokens that
    are computed again and loaded from a tier there.
    """

    tiers: Tiers
    predicted: Prediction
    recomputed: float
    loaded: float

    @property
    def goodput(self) -> float:
        """Return the sessions per second up to which the SLO holds."""
        return 0.0 if self.predicted.goodput is None else self.predicted.goodput.value

    @property
    def size(self) -> float:
        """Return the bytes that a worker has in all tiers."""
        return math.fsum(one.size for one in self.tiers)


def tier_rows(request: Request, plan: Plan, choices: Sequence[Tiers], *, progress: Progress) -> Iterator[TierRow]:
    """Yield what a plan's workers do with each set of tiers, as soon as it is simulated; their number stays.

    Raises:
        ValueError: the plan was made without a simulation, so that it names no policy.
    """
    if plan.policy is None:
        raise ValueError("plan.policy: a plan by phases alone names no policy; plan with simulation")
    load_simulator(progress)
    candidate = Candidate(plan.layout, plan.groups, policy_of(plan.policy))
    rate, goal = request.workload.arrival_rate, request.slo.attainment
    for at, tiers in enumerate(choices):
        progress(SIMULATING, at, len(choices))
        engine = request.engine.model_copy(update={"kv_tiers": tiers})
        inputs = prepare_inputs(request.model_copy(update={"engine": engine}))
        trials = Trials(inputs)
        carried = goodputs(trials, candidate, GoodputBracket(1.0, math.inf), rate=rate, goal=goal)
        outcomes = trials.outcomes(candidate)
        predicted = predict(
            inputs.request, plan.groups, outcomes, inputs.profiles, goodput=estimate(carried),
            overloaded=trials.overloaded(candidate, rate),
        )  # fmt: skip
        history = math.fsum(float(o.sample.history[o.state == SERVED].sum()) for o in outcomes) or math.inf
        recomputed, loaded = (
            math.fsum(tokens) / history
            for tokens in ([o.recomputed_tokens for o in outcomes], [o.loaded_tokens for o in outcomes])
        )
        yield TierRow(tiers, predicted, recomputed, loaded)
    progress(SIMULATING, len(choices), len(choices))


def least_sufficient(rows: Sequence[TierRow]) -> TierRow:
    """Return the row with the least memory of those whose goodput is as good as the best."""
    most = max(row.goodput for row in rows)
    return min((row for row in rows if row.goodput >= (1 - CLOSE) * most), key=lambda row: row.size)
