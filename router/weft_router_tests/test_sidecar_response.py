"""What sidecars tell their coordinator: found behind whatever an answer says, and never taken from its text."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any, cast

import pytest

from weft_core.heartbeat import WorkerRecord
from weft_router.config import LimitsConfig, ModelConfig, read_config
from weft_router.engines.catalogue import adapter_for
from weft_router.errors import StreamBrokenError
from weft_router.http.connection import Connection
from weft_router.http.connections import Connections
from weft_router.http.exchange import Exchange
from weft_router.http.head import Request
from weft_router.http.limits import HttpLimits
from weft_router.http.pool import ConnectionPool
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import check_request
from weft_router.roles.relay import Relay
from weft_router.roles.sidecar_response import read_usage, split_comment
from weft_router.rounds.response_writer import ResponseWriter
from weft_router.sessions.round_request import RoundRequest
from weft_router.telemetry.metrics import Metrics
from weft_router_tests.stack import free_port, router_json

TEXT = b'data: {"text": "\\n: weft-broken off, : weft-tokens 1 1"}\n\n'


@pytest.mark.parametrize(
    ("events", "kept", "said"),
    [
        (TEXT, TEXT, b""),
        (TEXT + b": weft-broken worker lost\n\n", TEXT, b"broken worker lost\n\n"),
        (b": weft-tokens 12 3\n\n", b"", b"tokens 12 3\n\n"),
        (b": ping\n\n", b": ping\n\n", b""),
    ],
)
def test_a_comment_counts_where_it_is_one(events: bytes, kept: bytes, said: bytes) -> None:
    assert split_comment(events) == (kept, said)


@pytest.mark.parametrize(
    ("said", "found"), [(b"12 3\n\n", (12, 3)), (b"", (0, 0)), (b"12", (0, 0)), (b"1 x", (0, 0)), (b"1 2 3", (0, 0))]
)
def test_counts_that_cannot_be_read_are_none(said: bytes, found: tuple[int, int]) -> None:
    assert read_usage(said) == found


async def serve(_: Exchange) -> None: ...


class Client:
    """The transport of a client that takes what it is given."""

    def __init__(self) -> None:
        self.got = b""
        owner = Connections(serve, lambda _, __: None, HttpLimits())
        self.connection = Connection(owner, HttpLimits(), gate=None)
        self.connection.connection_made(cast(asyncio.Transport, self))

    def set_write_buffer_limits(self, high: int) -> None: ...

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.got += data

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.got += b"".join(parts)

    def close(self) -> None: ...

    def abort(self) -> None: ...


async def relayed(answer: bytes) -> tuple[Client, ResponseWriter, StreamBrokenError | None]:
    """Relay one answer of a sidecar, which comes in one piece of the socket."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(answer)
        writer.write(head + answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    port = free_port()
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    config = read_config(json.dumps(router_json()).encode(), source="router.json")
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    model, limits = ModelConfig.model_validate({"name": "m", "maxModelLen": 100}), LimitsConfig.model_validate({})
    inference = check_request("/v1/chat/completions", body, RequestLimits(model, limits))
    pool = ConnectionPool(connect_s=1.0, keepalive_s=1.0)
    relay = Relay(config, adapter=adapter_for("openai"), pool=pool, metrics=Metrics())
    client = Client()
    request = Request("POST", "/v1/chat/completions", "", {}, b"", http10=False, keep_alive=True)
    answer_writer = ResponseWriter(Exchange(client.connection, request), "")
    job = RoundRequest(id="weft-1", session="s", tenant="t", inference=inference, started=0.0)
    record = WorkerRecord(worker="d0", role="decode", url=f"http://127.0.0.1:{port}", degree=1, capacity=1)
    broken: StreamBrokenError | None = None
    try:
        await relay.serve(record, job, answer_writer)
    except StreamBrokenError as error:
        broken = error
    finally:
        await pool.close()
        server.close()
        await server.wait_closed()
    return client, answer_writer, broken


@pytest.mark.component
async def test_text_that_looks_like_a_comment_does_not_hide_one_behind_it() -> None:
    client, _, broken = await relayed(TEXT + b": weft-broken off\n\n")
    assert broken is not None
    assert (broken.reason, broken.from_worker) == ("off", True)
    assert TEXT in client.got
    assert client.got.count(b"weft-broken") == TEXT.count(b"weft-broken")


@pytest.mark.component
async def test_counts_are_kept_from_the_client() -> None:
    client, answer_writer, broken = await relayed(TEXT + b"data: [DONE]\n\n: weft-tokens 7 5\n\n")
    assert broken is None
    assert answer_writer.used == (7, 5)
    assert client.got.count(b"weft-tokens") == TEXT.count(b"weft-tokens")
