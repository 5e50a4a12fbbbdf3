"""Write what live runs showed as a section of the page, beside what was predicted of them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from bench.kv.live_runs import COMPARED, LONG, SHORT, LiveRecord, Run
from bench.kv.live_scenario import ALONE, ANSWER, CHUNK, DEGREE, GPU, KV_TOKENS, MODEL, POLICY, SLO, WARM_UP, WITH_TIER
from bench.kv.sessions import LONG_PAUSE_S
from bench.kv.simulated import GOODPUT_AIM, RECOMPUTED_AIM, TTFT_AIM
from bench.live.search import Goodput, ratio
from bench.paper.goodputs import GOAL
from bench.paper.page import table

from weft_e2e.agreement.comparison import ATTAINMENT_WITHIN, TTFT_WITHIN

HEADING = "## Live"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One aim: what it is, what was found live and in the simulation of the same sessions, and whether it is met live.

    None: not measured.
    """

    words: str
    live: str
    simulated: str
    met: bool | None

    @property
    def word(self) -> str:
        """Return the verdict in a word."""
        return "not known" if self.met is None else "met" if self.met else "**missed**"


def verdicts(record: LiveRecord) -> list[Verdict]:
    """Return the aims of the page, as live runs show them, and how many runs agree with their predictions."""
    found = [*_of_one_rate(record), _goodput(record)]
    agree = {name: sum(run.compared[k].agrees for run in record.runs) for k, (_, name, _, _) in enumerate(COMPARED)}
    count = len(record.runs)
    words = f"of {count}: {', '.join(f'{name} {number}' for name, number in agree.items())}"
    found.append(Verdict("runs that agree, all", words, "-", set(agree.values()) == {count} if count else None))
    return found


def _of_one_rate(record: LiveRecord) -> list[Verdict]:
    pair = pair_of(record)
    aims = (
        f"history computed again, at most {RECOMPUTED_AIM:.0%}",
        f"TTFT P95 after a long pause, at most {TTFT_AIM:g} x",
    )
    if pair is None:
        return [Verdict(words, "-", "-", None) for words in aims]
    alone, tier = pair

    def times(side: str) -> float:
        return float(getattr(tier, side).resumed_p95 / getattr(alone, side).resumed_p95)

    return [
        Verdict(
            aims[0],
            f"{tier.measured.recomputed:.1%} ({alone.measured.recomputed:.1%} without)",
            f"{tier.predicted.recomputed:.1%} ({alone.predicted.recomputed:.1%})",
            tier.measured.recomputed <= RECOMPUTED_AIM,
        ),
        Verdict(aims[1], f"{times('measured'):.2f} x", f"{times('predicted'):.2f} x", times("measured") <= TTFT_AIM),
    ]


def _goodput(record: LiveRecord) -> Verdict:
    words = f"goodput, at least {GOODPUT_AIM:g} x"
    alone, tier = (goodput_of_runs(record.of(name)) for name in (ALONE, WITH_TIER))
    simulated = record.goodputs[WITH_TIER] / record.goodputs[ALONE]
    if alone is None or tier is None:
        return Verdict(words, "-", f"{simulated:.2f} x", None)
    gain = ratio(tier, alone)
    met = None if gain.bound == "<" and gain.value >= GOODPUT_AIM else gain.value >= GOODPUT_AIM
    bound = {">": "at least ", "<": "at most ", "": ""}[gain.bound]
    return Verdict(words, f"{bound}{gain.value:.2f} x", f"{simulated:.2f} x", met)


def pair_of(record: LiveRecord) -> tuple[Run, Run] | None:
    """Return the runs without and with the tier at the highest rate of both at which the GPUs alone held the goal.

    Where they held it at none, it is the lowest rate of both.
    """
    tier = {run.rate: run for run in record.of(WITH_TIER)}
    pairs = [(run, tier[run.rate]) for run in record.of(ALONE) if run.rate in tier]
    held = [pair for pair in pairs if pair[0].measured.met >= GOAL]
    return held[-1] if held else pairs[0] if pairs else None


def goodput_of_runs(runs: Sequence[Run]) -> Goodput | None:
    """Return the goodput that runs of one seed show, the lowest rate first: by straight lines between rates.

    Where no run holds the goal, or all do, the nearest rate bounds it.
    """
    points = [(run.rate, run.measured.met) for run in runs]
    if not points:
        return None
    if points[0][1] < GOAL:
        return Goodput(points[0][0], {1: points[0][0]}, "<")
    for (low, above), (high, below) in pairwise(points):
        if below < GOAL:
            rate = low + (high - low) * (above - GOAL) / (above - below)
            return Goodput(rate, {1: rate})
    return Goodput(points[-1][0], {1: points[-1][0]}, ">")


def section(record: LiveRecord) -> str:
    """Return the section of the page."""
    aims = [[one.words, one.live, one.simulated, one.word] for one in verdicts(record)]
    titles = ["KV", "sessions/s", *(name for _, name, _, _ in COMPARED)]
    rows = [[run.tiers, f"{run.rate:.3f}", *(both(run, k) for k in range(len(COMPARED)))] for run in record.runs]
    return PAGE.format(
        heading=HEADING,
        machine=record.machine,
        took=record.took_minutes,
        runs=len(record.runs),
        complete="" if record.complete else " Runs were left out for lack of time.",
        aims=table([f"{WITH_TIER} against {ALONE}", "live", "simulated", ""], aims),
        rows=table(titles, rows),
        sizes=table(SIZES, [_size(run) for run in record.runs]),
        attainment=100 * ATTAINMENT_WITHIN,
        ttft=TTFT_WITHIN,
        short=float(record.overhead.of(np.array(SHORT))), long=float(record.overhead.of(np.array(LONG))), tokens=LONG,
        model=MODEL, gpu=GPU, degree=DEGREE, policy=POLICY, chunk=CHUNK, kv=KV_TOKENS, answer=ANSWER, slo=SLO.ttft_s,
        itl=1e3 * SLO.itl_s, speed=record.speed, minutes=record.minutes, warm=WARM_UP, pause=LONG_PAUSE_S,
        alone=record.goodputs[ALONE], tier=record.goodputs[WITH_TIER],
    )  # fmt: skip


def both(run: Run, place: int) -> str:
    """Return a figure of a run, live and as it was predicted; in bold where they are too far apart."""
    one = run.compared[place]
    if one.share:
        words = f"{one.measured:.1%} ({one.predicted:.1%})"
    elif one.predicted < 0.1:
        words = f"{1e3 * one.measured:.1f} ms ({1e3 * one.predicted:.1f} ms)"
    else:
        words = f"{one.measured:.2f} s ({one.predicted:.2f} s)"
    return words if one.agrees else f"**{words}**"


def _size(run: Run) -> list[str]:
    routes = ", ".join(f"{words} {count}" for words, count in run.reasons.items())
    waited = "-" if run.waited_s is None else f"{1e3 * run.waited_s:.0f} ms"
    return [
        run.tiers,
        f"{run.rate:.3f}",
        f"{run.sessions} ({run.counted})",
        f"{run.rounds} ({run.resumed})",
        str(run.failed),
        waited + (" †" if run.starved else ""),
        routes,
    ]


SIZES = [
    "KV",
    "sessions/s",
    "sessions (counted)",
    "rounds (after a long pause)",
    "failed",
    "waits for a core",
    "routes",
]
PAGE = """{heading}

`make bench-kv BENCH_ARGS=--live` writes this section: {runs} runs on mock engines, {took:.0f} minutes.{complete}
Machine: {machine}.

{aims}

Live, and in brackets what the simulator says of the same sessions. Bold: further apart than {attainment:.0f} points of
the sessions, {ttft:.0%} of a time, or 2 points of the history.

{rows}

{sizes}

† The machine was too busy.

- **Engines.** One prefill and one decode worker of {model} on {degree} {gpu}
  each, with sidecars, a coordinator and Redis; policy `{policy}`; steps of up to {chunk:,} prompt tokens. Engines have
  {kv:,} tokens of KV: with all that fits, memory would be full at rates that two cores do not bear. SLO: TTFT
  {slo:g} s, mean ITL {itl:g} ms. Simulated goodputs of the same sessions: {alone:.3f} sessions/s without the tier, and
  {tier:.3f} with it.
- **Sessions** of the same trace with its recorded pauses, answers up to {answer} tokens, arrive for
  {minutes:.0f} minutes and are cut to the rounds that begin in them. Those of the first {warm:.0%} are not
  counted. A long pause is one of more than {pause:.0f} s. Either set of tiers is run around its simulated goodput
  until the live one lies between two rates. The first aims are of the highest rate at which the GPUs alone hold the
  goal, 90 % of the sessions.
- **Time.** Everything is {speed:g} times as fast: steps, transfers, loads from the tier, pauses, arrivals and the SLO.
  Figures are in the time of the GPUs. What routers, client and machine add to a round is not faster: {short:.2f} s of
  this time for a round that meets nobody, {long:.2f} s with {tokens:,.0f} new tokens. Predictions have it in their
  TTFT.
- **What does not scale.** Engines keep no KV for prefill workers to read (`bidirectional: false`): its time to live has
  a margin of 5 s, and engines that are full are looked at once a second. Sidecars know by KV events what engines
  dropped. Predictions are not corrected (`predictionCorrection: off`): the milliseconds on the way to an engine would
  count as its slowness. Heartbeats, once a second, decide nothing with one worker of each role: the sidecar itself
  counts the queue. Records of sessions live for an hour, leases of KV on its way for 30 s, longer than anything here.
- **Agreement.** A P95 after long pauses is of few rounds (above, beside the rounds of a run), and moves by a fifth
  and more when sessions come some milliseconds later. The highest rate without the tier is beyond the goodput, where a
  queue that builds up a little earlier decides.
"""
