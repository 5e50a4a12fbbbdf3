"""The service's routing beside the baseline, row by row: what a reader looks at first. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from weft_e2e.demo.baseline import best_without_local
from weft_e2e.demo.facts import Baseline, Facts, bytes_words, group_words, seconds_words, share_words
from weft_e2e.demo.measures import Distribution, Summary
from weft_e2e.metrics import KvFlow

ALIKE = 0.05
"""Share below which two figures of one run say nothing of which is better."""
CHANCE = 2
"""Sessions of difference that say nothing either."""

PURPOSE = (
    "In a conversation of many rounds, the KV cache of what was said so far is on a decode worker. For each round Weft "
    "decides where the new tokens are prefilled: there, beside other streams (local), or on a prefill worker, with KV "
    "moved to it and back (remote). Plain disaggregation prefills every round remotely."
)

Better = Literal["service", "baseline", ""]


@dataclass(frozen=True, slots=True)
class Row:
    """One measure of both replays, in words, and which of them did better ("" for alike, or neither)."""

    name: str
    service: str
    baseline: str
    better: Better = ""


def rows(facts: Facts) -> tuple[Row, ...]:
    """Return the measures of the service's routing and of the baseline; none where there is no baseline."""
    other = facts.baseline
    if other is None:
        return ()
    mine, theirs = facts.summary, other.summary
    served, share = mine.default_attained, theirs.default_attained
    found = [
        Row(
            "Sessions within the SLO",
            share_words(served.met, served.total),
            share_words(share.met, share.total),
            _better(-served.met, -share.met) if abs(served.met - share.met) > CHANCE else "",
        ),
        _latency(facts, "First token of later rounds, median", lambda s: s.ttft_later, lambda d: d.p50),
        _latency(facts, "First token of later rounds, P95", lambda s: s.ttft_later, lambda d: d.p95),
        _latency(facts, "First token of first rounds, P95", lambda s: s.ttft_first, lambda d: d.p95),
        _latency(facts, "Gap between tokens, P95 of rounds", lambda s: s.itl_rounds, lambda d: d.p95),
        Row("Prefills run locally", _local(mine), _local(theirs)),
    ]
    if facts.kv is not None and other.kv is not None:
        moved, too = _moved(facts.kv), _moved(other.kv)
        found.append(Row("KV moved between workers", bytes_words(moved), bytes_words(too), _better(moved, too)))
    carried = _carried(facts)
    return (*found, *([] if carried is None else [carried]))


def _carried(facts: Facts) -> Row | None:
    """Return what the planner predicts that each carries, on the best workers for it that were weighed."""
    best, mine = best_without_local(facts.plan), facts.plan.predicted.goodput
    if best is None or best.predicted.goodput is None or mine is None:
        return None
    theirs = best.predicted.goodput.value
    better = _better(-mine.value, -theirs)
    return Row("Sessions/s within the SLO, predicted", f"{mine.value:.2f}", f"{theirs:.2f}", better)


def caveats(facts: Facts) -> tuple[str, ...]:
    """Say what the comparison does not show."""
    if facts.baseline is None:
        return ()
    found = [
        "Both replays ran one after the other on the same workers, which the planner chose for the service's routing."
    ]
    best = best_without_local(facts.plan)
    if best is not None and _carried(facts) is not None:
        groups = ", ".join(group_words(group) for group in best.groups)
        found.append(
            "The prediction in the last row gives each its own workers; for remote prefills alone, the best that the "
            f"planner weighed are {groups}."
        )
    itl = next(row for row in rows(facts) if row.name.startswith("Gap"))
    if itl.better == "baseline":
        found.append("The price of local prefills: longer gaps between the tokens of other streams.")
    found.append(f"{facts.summary.sessions} sessions are few: a difference of {CHANCE} or less is chance.")
    return tuple(found)


def _latency(
    facts: Facts, name: str, of: Callable[[Summary], Distribution | None], figure: Callable[[Distribution], float]
) -> Row:
    other: Baseline | None = facts.baseline
    mine, theirs = of(facts.summary), None if other is None else of(other.summary)
    if mine is None or theirs is None:
        return Row(name, "-" if mine is None else seconds_words(figure(mine)), "-")
    return Row(name, seconds_words(figure(mine)), seconds_words(figure(theirs)), _better(figure(mine), figure(theirs)))


def _better(mine: float, theirs: float) -> Better:
    """Tell which of two figures is better where less is."""
    if abs(mine - theirs) <= ALIKE * max(abs(mine), abs(theirs)):
        return ""
    return "service" if mine < theirs else "baseline"


def _local(summary: Summary) -> str:
    return share_words(summary.routes.get("local", 0), summary.rounds_ok)


def _moved(kv: KvFlow) -> float:
    return kv.prefill_to_decode_bytes + kv.decode_to_prefill_bytes
