"""Run candidates: draw paired sessions, simulate, remember each result; threads share the work, never the outcome."""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from weft_core.policies.slices import SLICE_OVERHEAD_S
from weft_core.slo import Reading
from weft_planner.evaluation import samples
from weft_planner.evaluation.candidates import Candidate, layout_of
from weft_planner.evaluation.load_bound import LoadBound
from weft_planner.evaluation.samples import Drawn, Samples
from weft_planner.evaluation.threads import CORES, in_threads
from weft_planner.programs.inputs import PlanInputs
from weft_planner.request.costs import known_model
from weft_planner.request.engines import compatibility_of, default_chunk, step_limits
from weft_planner.request.reading import Request
from weft_planner.simulation import simulate
from weft_planner.simulation.inputs import slices
from weft_planner.simulation.layout import SloClass
from weft_planner.simulation.options import LONGEST_CHUNK, Options
from weft_planner.simulation.outcome import Outcome
from weft_planner.simulation.statistics import attainment
from weft_planner.workload.sessions import Sample

if TYPE_CHECKING:
    from weft_planner.evaluation.shortlist import SearchSpace

HOPELESS = 1.2
"""Beyond the load that ideal sharing carries by this factor nothing is simulated: the queue is sure to grow."""
CUT_SHORT = "a run was ended by its limit on events: memory is so short that sequences only displace one another"
SHORT_PAST = "sessions live so long that a run begins without the oldest of them: predictions are optimistic"
SEEDS = 3
SETTLED = 3
"""Where there is room enough, latencies are those of runs this many times as short: queues settle at once."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Trial:
    """One run: a candidate at a rate (sessions per second), with a seed and a number of rounds.

    Not ``steady``: it begins empty. ``error``: lognormal sigma of real prefills and slices against predictions.
    """

    candidate: Candidate
    rate: float
    seed: int
    rounds: int
    steady: bool = True
    error: float = 0.0

    @property
    def key(self) -> tuple[str, float, int, int]:
        """Return what tells it from all other runs."""
        return self.candidate.key, self.rate, self.seed, self.rounds


@dataclass(slots=True)
class KnownRuns:
    """What a plan's runs have shown, and their sessions: for requests that differ in nothing but the objective.

    ``space``: what the plan chose among.
    """

    attained: dict[tuple[str, float, int, int], float] = field(default_factory=dict)
    samples: Drawn = field(default_factory=dict)
    space: "SearchSpace | None" = None


class Trials:
    """All runs of one plan; those in ``known`` are not run again."""

    def __init__(self, inputs: PlanInputs, known: KnownRuns | None = None) -> None:
        self._inputs = inputs
        self._request = inputs.request
        self._slo = slo_classes(inputs.request)
        known = KnownRuns() if known is None else known
        self._attained = known.attained
        self.samples = Samples(inputs, known.samples)
        self.load_bound = LoadBound(inputs)
        self._counting = threading.Lock()
        self.runs = 0
        self.events = 0

    def attained(
        self, candidates: Sequence[Candidate], rate: float, *, full: bool = False, sieve: bool = False
    ) -> list[list[float]]:
        """Return each candidate's attainment at a rate: of one run (``sieve``: a short one), or ``full`` of all seeds.

        A load far beyond what a layout could ever carry is not simulated: no session meets the SLO there.
        """
        rounds = self.samples.rounds(samples.SIEVE_ROUNDS if sieve else samples.ROUNDS, rate)
        cases = [[Trial(c, rate, seed, rounds) for seed in range(SEEDS if full else 1)] for c in candidates]
        for case in (case for row in cases for case in row):
            if self.hopeless(case.candidate, case.rate):
                self._attained[case.key] = 0.0
        new = {case.key: case for row in cases for case in row if case.key not in self._attained}
        self._attained.update(zip(new, self._evaluated(list(new.values())), strict=True))
        return [[self._attained[case.key] for case in row] for row in cases]

    def known_to_miss(self, candidate: Candidate, rate: float, share: float) -> bool:
        """Return whether a run has shown an attainment below ``share``, at this rate or a lower one."""
        return any(
            name == candidate.key and at <= rate and found < share for (name, at, _, _), found in self._attained.items()
        )

    def outcomes(self, candidate: Candidate, *, settled: bool = False) -> list[Outcome]:
        """Return the full runs at the workload's rate, one per seed; an overload is shown from its beginning only.

        ``settled``: the layout carries clearly more, so shorter runs show the same.
        """
        rate = self._request.workload.arrival_rate
        calm = not self.overloaded(candidate, rate)
        rounds = self.samples.rounds(samples.ROUNDS, rate) if calm else samples.ROUNDS // 2
        if settled and calm:
            rounds = max(samples.ROUNDS, rounds // SETTLED)
        cases = [Trial(candidate, rate, seed, rounds, steady=calm) for seed in range(SEEDS)]
        return self._each(cases, lambda outcome: outcome)

    def overloaded(self, candidate: Candidate, rate: float) -> bool:
        """Return whether a rate is more than a layout could carry however the work were shared."""
        sliced = slices(candidate.policy, options_of(self._request, candidate))
        return rate > self.load_bound.most(candidate.groups, slices=sliced)

    def hopeless(self, candidate: Candidate, rate: float) -> bool:
        """Return whether no run is needed to know that no session meets the SLO: a rate far beyond, or slow steps."""
        slowest = max(slo.itl_s for slo in self._slo)
        return self.overloaded(candidate, rate / HOPELESS) or self.load_bound.least_itl(candidate.groups) > slowest

    def _evaluated(self, cases: list[Trial]) -> list[float]:
        """Return each case's attainment; where predictions may be wrong the worse of it and of the same with errors."""
        error = self._request.routing.prediction_error
        if error == 0:
            return self._each(cases, self._attainment)
        found = self._each([*cases, *(replace(case, error=error) for case in cases)], self._attainment)
        return [min(pair) for pair in zip(found[: len(cases)], found[len(cases) :], strict=True)]

    def _attainment(self, outcome: Outcome) -> float:
        share = attainment(outcome, reading_of(self._request))
        return 0.0 if math.isnan(share) else share

    def _each(self, cases: Sequence[Trial], result: Callable[[Outcome], Result]) -> list[Result]:
        """Simulate cases in threads."""
        for case in cases:
            self._sample(case)  # drawn here, so that threads only read

        def one(case: Trial) -> tuple[Result, int]:
            outcome = self._simulate(case)
            return result(outcome), outcome.events

        found = list(in_threads(one, cases))
        with self._counting:
            self.runs += len(found)
            self.events += sum(events for _, events in found)
        return [of_case for of_case, _ in found]

    def _simulate(self, case: Trial) -> Outcome:
        with CORES:
            return simulate(
                self._sample(case),
                layout_of(self._inputs, case.candidate),
                self._inputs.profiles,
                case.candidate.policy,
                self._slo,
                options=options_of(self._request, case.candidate, error=case.error),
                seed=case.seed,
            )

    def _sample(self, case: Trial) -> Sample:
        return self.samples.at(case.rate, case.seed, rounds=case.rounds, steady=case.steady)


def remarks(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Return what a reader of a prediction from these runs should know of them."""
    found = []
    if any(outcome.cut_short for outcome in outcomes):
        found.append(CUT_SHORT)
    if any(outcome.sample.short_past for outcome in outcomes):
        found.append(SHORT_PAST)
    return tuple(found)


def reading_of(request: Request) -> Reading:
    """Return how attainment is counted."""
    return Reading(request.slo.unit, request.slo.itl_statistic)


def slo_classes(request: Request) -> tuple[SloClass, ...]:
    """Return the SLO of every session class: its own thresholds, else the service's."""
    slo = request.slo
    return tuple(SloClass(c.ttft or slo.ttft, c.itl or slo.itl, c.name or "all") for c in request.workload.mix)


def options_of(request: Request, candidate: Candidate, *, error: float = 0.0) -> Options:
    """Return how the engine behaves under a candidate: prompts run in chunks where the engine can.

    Engines know no SLO: their own chunks are as long as their token budget allows. Policy weft's slices are not their
    own: routers send them one by one. They know no sessions either: what they computed stays until others need the
    memory, and is then evicted block by block.
    ``error`` is the lognormal sigma of real prefills and slices against predictions.
    """
    weft, engine = candidate.policy.route == "weft", request.engine
    by_budget = not weft and engine.decode.max_num_batched_tokens is not None
    kind, model = compatibility_of(engine), known_model(request)
    options = Options(
        chunked=None if weft else engine.chunked or by_budget,
        prefill=step_limits(engine.prefill),
        decode=step_limits(engine.decode),
        prefill_concurrency=request.routing.prefill_concurrency,
        min_cache_hit_ratio=request.routing.min_cache_hit_ratio,
        shared_work=0.0 if model is None else model.expert_share,
        slice_turn_s=SLICE_OVERHEAD_S if weft else 0.0,
        history="read" if request.engine.bidirectional else "recompute",
        handover=kind.handover,
        prefix_cache=kind.prefix_cache,
        evicts="tokens",
        ended="keep" if kind.prefix_cache else "free",
        tiers=tuple(one.tier for one in engine.kv_tiers),
        writes=kind.writes,
        window_s=request.routing.stats_window,
        prefill_noise_sigma=error,
        chunk_noise_sigma=error,
    )
    if weft:
        return options
    decoding = {group.pool for group in candidate.groups if group.role != "prefill"}
    gpus = [pool.gpu_type for pool in request.capacity.pools if pool.name in decoding]
    own = LONGEST_CHUNK if by_budget else min(default_chunk(engine.type, gpu) for gpu in gpus or [""])
    return replace(options, chunk_limit=own, chunk_fraction=math.inf)
