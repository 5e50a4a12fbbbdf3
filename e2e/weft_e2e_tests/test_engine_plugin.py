"""The plug-in for vLLM without vLLM: what it adds to streams, what it refuses, and when it stays off."""

import asyncio
import json
import re
import tomllib
from collections.abc import AsyncGenerator, Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from weft_e2e.images.catalogue import repository_root
from weft_e2e.images.content import copied_paths
from weft_mock import generation
from weft_router.engines import vllm
from weft_router.openai.event_filter import HANDLE_COMMENT
from weft_vllm import tap
from weft_vllm.guard import Guard, TransferRefusedError, wrong
from weft_vllm.plugin import PAGE, PROOF_FILE, TESTED, Plugin
from weft_vllm.tap import HandleMiddleware, Message, around

HANDLE = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": 194,
    "remote_blocks_expiry_time": None,
    "transfer_mode": "pull",
    "remote_prefill_cached_tokens": 0,
}
KEEP = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}
CHUNKS = (
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    b'data: {"finish_reason":"stop"}\n\n',
    b"data: [DONE]\n\n",
)
ASKS = {"x-weft-kv-handle": "1"}


class Client:
    """An engine client: every answer ends with an output that may hold a handle."""

    def __init__(self, *handles: dict[str, Any] | None) -> None:
        self.handles = handles
        self.got: list[Any] = []
        self.released: list[Any] = []
        self.closed = False

    async def generate(self, _prompt: str, sampling_params: Any, _id: str) -> AsyncGenerator[Any, None]:
        self.got.append(sampling_params)
        try:
            for handle in (None, *self.handles):
                yield SimpleNamespace(kv_transfer_params=handle)
        finally:
            self.closed = True

    async def notify_kv_transfer_request_rejected(self, _id: str, kv_transfer_params: Any) -> None:
        self.released.append(kv_transfer_params)


def sampling(params: object = None, n: int = 1) -> SimpleNamespace:
    return SimpleNamespace(extra_args={"kv_transfer_params": params} if params is not None else None, n=n)


def app(client: Any, *, kind: bytes = b"text/event-stream; charset=utf-8", params: object = None) -> Callable[..., Any]:
    """Return an API server: each output becomes a chunk, as vLLM's serving does it, in a task of its own."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        async def answer() -> None:
            outputs = client.generate("hello", sampling(params), "id")
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
            chunks = iter(CHUNKS)
            async for _ in outputs:
                await send({"type": "http.response.body", "body": next(chunks), "more_body": True})
            await send({"type": "http.response.body", "body": b"".join(chunks), "more_body": False})

        await asyncio.create_task(answer())

    return serve


async def ask(inner: Callable[..., Any], guard: Guard, **headers: str) -> tuple[dict[bytes, bytes], bytes]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": named}
    await asyncio.create_task(HandleMiddleware(inner, guard=guard)(scope, receive, send))
    return dict(sent[0]["headers"]), b"".join(message.get("body", b"") for message in sent[1:])


async def test_a_stream_that_asks_gets_the_handle_before_its_last_chunk() -> None:
    client, guard = Client(HANDLE), Guard()
    around(client, guard)
    headers, body = await ask(app(client), guard, **ASKS)
    assert headers[tap.PLUGIN_HEADER] == b"1"
    first, comment, *rest = body.split(b"\n\n")
    assert first + b"\n\n" == CHUNKS[0]
    assert comment.startswith(HANDLE_COMMENT)
    assert json.loads(comment[len(HANDLE_COMMENT) :]) == HANDLE
    assert b"\n\n".join(rest) == b"".join(CHUNKS[1:])


@pytest.mark.parametrize("headers", [{}, {"x-weft-kv-handle": "0"}])
async def test_nothing_is_added_unasked(headers: dict[str, str]) -> None:
    client, guard = Client(HANDLE), Guard()
    around(client, guard)
    told, body = await ask(app(client), guard, **headers)
    assert tap.PLUGIN_HEADER not in told
    assert body == b"".join(CHUNKS)


async def test_whole_answers_stay_as_they_are() -> None:
    client, guard = Client(HANDLE), Guard()
    around(client, guard)
    headers, body = await ask(app(client, kind=b"application/json"), guard, **ASKS)
    assert tap.PLUGIN_HEADER not in headers
    assert body == b"".join(CHUNKS)


@pytest.mark.parametrize("handles", [(), (HANDLE, HANDLE)])
async def test_a_stream_without_one_handle_says_only_that_the_plug_in_is_there(handles: tuple[Any, ...]) -> None:
    holder = tap.Holder()
    for handle in handles:
        holder.offer(handle)
    assert holder.comment() == b""
    client, guard = Client(), Guard()
    around(client, guard)
    headers, body = await ask(app(client), guard, **ASKS)
    assert headers[tap.PLUGIN_HEADER] == b"1"
    assert body == b"".join(CHUNKS)


async def test_two_requests_at_once_keep_their_own_handles() -> None:
    client, guard = Client(HANDLE), Guard()
    other = Client({**HANDLE, "remote_request_id": "other"})
    around(client, guard)
    around(other, guard)
    answers = await asyncio.gather(*(ask(app(one), guard, **ASKS) for one in (client, other, client)))
    for (_, body), name in zip(answers, ("r", "other", "r"), strict=True):
        assert f'"remote_request_id":"{name}"'.encode() in body
        assert body.count(HANDLE_COMMENT) == 1


async def test_a_cancelled_request_reaches_the_engine() -> None:
    client, guard = Client(HANDLE), Guard()
    around(client, guard)
    tap.HOLDER.set(tap.Holder())
    outputs: Any = client.generate("hello", sampling(), "id")
    await anext(outputs)
    await outputs.aclose()
    assert client.closed


BAD: dict[str, object] = {
    "kills": {"do_remote_prefill": True},
    "kills-without-blocks": {**HANDLE, "remote_block_ids": None},
    "kills-by-groups": {**HANDLE, "remote_block_ids": [1, 2]},
    "kills-by-no-blocks": {**HANDLE, "remote_block_ids": [[]]},
    "leaks": {"a": 1},
    "leaks-by-flags": {"do_remote_prefill": False, "do_remote_decode": False},
    "leaks-by-ids": {"prompt_token_ids": [1]},
    "both": {**HANDLE, "do_remote_decode": True},
    "text": "do_remote_prefill",
    "list": [HANDLE],
    "port-text": {**HANDLE, "remote_port": "5600"},
    "port-high": {**HANDLE, "remote_port": 70000},
    "port-true": {**HANDLE, "remote_port": True},
    "host": {**HANDLE, "remote_host": None},
    "degree": {**HANDLE, "tp_size": 0},
    "tokens": {**HANDLE, "remote_num_tokens": None},
    "expiry": {**HANDLE, "remote_blocks_expiry_time": "soon"},
    "push": {**HANDLE, "transfer_mode": "push"},
    "inner": {**KEEP, "_remote_blocks_processed": True},
    "half-a-history": {**KEEP, "remote_host": "10.9.9.9"},
}


@pytest.mark.parametrize("params", BAD.values(), ids=BAD.keys())
async def test_what_would_kill_or_leak_the_engine_never_reaches_it(params: object) -> None:
    client, guard = Client(HANDLE), Guard()
    around(client, guard)
    with pytest.raises(TransferRefusedError, match=r"^kv_transfer_params: "):
        await ask(app(client, params=params), guard, **ASKS)
    await client.notify_kv_transfer_request_rejected("id", params)
    assert not client.got
    assert not client.released


@pytest.mark.parametrize("params", [HANDLE, {**HANDLE, "do_remote_prefill": False, "do_remote_decode": True}, KEEP, {}])
def test_what_the_router_writes_is_sound(params: dict[str, Any]) -> None:
    assert wrong(params) is None
    assert not params or wrong(params, answers=2) is not None


async def test_with_a_proof_only_who_knows_it_may_transfer() -> None:
    client, guard = Client(HANDLE), Guard("word")
    around(client, guard)
    for given in ({}, {"x-weft-engine-proof": "other"}):
        with pytest.raises(TransferRefusedError, match="only the router"):
            await ask(app(client, params=HANDLE), guard, **ASKS, **given)
    await client.notify_kv_transfer_request_rejected("id", HANDLE)
    assert not client.got
    assert not client.released
    await ask(app(client), guard)
    _, body = await ask(app(client, params=HANDLE), guard, **ASKS, **{"x-weft-engine-proof": "word"})
    assert len(client.got) == 2
    assert body.count(HANDLE_COMMENT) == 1


class App:
    """What the plug-in is given of the API server."""

    def __init__(self) -> None:
        self.middleware: list[Any] = []
        self.pages: dict[str, Any] = {}
        self.status = 0

    def add_middleware(self, kind: Any, **options: Any) -> None:
        self.middleware.append((kind, options))

    def add_api_route(self, path: str, endpoint: Any, *, status_code: int, **_: Any) -> None:
        self.pages[path] = endpoint
        self.status = status_code


async def plugged(monkeypatch: pytest.MonkeyPatch, version: str) -> tuple[App, Client, Any]:
    monkeypatch.setattr(metadata, "version", lambda _: version)
    plugin, server, client = Plugin(), App(), Client(HANDLE)
    before = client.generate
    plugin.attach_router(server)
    await plugin.init_state(client, SimpleNamespace(), SimpleNamespace())
    return server, client, before


@pytest.mark.parametrize("version", ["0.30.0", "0.31.2", "0.32.0", "0.32.1+cpu"])
async def test_a_tested_vllm_gets_all_of_it(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    server, client, before = await plugged(monkeypatch, version)
    assert [kind for kind, _ in server.middleware] == [HandleMiddleware]
    assert client.generate != before
    page = await server.pages[PAGE]()
    assert server.status == 200
    assert page == {"plugin": "1", "vllm": version, "handles": True, "proof": False}


@pytest.mark.parametrize("version", ["0.29.9", "0.33.0", "1.0.0", "unknown"])
async def test_an_unknown_vllm_gets_nothing_but_told(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    server, client, before = await plugged(monkeypatch, version)
    assert not server.middleware
    assert client.generate == before
    page = await server.pages[PAGE]()
    assert server.status == 404  # for a router, the same as no page at all
    assert page == {"plugin": "1", "vllm": version, "handles": False, "proof": False}


def test_an_engine_does_not_start_without_the_proof_it_was_promised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(PROOF_FILE, str(tmp_path / "proof"))
    with pytest.raises(SystemExit, match="cannot be read"):  # which vLLM does not catch
        Plugin()
    (tmp_path / "proof").write_text("\n")
    with pytest.raises(SystemExit, match="is empty"):
        Plugin()
    (tmp_path / "proof").write_text("word\n")
    assert Plugin().guard.asks


def test_router_mock_and_plug_in_mean_the_same() -> None:
    assert vllm.HANDLE_HEADER.lower().encode() == generation.HANDLE_HEADER.lower().encode() == tap.HANDLE_HEADER
    assert vllm.PLUGIN_HEADER.lower().encode() == generation.PLUGIN_HEADER.lower().encode() == tap.PLUGIN_HEADER
    assert generation.PLUGIN_VERSION == tap.VERSION
    assert tap.Holder().comment() == b""
    holder = tap.Holder()
    holder.offer(HANDLE)
    assert holder.comment().startswith(HANDLE_COMMENT)
    assert holder.comment() == b""


def test_the_image_installs_the_plug_in_and_switches_it_on() -> None:
    dockerfile = (repository_root() / "images/vllm/Dockerfile").read_text()
    paths = copied_paths(dockerfile)
    assert "images/vllm/plugin" in paths
    assert all((repository_root() / path).exists() for path in paths)
    project = tomllib.loads((repository_root() / "images/vllm/plugin/pyproject.toml").read_text())
    (name,) = project["project"]["entry-points"]["vllm.endpoint_plugins"]
    assert name == Plugin.name
    (switched,) = re.findall(r"^ENV VLLM_PLUGINS=(\S+)$", dockerfile, re.MULTILINE)
    assert name in switched.split(",")
    (base,) = re.findall(r"^ARG VLLM_IMAGE=\S+:v(\S+)$", dockerfile, re.MULTILINE)
    assert base.startswith(TESTED)
