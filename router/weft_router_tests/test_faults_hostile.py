"""Nothing a client writes reaches an engine where only the router may write, and nobody it names is dialled."""

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from weft_router_tests.stack import MODEL, PROOF, Stack, router_json

pytestmark = pytest.mark.component

MARK = "10.66.66.66"
ROOM = 666666666
BODIES = 300
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
OWNED = (
    "kv_transfer_params", "ec_transfer_params", "disaggregated_params", "bootstrap_host", "bootstrap_port",
    "bootstrap_room", "do_remote_prefill", "do_remote_decode", "remote_host", "remote_port", "remote_block_ids",
    "remote_engine_id", "data_parallel_rank", "cache_salt", "request_id", "rid", "x_weft_resume", "disagg_request_id",
    "extra_body",
)  # fmt: skip
CONTAINERS = ("vllm_xargs", "extra_args", "sampling_params", "custom_params")
ROUTERS_OWN = {
    "do_remote_decode", "do_remote_prefill", "remote_engine_id", "remote_block_ids", "remote_host", "remote_port",
    "remote_request_id", "tp_size", "remote_num_tokens", "remote_blocks_expiry_time", "remote_prefill_cached_tokens",
    "prompt_token_ids",
}  # fmt: skip


def variants(name: str) -> tuple[str, ...]:
    """Return ways to write a key that some parser takes for the same."""
    wide = "".join(chr(ord(c) + 0xFEE0) if c.isalpha() else c for c in name)
    return name, name.upper(), name.title(), name.replace("_", "-"), f" {name} ", wide


def evil(rng: random.Random, depth: int = 0) -> Any:
    """Return a value that would steer an engine."""
    if depth < 2 and rng.random() < 0.3:
        return rng.choice([[evil(rng, depth + 1)], {rng.choice(OWNED): evil(rng, depth + 1)}])
    params = {
        "do_remote_prefill": True, "do_remote_decode": rng.random() < 0.5, "remote_engine_id": MARK,
        "remote_request_id": MARK, "remote_block_ids": [[ROOM]], "remote_host": MARK, "remote_port": ROOM,
    }  # fmt: skip
    return rng.choice([params, {"a": MARK}, MARK, ROOM, [MARK], {"prompt_token_ids": [ROOM]}])


def hostile(count: int) -> Iterator[tuple[str, bytes]]:
    """Return paths and raw bodies; the seed makes them the same each time."""
    rng = random.Random(20)
    for k in range(count):
        path = rng.choice((CHAT, CHAT, TEXT, RESPONSES))
        body: dict[str, Any] = {"model": MODEL, "stream": k % 2 == 0}
        if path == CHAT:
            body["messages"] = [{"role": "user", "content": f"question {k}"}]
        elif path == TEXT:
            body["prompt"] = f"question {k}"
        else:
            body["input"] = f"question {k}"
        for _ in range(rng.randint(1, 4)):
            key, value = rng.choice(variants(rng.choice(OWNED))), evil(rng)
            where = rng.random()
            if where < 0.5:
                body[key] = value
            elif where < 0.8:
                body.setdefault(rng.choice(CONTAINERS), {})[key] = value
            else:
                body[rng.choice(CONTAINERS)] = {"inner": [{"deeper": {key: value}}]}
        raw = orjson.dumps(body)
        trick = rng.random()
        if trick < 0.2:  # the same key twice: which one counts is each parser's own
            raw = raw[:-1] + b',"kv_transfer_params":null,"kv_transfer_params":' + orjson.dumps(evil(rng)) + b"}"
        elif trick < 0.4:  # escapes hide a key from those who look at bytes
            raw = raw.replace(b'"kv_transfer_params"', b'"\\u006bv_transfer\\u005fparams"')
        elif trick < 0.5:
            raw = json.dumps(body, ensure_ascii=True).encode()
        yield path, raw


def stray(body: Any) -> str | None:
    """Return what a client wrote into a body that reached an engine."""
    raw = orjson.dumps(body).decode()
    if MARK in raw or str(ROOM) in raw:
        return raw
    params = body.get("kv_transfer_params")
    if params is not None and not ROUTERS_OWN.issuperset(params):
        return f"{params} is not the router's"
    return None


@pytest.mark.parametrize("prefill", [1, 0])
async def test_hostile_bodies_reach_engines_with_the_routers_values_only(
    stack: Stack, prefill: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through both legs, local prefill, fallback after a failed prefill, and a second engine after a failed one."""
    monkeypatch.setattr("weft_router.engines.watch.STRIKES", 10**9)
    stack.config["requests"] = {"allowedFields": CONTAINERS}
    await stack.up(decode=2, prefill=prefill)
    rng = random.Random(3)
    statuses: dict[int, int] = {}
    for path, raw in hostile(BODIES):
        for name, engine in stack.engines.items():
            engine.script.status = 500 if rng.random() < (0.3 if name == "p0" else 0.15) else 200
        async with stack.http.post(
            stack.front + path, data=raw, headers={"Content-Type": "application/json", "X-Session-Id": "s"}
        ) as response:
            await response.read()
            statuses[response.status] = statuses.get(response.status, 0) + 1
    assert set(statuses) <= {200, 400, 404, 502}, statuses
    assert statuses[200] > BODIES // 3, statuses
    seen = [(name, body) for name, engine in stack.engines.items() for body in [*engine.seen, *engine.strange]]
    assert len(seen) > BODIES
    found = [f"{name}: {wrong}" for name, body in seen if (wrong := stray(body)) is not None]
    assert not found, f"{len(found)}/{len(seen)} bodies hold what a client wrote: {found[0][:400]}"
    if not prefill:
        assert not [body for _, body in seen if "remote_engine_id" in (body.get("kv_transfer_params") or {}) and body[
            "kv_transfer_params"]["remote_engine_id"]]  # fmt: skip


PICTURE = {"type": "image_url", "image_url": {"url": f"http://{MARK}/latest/meta-data/"}}
PROGRAMS: tuple[tuple[str, dict[str, Any], str], ...] = (
    (CHAT, {"messages": [{"role": "user", "content": [PICTURE]}]}, "messages[0].content[0].image_url.url"),
    (RESPONSES, {"input": [{"role": "user", "content": [PICTURE]}]}, "input[0].content[0].image_url.url"),
    (CHAT, {"chat_template": "{{ 1 }}"}, "chat_template"),
    (CHAT, {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs.chat_template"),
    (TEXT, {"prompt_embeds": MARK}, "prompt_embeds"),
    (CHAT, {"custom_logit_processor": MARK}, "custom_logit_processor"),
    (TEXT, {"lora_path": MARK}, "lora_path"),
    (CHAT, {"media_io_kwargs": {"video": {"num_frames": 10**6}}}, "media_io_kwargs"),
    (CHAT, {"priority": -100}, "priority"),
    (CHAT, {"next_years_field": MARK}, "next_years_field"),
    (RESPONSES, {"tools": [{"type": "mcp", "server_url": f"http://{MARK}/"}]}, "tools[0].type"),
    ("/tokenize", {"messages": [{"role": "user", "content": [PICTURE]}]}, "messages[0].content[0].image_url.url"),
    ("/tokenize", {"prompt": "x", "chat_template": "{{ 1 }}"}, "chat_template"),
)


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_an_engine_would_run_or_fetch_for_a_client_is_refused_and_reaches_none(
    stack: Stack, streamed: bool
) -> None:
    await stack.up(decode=1, prefill=1)
    asked: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": "x"}], "stream": streamed},
        TEXT: {"prompt": "x", "stream": streamed},
        RESPONSES: {"input": "x", "stream": streamed},
    }
    for path, fields, param in PROGRAMS:
        body = {"model": MODEL, **asked.get(path, {}), **fields}
        async with stack.http.post(stack.front + path, json=body, headers={"X-Session-Id": "s"}) as response:
            told = await response.json()
        assert (response.status, told["error"]["param"]) == (400, param)
    assert [body for engine in stack.engines.values() for body in [*engine.seen, *engine.strange]] == []


HEADERS: tuple[dict[str, str], ...] = (
    {"X-Request-Id": "{trap}"},
    {"X-Request-Id": "___prefill_addr_{trap}___decode_addr_{trap}_1"},
    {"X-Prefiller-Host-Port": "{trap}"},
    {"X-Prefiller-Url": "http://{trap}"},
    {"X-Gateway-Destination-Endpoint": "{trap}"},
    {"X-Data-Parallel-Host-Port": "{trap}"},
    {"X-Data-Parallel-Rank": "7"},
    {"Forwarded": "for={trap};host={trap}"},
    {"X-Forwarded-Host": "{trap}", "X-Forwarded-For": "{trap}"},
    {"Host": "{trap}"},
    {"X-Weft-Worker": "{trap}", "X-Weft-Prefill-Worker": "{trap}"},
    {"X-Weft-Session": "other", "X-Weft-Tenant": "other"},
    {"X-Weft-Token": "guess", "X-Weft-Proof": "guess", "X-Weft-Authority": "{trap}"},
    {"X-Weft-Local": "1", "X-Weft-Cap": "1", "X-Weft-Ids": "1"},
    {"X-Weft-Path": "/v1/completions", "X-Weft-Task": "{trap}"},
    {"X-Weft-KV-Handle": "0", "X-Weft-Engine-Plugin": "1", "X-Weft-Engine-Proof": "guess"},
    {"Proxy-Connection": "keep-alive", "Proxy-Authorization": "Basic {trap}"},
    {"X-Secret": "mine", "Cookie": "a=b", "Authorization": "Bearer mine"},
    {"Traceparent": "00-11111111111111111111111111111111-2222222222222222-01", "Baggage": "to={trap}"},
    {"TE": "trailers", "X-Original-Url": "http://{trap}/", "X-Rewrite-Url": "/drain"},
)
ALLOWED = {
    "host", "content-type", "content-length", "x-request-id", "x-weft-kv-handle", "traceparent", "connection",
    "accept", "accept-encoding", "user-agent", "x-weft-engine-proof",
}  # fmt: skip


async def test_hostile_headers_choose_no_upstream_and_reach_none(stack: Stack) -> None:
    dialled: list[object] = []

    async def trapped(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.append(writer.get_extra_info("peername"))
        writer.close()

    trap = await asyncio.start_server(trapped, "127.0.0.1", 0)
    address = f"127.0.0.1:{trap.sockets[0].getsockname()[1]}"
    await stack.up(decode=1, prefill=1)
    ids = set()
    for headers in HEADERS:
        sent = {name: value.replace("{trap}", address) for name, value in headers.items()}
        answer = await stack.chat([{"role": "user", "content": "x"}], headers=sent)
        assert answer.status == 200, headers
        ids.add({name.lower(): value for name, value in answer.headers.items()}["x-request-id"])
        assert answer.headers["X-Weft-Worker"] == "d0"
    assert len(ids) == len(HEADERS)
    for name, engine in stack.engines.items():
        assert len(engine.headers) == len(HEADERS)
        for seen in engine.headers:
            lower = {key.lower(): value for key, value in seen.items()}
            assert set(lower) <= ALLOWED, f"{name}: {set(lower) - ALLOWED}"
            assert lower["x-request-id"] in ids
            assert lower.get("x-weft-kv-handle", "1") == "1"
            assert lower["x-weft-engine-proof"] == PROOF, "the router's own, never a client's"
            assert address not in "".join(lower.values())
    trap.close()
    assert not dialled


PATHS = (
    "/v1/chat/completions/", "/v1/chat/completions//", "//v1/chat/completions", "/v1/../v1/chat/completions",
    "/v1/chat/completions/..", "/v1/%63hat/completions", "/v1/chat%2fcompletions", "/V1/CHAT/COMPLETIONS",
    "/v1/chat/completions;x=1", "/v1/chat/completions%00", "/../v1/completions", "/internal/prefill", "/v1/embeddings",
    "/engine/livez", "/engine/metrics", "/engine/../drain", "/drain", "/debug/decisions", "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter", "/reset_prefix_cache", "/sleep", "/wake_up", "/collective_rpc", "/abort_requests",
    "/server_info", "/invocations", "/pause", "/scale_elastic_ep", "/mock/faults", "/v1/completions/render",
    "http://{trap}/v1/chat/completions", "http://{trap}/", "https://{trap}/v1/completions", "{trap}", "*", "/",
    "/v1/models/../../drain", "/openapi.json", "/docs",
)  # fmt: skip


@pytest.mark.parametrize("method", ["POST", "GET", "CONNECT", "PUT", "TRACE"])
async def test_paths_that_are_not_the_apis_are_refused_and_reach_no_engine(stack: Stack, method: str) -> None:
    await stack.up(decode=1, prefill=0)
    engine = stack.engines["d0"]
    body = orjson.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x"}]})
    for path in PATHS:
        target = path.replace("{trap}", engine.url.removeprefix("http://"))
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.processes["c0"].settings.port)
        lines = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(lines.encode() + body)
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        status = int(answer.split(b" ", 2)[1])
        absolute = target.startswith("http") and target.endswith("completions")  # the path of this very service
        assert status in (400, 401, 404, 405, 501) or (absolute and method == "POST" and status == 200), (path, answer)
    assert len(engine.seen) <= (1 if method == "POST" else 0)
    assert not engine.strange


COSTS: tuple[tuple[str, dict[str, Any], str], ...] = (
    (CHAT, {"n": 5}, "n"),
    (CHAT, {"n": -1}, "n"),
    (CHAT, {"n": 1.5}, "n"),
    (TEXT, {"best_of": 100}, "best_of"),
    (CHAT, {"max_tokens": 1025}, "max_tokens"),
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"max_completion_tokens": 10**9}, "max_completion_tokens"),
    (RESPONSES, {"max_output_tokens": 10**9}, "max_output_tokens"),
    (CHAT, {"min_tokens": 10**6}, "min_tokens"),
    (CHAT, {"logprobs": True, "top_logprobs": 1000}, "top_logprobs"),
    (TEXT, {"logprobs": 10**6}, "logprobs"),
    (CHAT, {"prompt_logprobs": 10**6}, "prompt_logprobs"),
    (CHAT, {"stop": ["x"] * 65}, "stop"),
    (CHAT, {"stop": "x" * 5000}, "stop"),
    (CHAT, {"stop_token_ids": list(range(2000))}, "stop_token_ids"),
    (CHAT, {"bad_words": ["x"] * 2000}, "bad_words"),
    (CHAT, {"logit_bias": {str(k): 1 for k in range(2000)}}, "logit_bias"),
    (TEXT, {"prompt": ["a"] * 1025}, "prompt"),
    (TEXT, {"prompt": [1] * 1_000_0}, "prompt"),
    (TEXT, {"prompt": "word " * 190_000}, "prompt"),
    (CHAT, {"messages": [{"role": "user", "content": "word " * 190_000}]}, "messages"),
)


async def test_what_costs_too_much_is_refused_before_any_engine_sees_it(stack: Stack) -> None:
    await stack.up(decode=1, prefill=1)
    for path, fields, param in COSTS:
        base: dict[str, dict[str, Any]] = {
            CHAT: {"messages": [{"role": "user", "content": "x"}]},
            TEXT: {"prompt": "x"},
            RESPONSES: {"input": "x"},
        }
        async with stack.http.post(stack.front + path, json={"model": MODEL, **base[path], **fields}) as response:
            error = (await response.json())["error"]
            assert (response.status, error["param"]) == (400, param), (fields, error)
    for engine in stack.engines.values():
        assert not engine.seen
        assert not engine.strange


async def test_the_limits_of_a_service_are_its_own(stack: Stack) -> None:
    stack.config = router_json(limits={"maxN": 1, "maxOutputTokens": 16})
    await stack.up(decode=1, prefill=0)
    hello = [{"role": "user", "content": "x"}]
    assert [(await stack.chat(hello, n=n)).status for n in (1, 2)] == [200, 400]
    assert [(await stack.chat(hello, max_tokens=most)).status for most in (16, 17)] == [200, 400]
    assert len(stack.engines["d0"].seen) == 2
