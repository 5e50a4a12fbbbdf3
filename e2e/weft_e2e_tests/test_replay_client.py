"""The replay client measures what a server did and records every way in which a round can end."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from weft_e2e.replay.client import Deadlines, SessionTranscript, Target, open_http, replay, run_session, session_texts
from weft_e2e.replay.records import CLEAR_FAILURES, RoundRecord, read, save
from weft_e2e.replay.sessions import PlannedRound, PlannedSession

pytestmark = pytest.mark.component

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def filler(count: int, seed: int) -> str:
    return " ".join(f"w{seed}" for _ in range(count))


SOON = Deadlines(replay_s=10)


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Target]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield Target(url=f"http://{host}:{port}", model="m", run="r1-")
    finally:
        await runner.cleanup()


def chunk(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}, "finish_reason": None}]}).encode() + b"\n\n"


def ending(tokens: int, *, prompt: int = 7) -> bytes:
    last = {"choices": [{"delta": {}, "finish_reason": "length"}]}
    usage = {
        "choices": [],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": 5},
        },
    }
    return b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in (last, usage)) + b"data: [DONE]\n\n"


async def stream(request: web.Request, *parts: bytes, route: str = "remote") -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "X-Weft-Route": route, "X-Weft-Reason": "why"}
    )
    await response.prepare(request)
    for part in parts:
        await response.write(part)
    return response


def session(rounds: int = 2, *, name: str = "s", decode: int = 2) -> PlannedSession:
    return PlannedSession(name, 0.0, tuple(PlannedRound(3, decode, 0.0) for _ in range(rounds)))


async def only(target: Target, *, rounds: int = 2, deadlines: Deadlines = SOON) -> tuple[RoundRecord, ...]:
    result = await replay([session(rounds)], target, filler=filler, deadlines=deadlines)
    assert [r.index for r in result.records] == list(range(rounds))
    return result.records


async def test_rounds_are_measured_and_the_reply_goes_into_the_history_as_received() -> None:
    bodies = []
    ids = []

    async def handler(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        ids.append(request.headers["X-Session-Id"])
        return await stream(request, chunk("héllo "), chunk(f"n{len(bodies)}"), ending(2))

    async with serving(handler) as target:
        first, second = await only(target)

    assert ids == ["r1-s", "r1-s"]
    assert bodies[0]["max_tokens"] == 2
    assert bodies[0]["ignore_eos"] is True
    assert bodies[0]["messages"] == [{"role": "user", "content": "w0 w0 w0"}]
    assert bodies[1]["messages"] == [
        {"role": "user", "content": "w0 w0 w0"},
        {"role": "assistant", "content": "héllo n1"},
        {"role": "user", "content": "w1 w1 w1"},
    ]
    assert (first.phase, second.phase) == ("first", "later")
    for record in (first, second):
        assert record.ok
        assert record.ttft_s is not None
        assert 0 < record.ttft_s <= record.total_s
        assert len(record.gaps_s) == 1
        assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (7, 2, 5)
        assert (record.route, record.reason, record.finish_reason) == ("remote", "why", "length")


async def test_a_second_replay_may_name_a_class_and_have_other_texts() -> None:
    seen: list[tuple[str | None, str]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        seen.append((request.headers.get("X-Weft-Class"), body["messages"][0]["content"]))
        return await stream(request, chunk("a"), chunk("b"), ending(2))

    async with serving(handler) as target:
        await only(target, rounds=1)
        named = replace(target, request_class="baseline")
        await replay([session(1)], named, filler=filler, deadlines=SOON, salt=1)

    (plain, first), (name, second) = seen
    assert (plain, name) == (None, "baseline")
    assert first != second
    assert len(first.split()) == len(second.split())


async def test_gaps_between_tokens_are_the_servers_pauses() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await stream(request, chunk("a"))
        await asyncio.sleep(0.5)
        await response.write(chunk("b") + ending(2))
        return response

    async with serving(handler) as target:
        (record,) = await only(target, rounds=1)

    assert len(record.gaps_s) == 1
    # A client that the machine keeps from reading the first token sees a shorter gap.
    assert 0.2 <= record.gaps_s[0] < 5.0


async def test_a_refusal_with_a_reason_is_clear_and_later_rounds_are_recorded_as_not_sent() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no decode worker is ready"}}, status=503)

    async with serving(handler) as target:
        first, second = await only(target)

    assert (first.outcome, first.status) == ("refused", 503)
    assert first.error == "HTTP 503: no decode worker is ready"
    assert first.outcome in CLEAR_FAILURES
    assert second.outcome == "not_sent"
    assert second.error == "not sent: round 1 ended with: refused"


async def test_an_error_event_in_the_stream_is_clear() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        error = b'data: {"error":{"message":"the worker died","type":"x"}}\n\n'
        return await stream(request, chunk("a"), error)

    async with serving(handler) as target:
        (record,) = await only(target, rounds=1)

    assert (record.outcome, record.error) == ("stream_error", "the worker died")
    assert record.ttft_s is not None


async def _bare_500(request: web.Request) -> web.StreamResponse:
    return web.Response(status=500, text="oops")


async def _truncated(request: web.Request) -> web.StreamResponse:
    return await stream(request, chunk("a"))


async def _cut_connection(request: web.Request) -> web.StreamResponse:
    response = await stream(request, chunk("a"))
    assert request.transport is not None
    request.transport.abort()
    return response


async def _garbage(request: web.Request) -> web.StreamResponse:
    return await stream(request, b"data: {nope\n\n")


async def _too_few_tokens(request: web.Request) -> web.StreamResponse:
    return await stream(request, chunk("a"), ending(1))


async def _no_usage(request: web.Request) -> web.StreamResponse:
    return await stream(request, chunk("a"), b"data: [DONE]\n\n")


async def _silent(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3)
    return await stream(request)


@pytest.mark.parametrize(
    ("handler", "outcome", "error"),
    [
        (_bare_500, "malformed", "HTTP 500 without an error message"),
        (_truncated, "truncated", "the stream ended without [DONE] after 1 events"),
        (_cut_connection, "connection", "ClientPayloadError"),
        (_garbage, "malformed", "an event could not be read"),
        (_too_few_tokens, "malformed", "1 tokens came, 2 were asked for"),
        (_no_usage, "malformed", "no usage came"),
        (_silent, "deadline", "no end within"),
    ],
)
async def test_silent_failures_are_told_apart(handler: Handler, outcome: str, error: str) -> None:
    patience_s = 0.3 if outcome == "deadline" else 10.0
    async with serving(handler) as target:
        (record,) = await only(target, rounds=1, deadlines=Deadlines(round_s=patience_s, replay_s=10))

    assert record.outcome == outcome
    assert error in (record.error or "")
    assert record.outcome not in CLEAR_FAILURES


async def test_a_client_that_leaves_between_rounds_records_what_it_asked_and_no_failure() -> None:
    asked = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return await stream(request, chunk("a"), chunk("b"), ending(2))

    plan, transcript = session(3), SessionTranscript("s")
    async with serving(handler) as target, open_http() as http:
        await run_session(
            plan,
            target,
            http=http,
            texts=session_texts(plan, filler=filler, salt=1),
            deadlines=SOON,
            start=time.perf_counter(),
            transcript=transcript,
            leaves=lambda: asked == 2,
        )

    assert [r.outcome for r in transcript.records] == ["ok", "ok"]
    assert [m["role"] for m in transcript.messages] == ["user", "assistant"] * 2


async def test_no_server_at_all_is_recorded() -> None:
    (record,) = await only(Target(url="http://127.0.0.1:1", model="m"), rounds=1)

    assert record.outcome == "connection"


async def test_the_replays_deadline_ends_everything_and_loses_no_record() -> None:
    plan = [
        session(3, name="running"),
        PlannedSession("later", 60.0, session().rounds),
    ]
    async with serving(_silent) as target:
        result = await asyncio.wait_for(replay(plan, target, filler=filler, deadlines=Deadlines(replay_s=0.3)), 10)

    ended = {(r.session, r.index): r.outcome for r in result.records}
    assert result.deadline_hit
    assert ended == {
        ("running", 0): "deadline",
        ("running", 1): "not_sent",
        ("running", 2): "not_sent",
        ("later", 0): "not_sent",
        ("later", 1): "not_sent",
    }
    assert len(result.failures) == 5


async def test_a_saved_result_reads_back_equal_and_unknown_fields_are_refused(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await stream(request, chunk("a"), chunk("b"), ending(2))

    async with serving(handler) as target:
        result = await replay([session()], target, filler=filler, notes=("n",))
    path = tmp_path / "deep" / "records.json"

    save(result, path)

    assert read(path) == result
    data = json.loads(path.read_text())
    data["records"][0]["surprise"] = 1
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="unknown fields: surprise"):
        read(path)
