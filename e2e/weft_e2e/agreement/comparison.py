"""Compare prediction and measurement of the same sessions, and say whether they agree. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import hypot
from statistics import stdev

from weft_planner.simulation import Outcome, Summary, summarise

TTFT_WITHIN = 0.15
ITL_WITHIN = 0.15
ATTAINMENT_WITHIN = 0.05
"""How far a measurement may lie from its prediction: shares of P95 TTFT and mean ITL, and a share of the sessions."""
SIGMAS = 1.96
"""Within so many standard deviations of their mean lie 95 % of single runs."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of both sides: seconds, or a share of all sessions where ``share`` is set.

    ``scatter`` is how far single runs of the simulator lie from ``predicted``, their mean, with 95 % probability, in
    the unit of ``within``: a measurement is one run, and a policy that chooses at random takes each run another way.
    """

    name: str
    predicted: float
    measured: float
    within: float
    share: bool = False
    scatter: float = 0.0

    @property
    def off(self) -> float:
        """Return how far the measurement is from the prediction: by a share of it, for shares the difference."""
        return self.measured - self.predicted if self.share else self.measured / self.predicted - 1

    @property
    def agrees(self) -> bool:
        """Return whether the measurement is as near as it has to be; what is no number is not."""
        return abs(self.off) <= hypot(self.within, self.scatter)

    def __str__(self) -> str:
        """Say both sides and how far they are apart."""
        if self.share:
            return f"{self.name} {self.predicted:.1%} predicted, {self.measured:.1%} measured"
        return f"{self.name} {self.predicted:.4f} s predicted, {self.measured:.4f} s measured ({self.off:+.1%})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One policy at one load: what has to agree (``figures``), and what is shown beside it (``others``).

    ``load`` is a share of the simulated capacity, ``rate`` in sessions per second; ``overhead_s`` was added to every
    predicted TTFT; ``starved`` says why the machine may have spoilt the measurement, ``waited_s`` how long a round's
    work waited for a core, in all processes together (None: not known).
    """

    policy: str
    load: float
    rate: float
    sessions: int
    rounds: int
    overhead_s: float
    figures: tuple[Figure, ...]
    others: tuple[Figure, ...]
    starved: tuple[str, ...]
    waited_s: float | None

    @property
    def disagreements(self) -> tuple[Figure, ...]:
        """Return the figures that are too far apart."""
        return tuple(figure for figure in self.figures if not figure.agrees)

    def __str__(self) -> str:
        """Say everything in one line, for messages."""
        return (
            f"{self.policy} at {self.load:.0%}: {'; '.join(map(str, self.figures))} {'; '.join(self.starved)}".rstrip()
        )


def compare(
    predicted: Sequence[Outcome],
    measured: Outcome,
    *,
    policy: str,
    load: float,
    overhead_s: float,
    others: tuple[Figure, ...] = (),
    starved: tuple[str, ...] = (),
    waited_s: float | None = None,
    scattered: bool = False,
) -> Comparison:
    """Compare runs of the simulator with one measurement of the same sample; ``others`` are shown, too.

    ``scattered``: the policy chooses at random, so that single runs count with their scatter.
    """
    runs = [replace(outcome, ttft=outcome.ttft + overhead_s) for outcome in predicted]
    simulated = summarise(runs)
    live = summarise([measured])
    singles = [summarise([one]) for one in runs] if scattered else []

    def both(name: str, value: Callable[[Summary], float], *, within: float, share: bool = False) -> Figure:
        mean = value(simulated)
        apart = SIGMAS * stdev(map(value, singles)) if singles else 0.0
        return Figure(name, mean, value(live), within, share, apart if share else apart / mean)

    return Comparison(
        policy=policy,
        load=load,
        rate=measured.sample.rate,
        sessions=live.sessions,
        rounds=live.rounds,
        overhead_s=overhead_s,
        figures=(
            both("P95 TTFT", lambda s: s.ttft.p95.value, within=TTFT_WITHIN),
            both("mean ITL", lambda s: s.itl.mean.value, within=ITL_WITHIN),
            both("attainment", lambda s: s.attained.value, within=ATTAINMENT_WITHIN, share=True),
        ),
        others=(
            both("P50 TTFT", lambda s: s.ttft.p50.value, within=TTFT_WITHIN),
            both("mean TTFT", lambda s: s.ttft.mean.value, within=TTFT_WITHIN),
            both("P95 TTFT, first rounds", lambda s: s.ttft_first.p95.value, within=TTFT_WITHIN),
            both("P95 TTFT, later rounds", lambda s: s.ttft_later.p95.value, within=TTFT_WITHIN),
            both("local share", lambda s: s.local_share, within=ATTAINMENT_WITHIN, share=True),
            *others,
        ),
        starved=starved,
        waited_s=waited_s,
    )
