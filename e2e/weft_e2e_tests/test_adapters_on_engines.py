"""The router's adapters against engines of each protocol, over real sockets: same answers, nothing left behind."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson
import pytest

from weft_mock.model import answer
from weft_mock.tokenizer import chat_ids, completion_ids, decode, filler
from weft_mock_tests.engines import MODEL, Client, at_rest, config, engines
from weft_router.config import LimitsConfig, ModelConfig
from weft_router.engines.adapter import (
    Adapter,
    AdapterOptions,
    Call,
    EngineEndpoint,
    EngineRequest,
    PrefillResult,
)
from weft_router.engines.catalogue import adapter_for
from weft_router.engines.handles import accept, prefix_digest
from weft_router.engines.load import EngineLoad
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.event_filter import EventFilter
from weft_router.openai.inference import check_request
from weft_router.openai.reply import Reply, read_whole

pytestmark = pytest.mark.component

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ALLOWED = RequestLimits(
    ModelConfig.model_validate({"name": MODEL, "maxModelLen": 2048}), LimitsConfig.model_validate({})
)
Pair = tuple[Client, Client]
_numbers = iter(range(10**6))


@asynccontextmanager
async def pair(protocol: str, *, bidirectional: bool = False) -> AsyncIterator[Pair]:
    """Run a prefill and a decode engine; afterwards neither may hold anything or have seen a wrong request."""
    common = {"protocol": protocol, "bidirectional": bidirectional, "time_scale": 0.1}
    async with engines(
        config(engine_id="p", role="prefill", **common), config(engine_id="d", role="decode", **common)
    ) as (p, d):
        yield p, d
        await at_rest(p, d)
        assert not p.engine.ledger.violations
        assert not d.engine.ledger.violations


def messages(seed: int = 1, tokens: int = 60) -> list[dict[str, Any]]:
    return [{"role": "user", "content": filler(tokens, seed)}]


def peer(client: Client) -> EngineEndpoint:
    where = urlsplit(client.url)
    return EngineEndpoint(where.hostname or "", where.port or 0, bootstrap_port=client.side_port)


def ask(engines_of: Pair, path: str = CHAT, **fields: Any) -> EngineRequest:
    given: dict[str, dict[str, Any]] = {
        CHAT: {"messages": messages()},
        TEXT: {"prompt": filler(40, 2)},
        RESPONSES: {"input": filler(40, 3)},
    }
    inference = check_request(path, {"model": MODEL, "max_tokens": 12, **given[path], **fields}, ALLOWED)
    p, d = engines_of
    return EngineRequest(inference, f"weft-{next(_numbers)}", prefill=peer(p), decode=peer(d))


def expected(asked: EngineRequest, tokens: int = 12) -> str:
    inference = asked.inference
    text = chat_ids(list(inference.messages)) if inference.kind == "chat" else completion_ids(str(inference.prompt))
    return decode(answer(text, tokens))


def headers(call: Call) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (line.partition(": ") for line in call.lines.splitlines())]


async def send(client: Client, call: Call) -> tuple[int, bytes]:
    async with httpx.AsyncClient(timeout=5.0) as http:
        reply = await http.post(client.url + call.path, content=call.whole, headers=headers(call))
        return reply.status_code, reply.content


async def whole(client: Client, call: Call) -> bytes:
    status, body = await send(client, call)
    assert status == 200, body
    return body


async def streamed(client: Client, call: Call, sse_filter: EventFilter, *, events: int | None = None) -> bytes:
    """Pass a stream through a tap; with ``events`` the connection breaks after so many pieces with tokens."""
    out = b""
    async with (
        httpx.AsyncClient(timeout=5.0) as http,
        http.stream("POST", client.url + call.path, content=call.whole, headers=headers(call)) as reply,
    ):
        assert reply.status_code == 200, await reply.aread()
        async for piece in reply.aiter_raw():
            for part in piece.split(b"\n\n") if events is not None else [piece]:
                out += sse_filter.feed(part + b"\n\n" if events is not None and part else part)
                if events is not None and sse_filter.tokens >= events:
                    return out
    assert sse_filter.complete
    return out


def chunks(out: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(part[6:]) for part in out.split(b"\n\n") if part.startswith(b"data: {")]


def text_of(outs: Iterable[bytes]) -> str:
    choices = [choice for out in outs for chunk in chunks(out) for choice in chunk["choices"]]
    return "".join((one["delta"].get("content") or "") if "delta" in one else one["text"] for one in choices)


async def hand_over(adapter: Adapter, engines_of: Pair, asked: EngineRequest) -> PrefillResult:
    return adapter.read_prefill(asked, await whole(engines_of[0], adapter.prefill(asked)))


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("kind", ["vllm", "tensorrt-llm"])
async def test_prefill_then_decode(kind: str, path: str) -> None:
    adapter = adapter_for(kind)
    async with pair(kind) as both:
        asked = ask(both, path)
        handed = await hand_over(adapter, both, asked)
        assert handed.reply.prompt_tokens > 0
        reply, _ = read_whole(asked.inference.kind, await whole(both[1], adapter.decode(asked, handed)), keep_ids=False)
        assert "".join(reply.text) == expected(asked)
        flowing = ask(both, path, stream=True)
        handed = await hand_over(adapter, both, flowing)
        sse_filter = adapter.sse_filter(flowing)
        out = await streamed(both[1], adapter.decode(flowing, handed), sse_filter)
        assert text_of([out]) == "".join(sse_filter.reply.text) == expected(flowing)
        assert (sse_filter.tokens, sse_filter.reply.completion_tokens) == (12, 12)
        assert b"usage" not in out


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stream", [False, True])
async def test_sglangs_legs_meet_in_their_room(path: str, stream: bool) -> None:
    adapter = adapter_for("sglang")
    async with pair("sglang") as both:
        asked = ask(both, path, stream=stream)
        calls = adapter.prefill(asked), adapter.decode(asked, None)
        if not stream:
            first, raw = await asyncio.gather(*(whole(c, call) for c, call in zip(both, calls, strict=True)))
            assert adapter.read_prefill(asked, first).reply.prompt_tokens > 0
            reply, _ = read_whole(asked.inference.kind, raw, keep_ids=False)
            assert "".join(reply.text) == expected(asked)
            return
        sse_filter = adapter.sse_filter(asked)
        _, out = await asyncio.gather(whole(both[0], calls[0]), streamed(both[1], calls[1], sse_filter))
        assert text_of([out]) == expected(asked)


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_neurons_prefill_shows_the_first_token_and_decode_the_rest(path: str) -> None:
    adapter = adapter_for("neuron")
    async with pair("neuron") as both:
        asked = ask(both, path, stream=True, temperature=0)
        early, sse_filter = adapter.prefill_sse_filter(asked), adapter.sse_filter(asked)
        assert early is not None
        asked.shown = True
        first, rest = await asyncio.gather(
            streamed(both[0], adapter.prefill(asked), early),
            streamed(both[1], adapter.decode(asked, None), sse_filter),
        )
        assert (early.tokens, sse_filter.tokens) == (1, 12)
        assert text_of([first]) == expected(asked, 1)
        assert text_of([first, rest]) == expected(asked)
        assert {chunk["id"] for chunk in chunks(first) + chunks(rest)} == {asked.request_id}
        assert [c["choices"][0]["finish_reason"] for c in chunks(first)][-1] is None
        quiet = ask(both, path)
        calls = adapter.prefill(quiet), adapter.decode(quiet, None)
        _, raw = await asyncio.gather(*(whole(c, call) for c, call in zip(both, calls, strict=True)))
        reply, data = read_whole(quiet.inference.kind, raw, keep_ids=False, public_id=adapter.public_id(quiet))
        assert "".join(reply.text) == expected(quiet)
        assert b"127.0.0.1" not in data


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_plain_server_needs_one_leg(path: str) -> None:
    adapter = adapter_for("openai")
    async with engines(config(protocol="openai", bidirectional=False, time_scale=0.1)) as (alone,):
        asked = ask((alone, alone), path, stream=True)
        sse_filter = adapter.sse_filter(asked)
        assert text_of([await streamed(alone, adapter.local(asked), sse_filter)]) == expected(asked)
        assert not alone.engine.ledger.violations


async def test_an_answer_that_the_context_server_finished_needs_no_generation() -> None:
    adapter = adapter_for("tensorrt-llm")
    async with pair("tensorrt-llm") as both:
        stop = answer(chat_ids(messages()), 1)
        for stream in (False, True):
            asked = ask(both, stream=stream, stop_token_ids=stop)
            handed = await hand_over(adapter, both, asked)
            assert handed.params is None
            assert handed.finished is not None
            assert b"disaggregated_params" not in handed.finished
            assert b"token_ids" not in handed.finished


@pytest.mark.parametrize("protocol", ["vllm", "sglang", "tensorrt-llm", "neuron"])
async def test_an_engines_load_is_read_from_its_own_page(protocol: str) -> None:
    gauges = adapter_for(protocol).gauges
    async with pair(protocol) as both:
        async with httpx.AsyncClient(timeout=5.0) as http:
            page = await http.get(both[1].url + gauges.page)
        pool = both[1].engine.scheduler.pool
        assert all(name in page.content for name in (gauges.running, gauges.waiting[0], gauges.usage))
        idle = EngineLoad(capacity_tokens=pool.total * pool.block_size, tells_usage=True)
        assert gauges.read(page.content) == idle


async def test_a_session_is_read_back_by_its_handle() -> None:
    adapter = adapter_for("vllm")
    async with pair("vllm", bidirectional=True) as both:
        p, d = both
        first = ask(both)
        first.want_ids = first.export = True
        raw = await whole(d, adapter.decode(first, await hand_over(adapter, both, first)))
        reply, shown = read_whole("chat", raw, keep_ids=False)
        assert b"token_ids" not in shown
        assert reply.handle is not None
        handle = accept(reply.handle, ids=reply.ids, plain=True, received=monotonic(), lease_s=30, ttl_s=120)
        assert handle is not None
        history = [*messages(), {"role": "assistant", "content": "".join(reply.text)}, *messages(seed=7)]
        second = ask(both, messages=history)
        second.handle, second.want_ids = handle, True
        handed = await hand_over(adapter, both, second)
        assert handed.reply.prompt_ids is not None
        assert prefix_digest(handed.reply.prompt_ids, handle.tokens) == handle.digest
        record = p.engine.ledger.recent[-1]
        assert (record.form, record.read > 0) == ("export_with_history", True)
        again, _ = read_whole("chat", await whole(d, adapter.decode(second, handed)), keep_ids=False)
        assert "".join(again.text) == expected(second)
        assert again.handle is not None
        await let_go(adapter, p, again.handle)


async def let_go(adapter: Adapter, client: Client, params: dict[str, Any]) -> None:
    call = adapter.release(params)
    assert call is not None
    assert (await send(client, call))[0] == 404


async def test_kv_of_a_leg_that_never_came_is_let_go_by_the_decode_engine() -> None:
    adapter = adapter_for("vllm")
    async with pair("vllm") as both:
        handed = await hand_over(adapter, both, ask(both))
        assert handed.params is not None
        assert len(both[0].engine.pins) == 1
        await let_go(adapter, both[1], handed.params)


async def test_a_local_prefill_in_slices_computes_each_token_once() -> None:
    adapter = adapter_for("vllm")
    async with pair("vllm") as both:
        d = both[1]
        asked = ask(both, messages=messages(tokens=300))
        call = adapter.tokenize(asked)
        assert call is not None
        ids = adapter.read_ids(await whole(d, call))
        assert list(ids or ()) == chat_ids(messages(tokens=300))
        assert ids is not None
        for tokens in (128, 256):
            await whole(d, adapter.slice(asked, ids, tokens))
        reply, _ = read_whole("chat", await whole(d, adapter.local(asked)), keep_ids=False)
        assert "".join(reply.text) == expected(asked)
        assert [record.cached for record in list(d.engine.ledger.recent)[-3:]] == [0, 128, 256]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("cut", [1, 5, 11])
async def test_a_broken_stream_goes_on_elsewhere(path: str, cut: int) -> None:
    adapter = adapter_for("vllm")
    async with pair("vllm") as both:
        asked = ask(both, path, stream=True, temperature=0, stream_options={"include_usage": True})
        asked.want_ids = True
        sse_filter = adapter.sse_filter(asked)
        first = await streamed(both[1], adapter.local(asked), sse_filter, events=cut)
        broken = Reply.load(orjson.loads(orjson.dumps(sse_filter.reply.dump())))
        rest_tap = adapter.sse_filter(asked, resumed=broken)
        rest = await streamed(both[1], adapter.resume(asked, broken), rest_tap)
        assert text_of([first, rest]) == "".join(rest_tap.reply.text) == expected(asked)
        assert len({chunk["id"] for chunk in chunks(first) + chunks(rest)}) == 1
        usage = chunks(rest)[-1]["usage"]
        assert (usage["completion_tokens"], usage["prompt_tokens"]) == (12, len(broken.prompt_ids or ()))
        assert b"token_ids" not in first + rest


async def test_the_prefills_token_is_shown_and_not_repeated() -> None:
    adapter = adapter_for("vllm", traits=AdapterOptions(show_first=True))
    async with pair("vllm") as both:
        asked = ask(both, stream=True, temperature=0)
        handed = await hand_over(adapter, both, asked)
        assert handed.first is not None
        sse_filter = adapter.sse_filter(asked, first=handed.first)
        first = adapter.first_event(asked, handed.first)
        rest = await streamed(both[1], adapter.decode(asked, handed), sse_filter)
        assert text_of([first]) == expected(asked, 1)
        assert text_of([first, rest]) == expected(asked)
        assert len({chunk["id"] for chunk in chunks(first) + chunks(rest)}) == 1
        assert not sse_filter.reply.diverged


async def test_a_response_is_prefilled_and_decoded_and_keeps_its_id() -> None:
    adapter = adapter_for("vllm")
    async with pair("vllm") as both:
        for stream in (False, True):
            asked = ask(both, RESPONSES, max_tokens=None, max_output_tokens=9, stream=stream)
            asked.response_id = f"resp_{'ab' * 40}{int(stream)}"
            call = adapter.decode(asked, await hand_over(adapter, both, asked))
            if stream:
                sse_filter = adapter.sse_filter(asked)
                await streamed(both[1], call, sse_filter)
                reply = sse_filter.reply
            else:
                reply, data = read_whole("responses", await whole(both[1], call), keep_ids=False)
                assert b"kv_transfer_params" not in data
            assert reply.head is not None
            assert reply.head["id"] == asked.response_id
            assert (reply.completion_tokens, reply.finish_reason) == (9, "length")
            assert "".join(reply.text)
