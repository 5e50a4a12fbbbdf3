"""Hold the same sessions with a live stack and with the simulator, without tiers and with one, at a few rates."""

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from bench.kv.live_scenario import ALONE, WITH_TIER, Scenario, solitary
from bench.kv.sessions import LIMITS, after_long_pauses
from bench.live.rows import decision_reasons
from bench.live.search import rate_of, step_of
from bench.paper.goodputs import GOAL

from weft_e2e.agreement.comparison import ATTAINMENT_WITHIN, ITL_WITHIN, TTFT_WITHIN, Figure
from weft_e2e.agreement.live import Measured, ReplayFailedError, measure
from weft_e2e.metrics import Growth
from weft_e2e.stack import StackConfig, running
from weft_planner.simulation import Outcome
from weft_planner.simulation.records import SERVED
from weft_planner.simulation.statistics import attainment
from weft_planner.workload.distributions import Floats
from weft_planner.workload.sessions import Sample

log = logging.getLogger("bench.kv")

SEED = 1
TAIL_S = 60.0
"""Longest time that a run goes on after its last minute, in seconds of the machine."""
START_S = 20.0
"""What a stack's start, its end and a run's prediction take."""
SHARE_WITHIN = 0.02
"""How far a share of history may lie from its prediction: as much as the aim for it."""
WAIT_LIMIT_S = 0.4
"""How long a round's work may wait for a core, in all processes: as in ``bench.live``."""
STRIDE = 2
"""Steps of the ladder to the next rate, 19 %, where the goal was held at all rates, or at none."""
SOLITARY_ROUNDS = 3
SHORT, LONG = 300.0, float(LIMITS.max_added_tokens)
"""Tokens of the prompts of solitary rounds."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one side of a run shows, in seconds of the GPUs.

    ``met``: share of sessions within the SLO. ``resumed_p95``: of the TTFT of rounds after a long pause. ``recomputed``
    and ``loaded``: shares of all history.
    """

    met: float
    ttft_p95: float
    resumed_p95: float
    itl_mean: float
    recomputed: float
    loaded: float


@dataclass(frozen=True, slots=True)
class Overhead:
    """What routers, client and machine add to a round's TTFT, in seconds of the GPUs: texts are read by five processes.

    ``each_s`` is for every new token.
    """

    fixed_s: float = 0.0
    each_s: float = 0.0

    def of(self, tokens: Floats) -> Floats:
        """Return it for rounds with so many new tokens."""
        found: Floats = self.fixed_s + self.each_s * tokens
        return found


NO_OVERHEAD = Overhead()


@dataclass(frozen=True, slots=True)
class Run:
    """One run: sessions at a rate (in a second of the GPUs), what was predicted of them, and what was measured.

    ``resumed`` rounds came after a long pause. ``reasons`` counts the router's decisions. ``starved`` says why the
    machine may have spoilt the run; ``waited_s`` is how long a round's work waited for a core.
    """

    tiers: str
    rate: float
    sessions: int
    rounds: int
    counted: int
    resumed: int
    failed: int
    predicted: Figures
    measured: Figures
    reasons: Mapping[str, int]
    starved: tuple[str, ...]
    waited_s: float | None
    wall_s: float

    @property
    def compared(self) -> tuple[Figure, ...]:
        """Return both sides of each figure, and how far apart they may be."""
        return tuple(
            Figure(name, getattr(self.predicted, key), getattr(self.measured, key), within, share=share)
            for key, name, within, share in COMPARED
        )


COMPARED = (
    ("met", "sessions within the SLO", ATTAINMENT_WITHIN, True),
    ("ttft_p95", "TTFT P95", TTFT_WITHIN, False),
    ("resumed_p95", "TTFT P95 after a long pause", TTFT_WITHIN, False),
    ("itl_mean", "mean ITL", ITL_WITHIN, False),
    ("recomputed", "history computed again", SHARE_WITHIN, True),
)
"""Field, words, bound, and whether it is a share."""


@dataclass
class LiveRecord:
    """All runs of one measurement; goodputs by tiers are simulated, sessions in a second of the GPUs.

    Predictions have the ``overhead`` in their TTFT. ``complete``: no run was left out for its time.
    """

    speed: float
    minutes: float
    overhead: Overhead = NO_OVERHEAD
    goodputs: dict[str, float] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    complete: bool = True
    machine: str = ""
    took_minutes: float = 0.0

    def of(self, tiers: str) -> list[Run]:
        """Return the runs with some tiers, the lowest rate first."""
        return sorted((run for run in self.runs if run.tiers == tiers), key=lambda run: run.rate)


def rates(goodputs: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return what to run first: either set of tiers 9 % below and above its simulated goodput."""
    steps = {name: step_of(goodputs[name]) for name in (ALONE, WITH_TIER)}
    return [(name, rate_of(step + by)) for by in (-1, 1) for name, step in steps.items()]


def further(record: LiveRecord) -> tuple[str, float] | None:
    """Return what to run next, None when nothing lacks.

    A set of tiers that held the goal at all its rates, or at none, is run at another rate: first the GPUs alone. Then
    the tier is run at the highest rate at which they held it.
    """
    return _beyond(record.of(ALONE)) or _at_the_same_rate(record) or _beyond(record.of(WITH_TIER))


def _beyond(runs: Sequence[Run]) -> tuple[str, float] | None:
    held = [run.measured.met >= GOAL for run in runs]
    if not runs or (any(held) and not all(held)):
        return None
    step = step_of(runs[-1].rate) + STRIDE if all(held) else step_of(runs[0].rate) - STRIDE
    return runs[0].tiers, rate_of(step)


def _at_the_same_rate(record: LiveRecord) -> tuple[str, float] | None:
    held = [run.rate for run in record.of(ALONE) if run.measured.met >= GOAL]
    missing = held and all(run.rate != held[-1] for run in record.of(WITH_TIER))
    return (WITH_TIER, held[-1]) if missing else None


def measure_all(
    scenario: Scenario,
    *,
    limit_minutes: float,
    before: LiveRecord | None = None,
    keep: Callable[[LiveRecord], None] = lambda _: None,
) -> LiveRecord:
    """Make all runs that end within ``limit_minutes``; ``keep`` gets the record after each of them.

    Those of ``before``, an earlier record of the same scenario, are not made again.

    Raises:
        ReplayFailedError: a prompt had another length than the sample says.
    """
    began = time.monotonic()
    record = before or LiveRecord(scenario.speed, scenario.minutes)
    took = record.took_minutes
    if not record.goodputs:
        record.goodputs = {name: scenario.goodput(name, seeds=(SEED,)) for name in (ALONE, WITH_TIER)}
        log.info("simulated goodputs, sessions/s: %s", record.goodputs)
        record.overhead = measure_overhead(scenario)
        log.info("rounds alone take longer than predicted: %s", record.overhead)
    record.complete = True
    planned = [one for one in rates(record.goodputs) if one not in {(run.tiers, run.rate) for run in record.runs}]
    each_s = 60 * scenario.minutes / scenario.speed + TAIL_S + START_S
    while following := planned.pop(0) if planned else further(record):
        if time.monotonic() - began + each_s > 60 * limit_minutes:
            record.complete = False
            log.warning("no time is left for %s at %.3f sessions/s", *following)
            break
        tiers, rate = following
        run = run_once(scenario, tiers, rate, overhead=record.overhead)
        log.info("%s at %.3f sessions/s, %.0f s: %s", tiers, rate, run.wall_s, "; ".join(map(str, run.compared)))
        for words in run.starved:
            log.warning("the machine was too busy: %s", words)
        record.runs.append(run)
        record.took_minutes = took + (time.monotonic() - began) / 60
        keep(record)
    return record


def predict_again(record: LiveRecord) -> LiveRecord:
    """Return a record with the same measurements, and goodputs and predictions by the simulator as it is now."""
    scenario = Scenario(record.speed, record.minutes)

    def again(run: Run) -> Run:
        predicted = scenario.predict(scenario.sample(rate=run.rate, seed=SEED), run.tiers)
        return replace(run, predicted=predicted_figures(predicted, record.speed, record.overhead))

    goodputs = {name: scenario.goodput(name, seeds=(SEED,)) for name in (ALONE, WITH_TIER)}
    return replace(record, goodputs=goodputs, runs=[again(run) for run in record.runs])


def measure_tiny(scenario: Scenario, *, rate: float) -> LiveRecord:
    """Make one run without tiers and one with: only to see that they run."""
    record = LiveRecord(scenario.speed, scenario.minutes, goodputs=dict.fromkeys((ALONE, WITH_TIER), rate))
    record.runs = [run_once(scenario, name, rate) for name in (ALONE, WITH_TIER)]
    return record


def measure_overhead(scenario: Scenario) -> Overhead:
    """Return what rounds that meet nobody take beyond their simulation: the least of a few, short and long ones."""
    alone = scenario.simulate(solitary(scenario, tokens=[LONG], apart_s=1.0), ALONE)
    apart_s = 0.5 + 2 * float(alone.finished[0])
    tokens = [SHORT, LONG] * SOLITARY_ROUNDS
    predicted = scenario.simulate(solitary(scenario, tokens=tokens, apart_s=apart_s), ALONE)
    measured, _ = _held(scenario.stack(ALONE), predicted)
    later = scenario.speed * (measured.outcome.ttft - predicted.ttft)
    return overhead_of(short_s=float(later[::2].min()), long_s=float(later[1::2].min()))


def overhead_of(*, short_s: float, long_s: float) -> Overhead:
    """Return the overhead by that of a short and of a long round, which is the larger one."""
    each = max(0.0, long_s - short_s) / (LONG - SHORT)
    return Overhead(short_s - SHORT * each, each)


def run_once(scenario: Scenario, tiers: str, rate: float, *, overhead: Overhead = NO_OVERHEAD, seed: int = SEED) -> Run:
    """Hold a sample's sessions with a stack of its own.

    Raises:
        ReplayFailedError: see ``measure``.
    """
    sample = scenario.sample(rate=rate, seed=seed)
    predicted = scenario.predict(sample, tiers)
    measured, wall_s = _held(scenario.stack(tiers), predicted[0])
    outcome, counted = measured.outcome, measured.counted
    if counted is None:
        raise ReplayFailedError("routers and engines do not say what they counted")
    return Run(
        tiers=tiers,
        rate=rate,
        sessions=sample.sessions,
        rounds=sample.rows,
        counted=int(outcome.counted[sample.first_row].sum()),
        resumed=len(after_long_pauses(outcome, scenario.speed)),
        failed=int((outcome.state != SERVED).sum()),
        predicted=predicted_figures(predicted, scenario.speed, overhead),
        measured=_figures(outcome, scenario.speed, *history_shares(counted)),
        reasons=decision_reasons(counted),
        starved=measured.starved_beyond(WAIT_LIMIT_S),
        waited_s=None if measured.waited_s is None else round(measured.waited_s, 4),
        wall_s=round(wall_s, 1),
    )


def _held(config: StackConfig, predicted: Outcome) -> tuple[Measured, float]:
    began = time.monotonic()
    with ExitStack() as ends:
        folder = ends.enter_context(TemporaryDirectory(prefix="weft-bench-kv-", ignore_cleanup_errors=True))
        stack = ends.enter_context(running(config, Path(folder)))
        measured = asyncio.run(measure(stack, predicted, run="live", failures=True, tail_s=_tail(predicted.sample)))
    return measured, time.monotonic() - began


def _tail(sample: Sample) -> float:
    """Return how long after its last arrival a run may go on: all recorded pauses are over then."""
    ends = sample.starts(sample.gap).max() + sample.gap.max(initial=0.0)
    return float(ends - sample.arrival[-1]) + TAIL_S


def predicted_figures(runs: Sequence[Outcome], speed: float, overhead: Overhead = NO_OVERHEAD) -> Figures:
    """Return the mean of simulated runs of one sample, with the overhead that live rounds have."""
    found = []
    for run in runs:
        late = replace(run, ttft=run.ttft + overhead.of(run.sample.increment) / speed)
        history = max(float(run.sample.history[run.state == SERVED].sum()), 1.0)
        found.append(_figures(late, speed, run.recomputed_tokens / history, run.loaded_tokens / history))
    return Figures(*(float(np.mean(values)) for values in zip(*(asdict(one).values() for one in found), strict=True)))


def _figures(outcome: Outcome, speed: float, recomputed: float, loaded: float) -> Figures:
    counted = outcome.counted
    return Figures(
        met=attainment(outcome),
        ttft_p95=speed * _p95(outcome.ttft[counted]),
        resumed_p95=speed * _p95(after_long_pauses(outcome, speed)),
        itl_mean=speed * float(outcome.itl_mean[counted & (outcome.gaps > 0)].mean()),
        recomputed=recomputed,
        loaded=loaded,
    )


def _p95(values: Floats) -> float:
    """Return a P95 that was seen; a round without an answer counts as 1e6 seconds."""
    return float(np.quantile(np.minimum(values, 1e6), 0.95)) if len(values) else math.nan


def history_shares(counted: Growth) -> tuple[float, float]:
    """Return which shares of the history of all rounds were computed again, and loaded from tiers."""
    history = {
        kind: counted.total("weft_router_history_tokens_total", kind=kind) for kind in ("read", "cached", "recomputed")
    }
    all_of_it = max(sum(history.values()), 1.0)
    loaded = counted.total("weft_mock_tier_loaded_tokens_total")
    return history["recomputed"] / all_of_it, loaded / all_of_it


def save(record: LiveRecord, path: Path) -> None:
    """Write a measurement as JSON."""
    path.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> LiveRecord:
    """Read what ``save`` wrote."""
    body = json.loads(path.read_text(encoding="utf-8"))
    runs = [
        Run(**{**run, "predicted": Figures(**run["predicted"]), "measured": Figures(**run["measured"]),
               "starved": tuple(run["starved"])})
        for run in body.pop("runs")
    ]  # fmt: skip
    return LiveRecord(**{**body, "overhead": Overhead(**body["overhead"])}, runs=runs)
