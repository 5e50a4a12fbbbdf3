"""Replay sessions concurrently over streaming chat completions and measure each round.

One task per session; all on one event loop, so that a small machine can carry many streams. Nothing is retried
and nothing is dropped: a round that fails is recorded with how it ended, and so are the rounds it prevented.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import aiohttp
import orjson

from weft_e2e.replay.load import LoadMeter
from weft_e2e.replay.records import Outcome, Phase, ReplayResult, RoundRecord
from weft_e2e.replay.sessions import PlannedRound, PlannedSession
from weft_e2e.replay.sse import EventSplitter

CLASS_HEADER = "X-Weft-Class"

Message = dict[str, str]
Filler = Callable[[int, int], str]


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send requests: ``url`` without a path, the served model's name, and a key where one is needed.

    ``run`` goes before every session's name in ``X-Session-Id``, so that a second replay does not continue the first.
    ``request_class`` is the class that requests name, "" for the service's default.
    """

    url: str
    model: str
    api_key: str | None = None
    run: str = ""
    request_class: str = ""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Bounds of waiting, in seconds: for one round, for silence within a stream, and for the whole replay."""

    round_s: float = 120.0
    silence_s: float = 60.0
    replay_s: float = 300.0


@dataclass(slots=True)
class SessionTranscript:
    """A conversation as it was held: every message sent or received, and the record of each round."""

    session: str
    messages: list[Message] = field(default_factory=list)
    records: list[RoundRecord] = field(default_factory=list)


@dataclass(slots=True)
class _Answer:
    """What one stream has told so far; ``times`` holds the arrival of each event with text."""

    times: list[float] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    status: int | None = None
    route: str | None = None
    worker: str | None = None
    reason: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    done: bool = False


class _RoundFailed(Exception):  # noqa: N818 - flow inside this module, never seen outside
    def __init__(self, outcome: Outcome, error: str) -> None:
        super().__init__(error)
        self.outcome, self.error = outcome, error


async def replay(
    sessions: Sequence[PlannedSession],
    target: Target,
    *,
    filler: Filler,
    deadlines: Deadlines = Deadlines(),
    notes: Sequence[str] = (),
    on_record: Callable[[RoundRecord], None] | None = None,
    salt: int = 0,
) -> ReplayResult:
    """Run all sessions at their arrival times and return every round's record, in order of sending.

    Another ``salt`` gives other texts of the same lengths: a second replay finds no prompt in an engine's prefix cache.
    """
    texts = {s.name: session_texts(s, filler=filler, salt=salt * len(sessions) + k) for k, s in enumerate(sessions)}
    transcripts = [SessionTranscript(session=s.name) for s in sessions]
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    meter = LoadMeter()
    async with open_http() as http, meter:
        start = time.perf_counter()
        runs = [
            asyncio.create_task(
                run_session(
                    s,
                    target,
                    http=http,
                    texts=texts[s.name],
                    deadlines=deadlines,
                    start=start,
                    transcript=t,
                    on_record=on_record,
                )
            )
            for s, t in zip(sessions, transcripts, strict=True)
        ]
        # Each round keeps the deadlines itself; the margin only guards against a client that does not.
        _done, late = await asyncio.wait(runs, timeout=deadlines.replay_s + 10.0)
        for task in late:
            task.cancel()
        outcomes = await asyncio.gather(*runs, return_exceptions=True)
        wall = time.perf_counter() - start
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    records = sorted((r for t in transcripts for r in t.records), key=lambda r: (r.sent_s, r.session, r.index))
    return ReplayResult(
        records=tuple(records),
        started_at=started_at,
        wall_s=wall,
        load=meter.result,
        deadline_hit=bool(late) or wall >= deadlines.replay_s,
        notes=tuple(notes),
    )


def open_http() -> aiohttp.ClientSession:
    """Return a client without a limit of connections; each round sets its own deadlines."""
    # A router that ends closes connections that were idle for a second. A request that crosses the end of its
    # connection fails and may not be sent again by itself, so connections are kept for less.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=0.5)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False)


def session_texts(session: PlannedSession, *, filler: Filler, salt: int) -> tuple[str, ...]:
    """Return the text each round adds, of exactly its token count; made before the clock starts."""
    return tuple(filler(r.added_tokens, salt * 1000 + k) for k, r in enumerate(session.rounds))


async def run_session(
    session: PlannedSession,
    target: Target,
    *,
    http: aiohttp.ClientSession,
    texts: Sequence[str],
    deadlines: Deadlines,
    start: float,
    transcript: SessionTranscript,
    on_record: Callable[[RoundRecord], None] | None = None,
    leaves: Callable[[], bool] = lambda: False,
) -> None:
    """Hold one conversation, round after round; the replies go into the history exactly as received.

    Before each round ``leaves`` tells whether the client has had enough: what it does not ask then is no failure and
    not recorded.
    """
    stopped = "the client stopped"
    count = len(session.rounds)
    ends = start + deadlines.replay_s
    try:
        for index, planned in enumerate(session.rounds):
            now = time.perf_counter()
            wait = start + session.arrival_s - now if index == 0 else planned.gap_s
            await asyncio.sleep(max(min(wait, ends - now), 0.0))
            if time.perf_counter() >= ends:
                stopped = f"the replay's deadline of {deadlines.replay_s:g} s passed"
                break
            if leaves():
                count = index
                break
            transcript.messages.append({"role": "user", "content": texts[index]})
            record, reply = await _round(
                session.name,
                index,
                planned,
                target=target,
                http=http,
                messages=transcript.messages,
                deadlines=deadlines,
                start=start,
            )
            transcript.records.append(record)
            if on_record is not None:
                on_record(record)
            if not record.ok:
                stopped = f"round {index + 1} ended with: {record.outcome}"
                break
            transcript.messages.append({"role": "assistant", "content": reply})
    finally:
        for index in range(len(transcript.records), count):
            transcript.records.append(_not_sent(session, index, stopped=stopped, start=start))


def _not_sent(session: PlannedSession, index: int, *, stopped: str, start: float) -> RoundRecord:
    planned = session.rounds[index]
    return RoundRecord(
        session=session.name,
        index=index,
        phase=_phase(index),
        added_tokens=planned.added_tokens,
        decode_tokens=planned.decode_tokens,
        sent_s=time.perf_counter() - start,
        total_s=0.0,
        outcome="not_sent",
        error=f"not sent: {stopped}",
    )


def _phase(index: int) -> Phase:
    return "first" if index == 0 else "later"


async def _round(
    session: str,
    index: int,
    planned: PlannedRound,
    *,
    target: Target,
    http: aiohttp.ClientSession,
    messages: Sequence[Message],
    deadlines: Deadlines,
    start: float,
) -> tuple[RoundRecord, str]:
    body = orjson.dumps(
        {
            "model": target.model,
            "messages": messages,
            "max_tokens": planned.decode_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    headers = {"Content-Type": "application/json", "X-Session-Id": f"{target.run}{session}"}
    if target.request_class:
        headers[CLASS_HEADER] = target.request_class
    if target.api_key is not None:
        headers["Authorization"] = f"Bearer {target.api_key}"
    answer = _Answer()
    outcome: Outcome = "ok"
    error: str | None = None
    sent = time.perf_counter()
    try:
        async with asyncio.timeout(min(deadlines.round_s, start + deadlines.replay_s - sent)):
            await _stream(http, target, body=body, headers=headers, answer=answer, silence_s=deadlines.silence_s)
        if answer.completion_tokens is None:
            outcome, error = "malformed", "no usage came, though stream_options asked for it"
        elif answer.completion_tokens != planned.decode_tokens:
            outcome = "malformed"
            error = f"{answer.completion_tokens} tokens came, {planned.decode_tokens} were asked for with ignore_eos"
    except _RoundFailed as failed:
        outcome, error = failed.outcome, failed.error
    except TimeoutError:  # asyncio.timeout, and aiohttp's ServerTimeoutError which is one
        outcome = "deadline"
        error = f"no end within {time.perf_counter() - sent:.1f} s, {len(answer.times)} events had come"
    except (aiohttp.ClientError, OSError) as failed:
        # A reset while a stream is open is as silent for a user as a truncated one; kept apart from it here.
        outcome, error = "connection", f"{type(failed).__name__}: {failed}"
    ended = time.perf_counter()
    times = answer.times
    record = RoundRecord(
        session=session,
        index=index,
        phase=_phase(index),
        added_tokens=planned.added_tokens,
        decode_tokens=planned.decode_tokens,
        sent_s=sent - start,
        total_s=ended - sent,
        outcome=outcome,
        error=error,
        status=answer.status,
        ttft_s=times[0] - sent if times else None,
        gaps_s=tuple(round(b - a, 6) for a, b in itertools.pairwise(times)),
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        completion_tokens=answer.completion_tokens,
        finish_reason=answer.finish_reason,
        route=answer.route,
        worker=answer.worker,
        reason=answer.reason,
    )
    return record, "".join(answer.parts)


async def _stream(
    http: aiohttp.ClientSession,
    target: Target,
    *,
    body: bytes,
    headers: dict[str, str],
    answer: _Answer,
    silence_s: float,
) -> None:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=silence_s)
    async with http.post(f"{target.url}/v1/chat/completions", data=body, headers=headers, timeout=timeout) as response:
        answer.status = response.status
        answer.route = response.headers.get("X-Weft-Route")
        answer.worker = response.headers.get("X-Weft-Worker")
        answer.reason = response.headers.get("X-Weft-Reason")
        if response.status != 200:
            raise _refusal(response.status, await response.content.read(65536))
        splitter = EventSplitter()
        async for chunk in response.content.iter_any():
            now = time.perf_counter()
            for data in splitter.feed(chunk):
                _take(data, answer=answer, now=now)
    if not answer.done:
        raise _RoundFailed("truncated", f"the stream ended without [DONE] after {len(answer.times)} events")


def _refusal(status: int, body: bytes) -> _RoundFailed:
    """Return the failure of a non-200 answer: clear only when the body is OpenAI's error form with a message."""
    try:
        message = orjson.loads(body)["error"]["message"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return _RoundFailed("malformed", f"HTTP {status} without an error message: {body[:120]!r}")
    return _RoundFailed("refused", f"HTTP {status}: {message}")


def _take(data: bytes, *, answer: _Answer, now: float) -> None:
    if data == b"[DONE]":
        answer.done = True
        return
    try:
        event = orjson.loads(data)
        if "error" in event:
            raise _RoundFailed("stream_error", str(event["error"].get("message", event["error"])))
        for choice in event.get("choices", ()):
            text = choice.get("delta", {}).get("content")
            if text:
                answer.times.append(now)
                answer.parts.append(text)
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        usage = event.get("usage")
        if usage:
            answer.prompt_tokens = usage["prompt_tokens"]
            answer.completion_tokens = usage["completion_tokens"]
            answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise _RoundFailed("malformed", f"an event could not be read: {error}: {data[:120]!r}") from None
