"""What a running stack tells of itself: everything about each request, and nothing of what was in it."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from weft_router.telemetry import otlp
from weft_router.telemetry.logs import JsonLines
from weft_router_tests.canary import ANSWER, KEY, PROMPT, assert_no_secrets
from weft_router_tests.collector import collecting
from weft_router_tests.fake_engine import Script
from weft_router_tests.stack import MODEL, TOKEN, Answer, Stack, proven, router_json

pytestmark = pytest.mark.component
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CHAT = "/v1/chat/completions"


async def started(stack: Stack, folder: Path, **sections: dict[str, Any]) -> Path:
    """Start a stack that asks for keys and writes access lines to a file; return the file."""
    path = folder / "access.jsonl"
    keys = folder / "keys"
    keys.write_text(KEY + "\n")
    stack.config = {**router_json(), "accessLog": {"to": str(path)}, **sections}
    await stack.up(keys=keys)
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def request_id(answer: Answer) -> str:
    (found,) = [value for name, value in answer.headers.items() if name.lower() == "x-request-id"]
    return found


async def page(stack: Stack, process: str, accept: str = "") -> str:
    async with stack.http.get(stack.host(process).url + "/metrics", headers={"Accept": accept}) as response:
        assert response.status == 200
        return await response.text()


async def test_nothing_that_leaves_the_router_holds_a_secret(
    stack: Stack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="weft_router")
    access = await started(stack, tmp_path, requestLog={"to": str(tmp_path / "rounds.jsonl")})
    key = {"Authorization": f"Bearer {KEY}"}
    say = [{"role": "user", "content": PROMPT * 20}]
    answers = []

    async def ask(*, headers: dict[str, str] | None = None, path: str = CHAT, **body: Any) -> None:
        whole = {"model": MODEL, "messages": say, "max_tokens": 8, **body}
        async with stack.http.post(stack.front + path, json=whole, headers={**key, **(headers or {})}) as response:
            answers.append((response.status, await response.text()))

    for stream in (False, True):
        for session in ("one", PROMPT[:40].strip()):
            await ask(stream=stream, headers={"X-Session-Id": session.encode("ascii", "ignore").decode()})
    await ask(user=PROMPT, metadata={"note": PROMPT}, kv_transfer_params={"remote_host": KEY})
    await ask(headers={"Authorization": f"Bearer {KEY}x"})
    await ask(headers={"Authorization": f"Basic {KEY}"})
    await ask(model=KEY)
    await ask(path=f"/v1/{KEY}")
    await ask(path=f"{CHAT}?api_key={KEY}&prompt={PROMPT[:8]}")
    await ask(temperature=PROMPT)
    await ask(max_tokens=10**9)
    async with stack.http.post(stack.front + CHAT, data=f'{{"messages": "{PROMPT}', headers=key) as response:
        answers.append((response.status, await response.text()))
    quoting = {"error": {"message": f"cannot answer {PROMPT} {ANSWER}", "type": "x", "param": None, "code": 1}}
    for script in (
        Script(status=500, error_body=quoting),
        Script(die_at_token=2),
        Script(error_event=True),
        Script(cut_short=True),
        Script(no_params=True),
    ):
        for engine in stack.engines.values():
            engine.script = script
        for stream in (False, True):
            await ask(stream=stream, headers={"X-Session-Id": f"broken-{stream}"})
    pages = [
        await page(stack, name, accept) for name in stack.processes for accept in ("", "application/openmetrics-text")
    ]
    owner = stack.host("d0")
    async with (
        proven(owner.url, owner.settings.token) as http,
        http.get(owner.url + "/debug/decisions") as response,
    ):
        assert response.status == 200
        decisions = await response.text()
    assert len(orjson.loads(decisions)["decisions"]) > 5
    await stack.close()

    assert len(lines(access)) >= len(answers)
    formatted = [JsonLines().format(record) for record in caplog.records]
    for text in (
        access.read_text(),
        (tmp_path / "rounds.jsonl").read_text(),
        decisions,
        *pages,
        *formatted,
        caplog.text,
    ):
        assert_no_secrets(text)
        assert TOKEN not in text
        assert PROMPT[:12] not in text
    statuses = {status for status, _ in answers}
    assert {200, 400, 401, 404} <= statuses
    for status, text in answers:
        if status != 200:
            assert TOKEN not in text
            assert_no_secrets(text, allow=("prompt", "answer", *(("key",) if status == 404 else ())))


async def test_each_request_leaves_one_line_with_the_whole_story(
    stack: Stack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="weft_router")
    access = await started(stack, tmp_path)
    key = {"Authorization": f"Bearer {KEY}"}
    say = [{"role": "user", "content": "tell me a story " * 50}]
    streamed = await stack.chat(say, session="s", headers=key, stream=True)
    whole = await stack.chat(say, session="t", headers=key)
    unknown = await stack.chat(say)
    await stack.close()
    found = lines(access)
    front = [line for line in found if line["role"] in ("coordinator", "standalone")]
    assert [line["status"] for line in front] == [200, 200, 401]
    assert [streamed.status, whole.status, unknown.status] == [200, 200, 401]
    for answer in (streamed, whole):
        told: dict[str, Any] = {}
        for line in sorted(found, key=front.count):  # of each router that had a part in it, the front's last
            if line.get("request_id") == request_id(answer):
                told |= line
        assert (told["event"], told["path"], told["status"], told["class"]) == ("request", CHAT, 200, "default")
        assert told["route"] == answer.headers["X-Weft-Route"]
        assert told["reason"] == answer.headers["X-Weft-Reason"]
        assert (told["worker"], told["attempts"]) == ("d0", 1)
        assert (told["completion_tokens"], "ttft" in told) == (8, answer is streamed)
        assert (len(told["tenant"]), len(told["session"])) == (16, 32)
        assert told["seconds"] > 0


async def test_a_slow_bucket_names_the_request(stack: Stack, tmp_path: Path) -> None:
    await started(stack, tmp_path)
    answer = await stack.chat(
        [{"role": "user", "content": "x"}], headers={"Authorization": f"Bearer {KEY}"}, stream=True
    )
    text = await page(stack, "d0", "application/openmetrics-text; version=1.0.0")
    parsed = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    (ttft,) = [family for family in parsed if family.name == "weft_router_ttft_seconds"]
    (exemplar,) = [sample.exemplar for sample in ttft.samples if sample.exemplar]
    assert request_id(answer).endswith(exemplar.labels["trace_id"])


async def test_a_live_stream_shows_in_a_scrape(stack: Stack, tmp_path: Path) -> None:
    await started(stack, tmp_path)
    stack.engines["d0"].script = Script(length=200, gap_s=0.02)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}
    async with stack.http.post(stack.front + CHAT, json=body, headers={"Authorization": f"Bearer {KEY}"}) as response:
        await response.content.readany()
        for _ in range(200):
            if await stack.count("weft_router_itl_seconds_count", "d0") > 3:
                break
            await asyncio.sleep(0.02)
        else:
            raise AssertionError("the gaps of a live stream are not counted")
        assert await stack.count("weft_router_inflight", "c0") == 1
        assert not response.content.at_eof()
    assert isinstance(stack.http, aiohttp.ClientSession)


async def test_every_leg_is_timed_and_every_refusal_counted(stack: Stack, tmp_path: Path) -> None:
    await started(stack, tmp_path, limits={**router_json()["limits"], "rates": {"requestsPerSecond": 0.01}})
    key = {"Authorization": f"Bearer {KEY}"}
    say = [{"role": "user", "content": "tell me a story " * 50}]
    answers = [await stack.chat(say, session="s", headers=key, stream=True) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert answers[0].headers["X-Weft-Route"] == "remote"
    owner = "d0" if stack.composition == "sidecars" else "c0"
    assert await stack.count("weft_router_leg_seconds_count", owner, leg="prefill") == 1
    assert await stack.count("weft_router_leg_seconds_count", owner, leg="decode") == 1
    relayed = 1 if stack.composition == "sidecars" else 0
    assert await stack.count("weft_router_leg_seconds_count", "c0", leg="relay") == relayed
    assert await stack.count("weft_router_queue_seconds_count", "p0") == 1
    assert await stack.count("weft_router_rejected_total", "c0", reason="requests") == 1
    assert await stack.count("weft_router_rate_limited_total", "c0", limit="requests") == 1
    assert await stack.count("weft_router_predictions_trusted", owner) == 1


async def test_a_lost_worker_is_counted_out_and_back_and_its_sessions_moved(stack: Stack, tmp_path: Path) -> None:
    stack.config = router_json()
    await stack.up(decode=2)
    first = await stack.chat([{"role": "user", "content": "x"}], session="s")
    lost = first.headers["X-Weft-Worker"]
    await stack.engines[lost].stop()
    if stack.composition == "sidecars":
        await stack.kill(lost)
    again = await stack.chat([{"role": "user", "content": "x"}], session="s")
    assert again.headers["X-Weft-Worker"] != lost
    assert await stack.count("weft_router_rebinds_total", "c0") >= 1
    if stack.composition == "sidecars":
        assert await stack.count("weft_router_ejections_total", "c0", role="decode", reason="failed") == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_traced_round_shows_every_hop_and_no_content(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.INFO, logger="weft_router")
    monkeypatch.setattr(otlp, "EVERY_S", 0.02)
    with collecting() as collector:
        access = await started(stack, tmp_path, telemetry={"otlpEndpoint": collector.url, "sampleRatio": 0})
        key = {"Authorization": f"Bearer {KEY}"}
        say = [{"role": "user", "content": PROMPT * 20}]
        untraced = await stack.chat(say, headers=key, stream=stream)
        answer = await stack.chat(say, headers={**key, "traceparent": f"00-{TRACE}-{SPAN}-01"}, stream=stream)
        assert (untraced.status, answer.status) == (200, 200)
        assert answer.headers["X-Weft-Route"] == "remote"
        await stack.close()
    spans = {span["name"]: span for span in collector.spans}
    sidecars = stack.composition == "sidecars"
    own = {"round", "decide", "prefill.queue", "prefill.engine", "decode.engine"}
    assert set(spans) == (own | {"decode", "prefill"} if sidecars else own)
    assert {span["traceId"] for span in collector.spans} == {TRACE}
    assert spans["round"]["parentSpanId"] == SPAN
    names = {span["spanId"]: name for name, span in spans.items()}
    parents = {name: names.get(span["parentSpanId"]) for name, span in spans.items() if name != "round"}
    if sidecars:
        assert (parents["decode"], parents["decide"], parents["decode.engine"]) == ("round", "decode", "decode")
        assert (parents["prefill"], parents["prefill.queue"], parents["prefill.engine"]) == ("decode", *["prefill"] * 2)
    else:
        assert set(parents.values()) == {"round"}
    for name, span in spans.items():
        assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]), name
        assert span["status"] == {}, name
    (event,) = spans["decide"]["events"]
    shown = {one["key"]: one["value"] for one in event["attributes"]}
    assert shown["weft.reason"] == {"stringValue": answer.headers["X-Weft-Reason"]}
    assert any(name.startswith("weft.alternative.0.") for name in shown)
    for text in (orjson.dumps(collector.got), access.read_bytes()):
        assert_no_secrets(text)
    told = [line for line in lines(access) if line.get("request_id") == request_id(answer)]
    assert [line["trace"] for line in told if line["role"] in ("coordinator", "standalone")] == [TRACE]
