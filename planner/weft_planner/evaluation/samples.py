"""Draw the sessions that a plan's candidates run with: as many as queues take to show, from some time before 0 on."""

from weft_planner.programs.inputs import PlanInputs
from weft_planner.workload.sessions import Sample, Size, draw

SIEVE_ROUNDS = 500
"""Rounds that tell which half of many candidates to look at no longer."""
ROUNDS = 1600
"""Rounds of a run: differences of a few points in attainment show, and all seeds together see thousands of sessions.
Runs of one seed sort out the weak, and are part of the finalists' runs of every seed."""
SHORTEST_S = 20.0
LIFETIMES = 3.0
"""Seconds of arrivals, and mean lifetimes of a session, at least: near saturation queues take that long to show."""
MOST_ROUNDS = 12_000
MOST_TOKENS = 1e6
"""Rounds and decoded tokens that a run is made longer up to: a tenth of a second."""
PAST = 0.5
"""Mean lifetimes of a session that a run begins before time 0: by then batches, queues and caches have filled. Twice as
much moves goodput by 1 % (60 layouts of the examples, down by 4 % at most) and takes a third longer."""

Drawn = dict[tuple[float, int, int, bool], Sample]
"""Samples by rate, seed, rounds, and whether they are in steady state."""


class Samples:
    """Sessions of any rate and seed, drawn once, so that all candidates meet the same ones."""

    def __init__(self, inputs: PlanInputs, drawn: Drawn | None = None) -> None:
        """Keep what is drawn in ``drawn``."""
        self._inputs = inputs
        self._drawn: Drawn = {} if drawn is None else drawn
        workload = inputs.request.workload
        self._lifetime = workload.mean_rounds * (workload.mean_gap + inputs.round_seconds)

    def at(self, rate: float, seed: int, *, rounds: int, steady: bool = True) -> Sample:
        """Return the sessions of a rate (per second) and seed."""
        key = (rate, seed, rounds, steady)
        if key not in self._drawn:
            request, seconds = self._inputs.request, self._inputs.round_seconds
            drawn = draw(
                request.workload,
                max_model_len=request.model.max_model_len,
                round_seconds=seconds,
                seed=request.seed + seed,
                rate=rate,
                size=Size(rounds=rounds),
                steady=steady,
            )
            before = PAST * self._lifetime
            self._drawn[key] = drawn.since(-before, round_seconds=seconds) if before < drawn.past else drawn
        return self._drawn[key]

    def rounds(self, least: int, rate: float) -> int:
        """Return how many rounds to observe at a rate; ``least`` of ROUNDS is the share of the time as well."""
        workload = self._inputs.request.workload
        seconds = max(SHORTEST_S, LIFETIMES * self._lifetime) * least / ROUNDS
        most = min(MOST_ROUNDS, MOST_TOKENS / max(1.0, workload.mean_decode)) * least / ROUNDS
        return int(max(least, min(most, seconds * rate * workload.mean_rounds)))
