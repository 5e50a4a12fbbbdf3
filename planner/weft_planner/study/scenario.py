"""One layout under one policy, ready to be simulated at any rate, seed and speed of the GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from weft_core.cost import CostProfile
from weft_core.kv_tiers import KVTier
from weft_core.policies.retention import Retention
from weft_core.slo import Reading
from weft_planner.evaluation import samples
from weft_planner.evaluation.candidates import Candidate, layout_of
from weft_planner.evaluation.trials import options_of, reading_of, slo_classes
from weft_planner.programs.inputs import PlanInputs
from weft_planner.simulation import simulate
from weft_planner.simulation.goodput import Goodput, goodput
from weft_planner.simulation.layout import SloClass
from weft_planner.simulation.options import Options
from weft_planner.simulation.outcome import Outcome
from weft_planner.stages import Progress
from weft_planner.workload.sessions import Sample, Size, draw

ROUNDS = 4000
"""Rounds of one run: 170 lie beyond the P95."""


@dataclass(slots=True)
class Sessions:
    """Draws sessions once for each rate and seed, so that every scenario meets the same ones."""

    inputs: PlanInputs
    rounds: int = ROUNDS
    _drawn: dict[tuple[float, int], Sample] = field(default_factory=dict)

    def at(self, rate: float, seed: int) -> Sample:
        """Return the sessions of a rate; the same seed gives the same ones, closer together or further apart."""
        key = (rate, seed)
        if key not in self._drawn:
            self._drawn[key] = self.drawn(rate, seed)
        return self._drawn[key]

    def drawn(self, rate: float, seed: int) -> Sample:
        """Return the same without keeping them."""
        request = self.inputs.request
        return draw(
            request.workload,
            max_model_len=request.model.max_model_len,
            round_seconds=request.slo.ttft + request.workload.mean_decode * request.slo.itl,
            seed=request.seed + seed,
            rate=rate,
            size=Size(rounds=self.rounds),
        )


@dataclass(slots=True)
class PlanSessions(Sessions):
    """Draws sessions as plans do: as many as queues take to show, and few of those that began before time 0.

    ``rounds`` of ``samples.ROUNDS`` is the share of their time.
    """

    def drawn(self, rate: float, seed: int) -> Sample:
        """Return the same sessions as a plan's runs at this rate, and seed, have."""
        drawing = samples.Samples(self.inputs)
        return drawing.at(rate, seed, rounds=drawing.rounds(self.rounds, rate))


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated; ``speed`` is that of the GPUs against the cost profile's: 0.8 takes a quarter longer.

    ``error``: lognormal sigma of what prefills and slices really take against the profile, which the rules go by.
    ``retention``: which idle sessions' KV is evicted first; ``tiers``: memory below each worker's GPUs that has it
    then, those of the service where there is none.
    """

    sessions: Sessions
    candidate: Candidate
    speed: float = 1.0
    error: float = 0.0
    retention: Retention = "lru"
    tiers: tuple[KVTier, ...] = ()

    @property
    def name(self) -> str:
        """Return the layout in short."""
        return str(self.candidate)

    @property
    def reading(self) -> Reading:
        """Return how attainment is counted."""
        return reading_of(self.sessions.inputs.request)

    @property
    def slo(self) -> tuple[SloClass, ...]:
        """Return the SLO of every session class."""
        return slo_classes(self.sessions.inputs.request)

    def run(self, rate: float, seed: int, *, timeline_s: float = 0.0) -> Outcome:
        """Simulate at a rate with a seed.

        Raises:
            CostProfileError: the profile lacks a degree or transfer that the layout needs.
            SimulationError: the layout contradicts itself.
        """
        inputs = self.sessions.inputs
        options = replace(self._options, timeline_s=timeline_s)
        return simulate(
            self.sessions.at(rate, seed),
            layout_of(inputs, self.candidate),
            self._profiles(inputs.profiles),
            self.candidate.policy,
            self.slo,
            options=options,
            seed=seed,
        )

    def goodput(self, *, guess: float, seeds: int, progress: Progress, what: str) -> Goodput:
        """Search the most sessions per second of which the goal's share stays within the SLO."""
        inputs = self.sessions.inputs

        def sample_at(rate: float, seed: int) -> Sample:
            progress(f"{what}, goodput", seed, seeds)
            return self.sessions.drawn(rate, seed)

        return goodput(
            sample_at,
            layout_of(inputs, self.candidate),
            self._profiles(inputs.profiles),
            self.candidate.policy,
            self.slo,
            guess=guess,
            seeds=range(seeds),
            reading=self.reading,
            target=inputs.request.slo.attainment,
            options=self._options,
        )

    @property
    def _options(self) -> Options:
        known = options_of(self.sessions.inputs.request, self.candidate)
        return replace(
            known,
            prefill_noise_sigma=self.error,
            chunk_noise_sigma=self.error,
            retention=self.retention,
            tiers=self.tiers or known.tiers,
        )

    def _profiles(self, profiles: Mapping[str, CostProfile]) -> Mapping[str, CostProfile]:
        if self.speed == 1.0:
            return profiles
        return {pool: at_speed(profile, self.speed) for pool, profile in profiles.items()}


def at_speed(profile: CostProfile, speed: float) -> CostProfile:
    """Return the profile of GPUs that compute and read memory ``speed`` times as fast; links stay as they are."""
    return replace(profile, degrees={n: costs.slower(1 / speed) for n, costs in profile.degrees.items()})
