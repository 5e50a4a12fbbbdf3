"""Choose the sessions of a replay, run it, say how far it is, and read the counters once it has ended."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import uvloop

from weft_e2e.demo.steps import Say
from weft_e2e.metrics import growth
from weft_e2e.replay.client import Deadlines, Target, replay
from weft_e2e.replay.records import ReplayResult, RoundRecord
from weft_e2e.replay.selection import Limits, Selection, recorded_gaps, select
from weft_e2e.replay.traces import load
from weft_e2e.waiting import WaitedTooLong, until
from weft_mock.tokenizer import filler


def choose_sessions(trace: str, limits: Limits) -> Selection:
    """Choose sessions of a trace within limits; pauses that it has not recorded come from another one.

    Raises:
        TraceError: there is no such trace.
    """
    pool = recorded_gaps(load("claude_code").sessions)
    return select(load(trace), limits, gap_pool=pool, gap_pool_name="claude_code")


def play_sessions(
    selection: Selection, target: Target, *, deadline_s: float, detail: Say, salt: int = 0
) -> ReplayResult:
    """Replay the sessions, all within ``deadline_s``, saying now and then how far it is."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(
            replay(
                selection.sessions,
                target,
                filler=filler,
                deadlines=Deadlines(replay_s=deadline_s),
                notes=selection.notes,
                on_record=progress(selection, detail),
                salt=salt,
            )
        )


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """A replay, with the metrics pages before it and after it."""

    result: ReplayResult
    before: Mapping[str, str]
    after: Mapping[str, str]


def play_and_count(
    selection: Selection,
    target: Target,
    read: Callable[[], Mapping[str, str]],
    *,
    deadline_s: float,
    detail: Say,
    salt: int = 0,
) -> ReplayRun:
    """Replay the sessions and read what routers and engines counted."""
    before = read()
    result = play_sessions(selection, target, deadline_s=deadline_s, detail=detail, salt=salt)
    return ReplayRun(result, before, at_rest(read, detail))


def at_rest(read: Callable[[], Mapping[str, str]], detail: Say, *, timeout_s: float = 15.0) -> dict[str, str]:
    """Return the metrics pages once no router serves a request: a round is counted just after its last byte.

    Where one still serves after ``timeout_s`` (a round that failed may hang on), say so and return what there is.
    """
    pages: dict[str, str] = {}

    def resting() -> bool:
        pages.clear()
        pages.update(read())
        return growth({}, pages).total("weft_router_inflight") == 0

    try:
        until(resting, what="rest", timeout_s=timeout_s, every_s=0.2)
    except WaitedTooLong:
        detail(f"a router still serves requests {timeout_s:g} s after the last round: its counts are not complete")
    return pages


def progress(selection: Selection, detail: Say, *, every_s: float = 10.0) -> Callable[[RoundRecord], None]:
    """Return a listener that says the counts every ``every_s`` seconds."""
    ends = {s.name: len(s.rounds) - 1 for s in selection.sessions}
    counts: Counter[str] = Counter()
    said = [time.monotonic()]

    def listen(record: RoundRecord) -> None:
        counts["rounds"] += 1
        counts["failed"] += not record.ok
        counts["sessions"] += record.index == ends[record.session]
        if time.monotonic() - said[0] >= every_s:
            said[0] = time.monotonic()
            detail(
                f"{record.sent_s + record.total_s:5.1f} s  {counts['rounds']} of {selection.rounds} rounds, "
                f"{counts['sessions']} of {len(ends)} sessions, {counts['failed']} failed"
            )

    return listen
