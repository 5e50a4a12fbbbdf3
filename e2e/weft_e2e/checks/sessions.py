"""Check what clients saw: answers, and failures that were told."""

import asyncio
import time
from collections.abc import Mapping, Sequence

from weft_e2e.checks.failed import CheckFailed
from weft_e2e.replay.client import Deadlines, SessionTranscript, Target, open_http, run_session, session_texts
from weft_e2e.replay.records import CLEAR_FAILURES, RoundRecord
from weft_e2e.replay.sessions import PlannedRound, PlannedSession
from weft_mock.model import answer
from weft_mock.tokenizer import chat_ids, decode, filler

FOUR_ROUNDS = PlannedSession(
    name="check",
    arrival_s=0.0,
    rounds=(
        PlannedRound(400, 24, 0.0),
        PlannedRound(120, 16, 0.05),
        PlannedRound(300, 20, 0.05),
        PlannedRound(64, 16, 0.05),
    ),
)


async def check_session_served(
    target: Target, *, session: PlannedSession = FOUR_ROUNDS, salt: int = 7, deadline_s: float = 30.0
) -> SessionTranscript:
    """Stream a session round after round and compare every reply with what the model must answer."""
    transcript = SessionTranscript(session=session.name)
    texts = session_texts(session, filler=filler, salt=salt)
    async with open_http() as http:
        await run_session(
            session,
            target,
            http=http,
            texts=texts,
            deadlines=Deadlines(round_s=deadline_s, silence_s=deadline_s, replay_s=deadline_s),
            start=time.perf_counter(),
            transcript=transcript,
        )
    failed = [r for r in transcript.records if not r.ok]
    if failed:
        raise CheckFailed(f"session {session.name}: " + "; ".join(_words(r) for r in failed))
    await asyncio.to_thread(check_answers, transcript)
    return transcript


def check_answers(transcript: SessionTranscript) -> None:
    """Compare every whole reply of a conversation with the model's own answer to the same messages."""
    for record in transcript.records:
        if not record.ok:
            continue
        at = 2 * record.index + 1
        got = transcript.messages[at]["content"]
        want = expected_reply(transcript.messages[:at], record.decode_tokens)
        if got != want:
            same = next(
                (k for k, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want))
            )
            raise CheckFailed(
                f"{record.session} round {record.index + 1} ({record.route} by {record.worker}): the answer differs "
                f"from character {same} on: {got[same : same + 30]!r} came, {want[same : same + 30]!r} is right"
            )


def expected_reply(messages: Sequence[Mapping[str, str]], tokens: int) -> str:
    """Return the text that ``tokens`` generated tokens make after these messages, end of turn ignored."""
    return decode(answer(chat_ids(messages), tokens, ignore_eos=True))


def check_no_failures(records: Sequence[RoundRecord]) -> None:
    """Require every round to have succeeded."""
    failed = [r for r in records if not r.ok]
    if failed or not records:
        shown = "; ".join(_words(r) for r in failed[:5])
        raise CheckFailed(f"{len(failed)} of {len(records)} rounds failed: {shown}")


def check_no_silent_failures(records: Sequence[RoundRecord]) -> tuple[int, int]:
    """Let rounds fail only with a clear error; return how many succeeded and how many failed clearly.

    A round that could not be sent because an earlier one of its session failed is judged by that one.
    """
    silent = [r for r in records if not r.ok and r.outcome not in CLEAR_FAILURES and r.outcome != "not_sent"]
    if silent:
        shown = "; ".join(_words(r) for r in silent[:5])
        raise CheckFailed(f"{len(silent)} of {len(records)} rounds failed without a clear error: {shown}")
    causes = {r.session for r in records if r.outcome in CLEAR_FAILURES}
    orphans = [r for r in records if r.outcome == "not_sent" and r.session not in causes]
    if orphans:
        raise CheckFailed(f"{len(orphans)} rounds were never sent and nothing says why: {_words(orphans[0])}")
    return sum(r.ok for r in records), sum(r.outcome in CLEAR_FAILURES for r in records)


def _words(record: RoundRecord) -> str:
    return f"{record.session} round {record.index + 1} {record.outcome} at {record.sent_s:.1f} s: {record.error}"
