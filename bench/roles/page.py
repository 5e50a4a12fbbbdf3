"""Write what was found as one page in Markdown. Pure but for the writing."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bench.paper.page import table
from bench.roles.day import ANSWERS, CONTENDERS, GPUS, ITL_S, PHASES, PROMPTS, SEQUENCES, SWITCHES, TTFT_S, Day

from weft_e2e.scenarios.arriving import Traffic

SHOWN_ERRORS = 3
PAGE = """# Role switches against restarts

`make bench-roles` writes this page from [what it measured](results.json).
Machine: {machine}.

{found}

{rows}

Sessions within the SLO by phase, and the plan at its end:

{phases}

{changes}
{failures}
## Method

- A local Kubernetes cluster with Weft's operator, Prometheus, coordinators and sidecars; {gpus} mock engines of
  Llama-3.1-8B, {sequences} sequences each, follow a cost model in real time. A service has these {gpus} GPUs and no
  more. Engines are slow, so that the machine carries all streams: *CPU used* is by engines, cluster and clients.
- The day has {count} phases of {phase_s:.0f} s. *Prompts*: {prompts}. *Answers*: {answers}. Sessions of three rounds
  arrive evenly, whatever becomes of those before them. SLO: every first token within {ttft:g} s, a session's mean gap
  within {itl:g} ms; *late* and *stalled* are the sessions above these.
- An engine starts {start_s} s later than a mock engine does, as one would that reads weights: an init container waits.
- Goodput: sessions per second that met the SLO, over the whole day. A session that failed, or did not end, missed it.
- Both plan by what they see in a window of 20 s, with the same planner and no cooldown. {contenders}
"""


def ratio(days: Sequence[Day]) -> float:
    """Return the goodput with role switches over that of the best other, NaN where any contender is missing."""
    mine = [one.goodput for one in days if one.contender == SWITCHES]
    others = [one.goodput for one in days if one.contender != SWITCHES]
    best = max(others, default=0.0)
    return mine[0] / best if len(days) == len(CONTENDERS) and mine and best else math.nan


def write(days: Sequence[Day], page: Path, *, machine: str, start_s: int, aim: float) -> str:
    """Write the page and return its first sentence and table."""
    best = ratio(days)
    missing = [name for name in CONTENDERS if name not in {one.contender for one in days}]
    verdict = (
        f"not measured yet ({', '.join(missing)} is missing)"
        if math.isnan(best)
        else f"{best:.2f} ({'met' if best >= aim else '**missed**'})"
    )
    found = f"Goodput with role switches / the better of the others, aim {aim:g}: {verdict}"
    rows = table(
        [
            "contender",
            "goodput, sessions/s",
            "within the SLO",
            "late",
            "stalled",
            "failed",
            "workers started",
            "CPU used",
            "tokens answered",
        ],
        [
            [
                one.contender,
                f"{one.goodput:.2f}",
                f"{one.attainment:.0%} of {len(one.sessions)}",
                _count(one, "late"),
                _count(one, "stalled"),
                f"{sum(session.failed for session in one.sessions)}",
                f"{one.pods}",
                f"{one.busy:.0%}" if one.busy else "-",
                f"{sum(session.answered for session in one.sessions):,}",
            ]
            for one in days
        ],
    )
    names = [name for name, _ in PHASES]
    phases = table(
        ["contender", *names],
        [
            [one.contender, *(f"{one.of_phase(k):.0%}, {layout}" for k, layout in enumerate(one.layouts))]
            for one in days
        ],
    )
    contenders = " ".join(f"*{name[0].upper()}{name[1:]}*: {what}." for name, what in CONTENDERS.items())
    text = PAGE.format(
        machine=machine, found=found, rows=rows, phases=phases, gpus=GPUS, sequences=SEQUENCES, count=len(PHASES),
        phase_s=days[0].phase_s, prompts=_words(PROMPTS), answers=_words(ANSWERS), ttft=TTFT_S, itl=1e3 * ITL_S,
        start_s=start_s, contenders=contenders, failures=_failures(days),
        changes=_changes(days),
    )  # fmt: skip
    page.write_text(text, encoding="utf-8")
    return f"{found}\n\n{rows}\n\n{phases}"


def _changes(days: Sequence[Day]) -> str:
    """Return the plans of each contender and when they came, a line for each that changed."""
    return "".join(
        f"Plans with {one.contender}: {', '.join(f'{plan} at {at_s:.0f} s' for at_s, plan in one.changes)}.\n"
        for one in days
        if len(one.changes) > 1
    )


def _count(day: Day, what: str) -> str:
    """Return how many sessions were late, or stalled; records of earlier runs have no latencies."""
    if not any(session.ttft_s for session in day.sessions):
        return "-"
    return f"{sum(getattr(session, what) for session in day.sessions)}"


def _failures(days: Sequence[Day]) -> str:
    """Return why sessions failed, a line for each contender with such; the numbers in errors are left out."""
    lines = []
    for one in days:
        found = Counter(re.sub(r"\d+", "N", session.error) for session in one.sessions if session.error)
        if found:
            words = "; ".join(f"{error} ({count})" for error, count in found.most_common(SHOWN_ERRORS))
            lines.append(f"Failures with {one.contender}: {words}.\n")
    return "\n".join(lines)


def _words(traffic: Traffic) -> str:
    first, later = traffic.rounds[:2]
    return (
        f"{traffic.sessions_per_s:g} sessions/s, {first.added_tokens} tokens in the first prompt and "
        f"{later.added_tokens} in later ones, {first.decode_tokens} in an answer"
    )
