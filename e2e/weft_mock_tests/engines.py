"""Start mock engines inside the test's own event loop, on free ports of loopback."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import aiohttp
import orjson

from weft_core.authority import http_url
from weft_core.cost import CostProfile, DecodePiece, DegreeCosts, PrefillPiece, TransferCost
from weft_mock.config import EngineConfig
from weft_mock.engine import Engine
from weft_mock.server import EngineServer

MODEL = "test/model"
PATIENCE = 20.0


def profile(*, decode: float = 0.001, kv_capacity: int = 4096) -> CostProfile:
    """Return a profile with round figures: prefill 1 ms + 10 us a token, transfers 1 ms + 1 us a token."""
    costs = DegreeCosts(
        prefill=(PrefillPiece(alpha=0.001, per_token=1e-5),),
        decode=(DecodePiece(alpha=decode, per_chunk_token=1e-5),),
        weight_bytes_per_gpu=1,
        kv_capacity_tokens=kv_capacity,
    )
    transfers = {(s, d, "inter-node"): TransferCost(alpha=0.001, per_token=1e-6) for s in (1, 2) for d in (1, 2)}
    return CostProfile(
        model=MODEL,
        gpu="none",
        engine="mock",
        kv_bytes_per_token=100,
        degrees={1: costs, 2: costs},
        transfers=transfers,  # type: ignore[arg-type]
    )


def config(**changes: object) -> EngineConfig:
    """Return a configuration on free ports; ``changes`` as for EngineConfig."""
    base = EngineConfig(
        model=MODEL,
        profile=profile(),
        degree=1,
        engine_id="engine",
        port=0,
        side_channel_port=0,
        max_model_len=2048,
        bidirectional=True,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Reply:
    """One answered request."""

    status: int
    body: dict[str, object]

    @property
    def text(self) -> str:
        """Return the first answer's text."""
        choices = self.body["choices"]
        assert isinstance(choices, list)
        choice = choices[0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])

    @property
    def handle(self) -> dict[str, object]:
        """Return the KV handle."""
        handle = self.body["kv_transfer_params"]
        assert isinstance(handle, dict)
        return dict(handle)

    @property
    def usage(self) -> dict[str, object]:
        """Return the usage object."""
        usage = self.body["usage"]
        assert isinstance(usage, dict)
        return usage

    @property
    def error(self) -> dict[str, object]:
        """Return the error object."""
        error = self.body["error"]
        assert isinstance(error, dict)
        return error


@dataclass(frozen=True)
class Stream:
    """One streamed answer, taken apart."""

    headers: Mapping[str, str]
    events: list[dict[str, object]]
    comments: list[str]
    lines: list[str]

    def choices(self) -> list[dict[str, object]]:
        """Return the choice of every event that has one."""
        return [c for e in self.events if isinstance(e.get("choices"), list) for c in e["choices"]]  # type: ignore[attr-defined]

    @property
    def text(self) -> str:
        """Return the whole text of the first answer."""
        parts = [c["delta"]["content"] if "delta" in c else c["text"] for c in self.choices() if c["index"] == 0]  # type: ignore[index]
        return "".join(map(str, parts))

    @property
    def handle(self) -> dict[str, object]:
        """Return the handle the plug-in sent."""
        (comment,) = self.comments
        body = orjson.loads(comment.removeprefix(": kv_transfer_params "))
        assert isinstance(body, dict)
        return body


class Client:
    """Talk to one engine."""

    def __init__(self, server: EngineServer, session: aiohttp.ClientSession, *, port: int, side_port: int) -> None:
        """Remember where it is."""
        self.engine: Engine = server.engine
        self.url = http_url(server.engine.config.host, port)
        self.side_port = side_port
        self._session = session

    async def post(self, path: str, body: object, **headers: str) -> Reply:
        """Send a request and read the whole reply."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self._session.post(self.url + path, data=data, headers=named) as reply:
            return Reply(reply.status, orjson.loads(await reply.read()))

    async def get(self, path: str) -> tuple[int, bytes]:
        """Read a page."""
        async with self._session.get(self.url + path) as reply:
            return reply.status, await reply.read()

    async def chat(self, messages: list[dict[str, object]], *, request_id: str = "r", **fields: object) -> Reply:
        """Ask for a chat completion."""
        return await self.post("/v1/chat/completions", {"messages": messages, **fields}, X_Request_Id=request_id)

    async def stream(
        self, messages: list[dict[str, object]], *, plugin: bool = False, request_id: str = "r", **fields: object
    ) -> Stream:
        """Ask for a streamed chat completion."""
        body = {"messages": messages, "stream": True, **fields}
        headers = {"X-Request-Id": request_id} | ({"X-Weft-KV-Handle": "1"} if plugin else {})
        async with self._session.post(
            self.url + "/v1/chat/completions", data=orjson.dumps(body), headers=headers
        ) as reply:
            assert reply.status == 200, await reply.text()
            text = (await reply.read()).decode()
            return take_apart(text, dict(reply.headers))

    async def open_stream(self, messages: list[dict[str, object]], **fields: object) -> aiohttp.ClientResponse:
        """Start a stream and return it with its first event read."""
        body = {"messages": messages, "stream": True, **fields}
        reply = await self._session.post(self.url + "/v1/chat/completions", data=orjson.dumps(body))
        await reply.content.readline()
        return reply

    async def faults(self, **faults: object) -> None:
        """Arrange faults."""
        reply = await self.post("/mock/faults", faults)
        assert reply.status == 200, reply.body


def take_apart(text: str, headers: Mapping[str, str]) -> Stream:
    """Split a stream into events and comments."""
    lines = [line for line in text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    events = [orjson.loads(line.removeprefix("data: ")) for line in lines[:-1] if line.startswith("data: ")]
    return Stream(headers, events, [line for line in lines if line.startswith(":")], lines)


@asynccontextmanager
async def engines(*configs: EngineConfig, die: Callable[[], None] | None = None) -> AsyncIterator[list[Client]]:
    """Run engines and yield a client for each; verify their blocks' books at the end."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=PATIENCE), connector=aiohttp.TCPConnector(limit=0)
            )
        )
        clients: list[Client] = []
        for each in configs:
            server = EngineServer(Engine(each, die=die))
            port, side_port = await server.start()
            stack.push_async_callback(server.stop)
            clients.append(Client(server, session, port=port, side_port=side_port))
        yield clients
        for client in clients:
            client.engine.scheduler.pool.check()
            assert client.engine.failed is not None
            assert not client.engine.failed.done()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; fail after the patience of a test."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition never came true"
        await asyncio.sleep(0.002)


EXPORT: dict[str, object] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


async def at_rest(*clients: Client) -> None:
    """Wait until the engines hold nothing for anybody; fail after the patience of a test."""
    for client in clients:
        engine = client.engine
        await until(
            lambda e=engine: (  # type: ignore[misc]
                e.scheduler.pool.used == 0 and not e.pins and not len(e.meetings) and not e.scheduler.waiting
            )
        )
        status, body = await client.get("/mock/ledger")
        assert status == 200
        assert orjson.loads(body)["holds"]["total"] == 0
