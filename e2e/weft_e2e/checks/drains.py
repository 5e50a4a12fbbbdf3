"""Check what scale-ins did to sessions: none failed, none was lost, and what the drains themselves said."""

from collections.abc import Sequence

from weft_e2e.checks.failed import CheckFailed
from weft_e2e.checks.sessions import check_answers
from weft_e2e.leaving import STOP_MARGIN_S, Gone
from weft_e2e.replay.client import SessionTranscript


def check_no_lost_sessions(transcripts: Sequence[SessionTranscript]) -> None:
    """Require every session to have gone on: each round whole, with the very words its own history leads to."""
    broken = [t for t in transcripts if not all(r.ok for r in t.records)]
    if broken or not transcripts:
        wrong = [r for t in broken for r in t.records if not r.ok][:5]
        shown = "; ".join(f"{r.session} round {r.index + 1} {r.outcome}: {r.error}" for r in wrong)
        raise CheckFailed(f"{len(broken)} of {len(transcripts)} sessions did not go on: {shown}")
    for transcript in transcripts:
        check_answers(transcript)


def check_drained(gone: Sequence[Gone], *, drain_s: float) -> None:
    """Require every worker to have drained by session: it said so, within its time, and nobody had to kill it."""
    for one in gone:
        if one.killed:
            raise CheckFailed(f"{one.worker} was killed at the end of its grace period, {one.seconds:.1f} s")
        if not one.drain:
            raise CheckFailed(f"{one.worker} never said that its drain ended")
        if float(str(one.drain["seconds"])) > drain_s + STOP_MARGIN_S:
            raise CheckFailed(f"{one.worker} drained for {one.drain['seconds']} s of {drain_s:g} s: {one.drain}")


def check_ends_early(gone: Sequence[Gone], *, drain_s: float, share: float = 0.5) -> None:
    """Require drains to end when nothing is left: at least a share of them well before their deadline."""
    early = sum(float(str(one.drain.get("seconds", drain_s))) < 0.9 * drain_s for one in gone)
    if early < share * len(gone):
        raise CheckFailed(f"only {early} of {len(gone)} drains ended before their deadline of {drain_s:g} s")


def check_sessions_moved(gone: Sequence[Gone], *, least: int) -> None:
    """Require so many sessions to have been handed over with the handle of their KV."""
    moved = sum(int(str(one.drain.get("moved_by_handle", 0))) for one in gone)
    if moved < least:
        raise CheckFailed(f"{moved} sessions moved with their handle, at least {least} should have")


def check_fewer_recomputed(ours: float, theirs: float, *, share: float = 0.5) -> None:
    """Require at least a share of recomputed prompt tokens less than another way of scaling in."""
    if ours > (1 - share) * theirs:
        raise CheckFailed(f"{ours:.0f} prompt tokens were computed again, {theirs:.0f} the other way: less is asked")
