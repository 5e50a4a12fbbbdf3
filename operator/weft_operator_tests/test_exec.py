"""Commands in pods: what they wrote, and every way in which they fail, over a real WebSocket."""

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest
from aiohttp import web
from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration

from weft_operator.api.objects import ObjectKey
from weft_operator.errors import ApiError, ForbiddenError, NotFoundError, TransientError
from weft_operator.kube import exec as exec_module
from weft_operator.kube.client import KubeClient
from weft_operator.kube.exec import output_of

pytestmark = pytest.mark.component

POD = ObjectKey("v1", "Pod", "default", "demo-d1-0-0")
SUCCESS = json.dumps({"status": "Success"}).encode()
Frames = list[tuple[int, bytes]]


class Execs:
    """An API server that runs commands: it sends frames by channel, or refuses."""

    def __init__(self) -> None:
        self.frames: Frames = []
        self.status = 101
        self.ends = True
        self.asked: list[tuple[str, list[str], str]] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        assert self._started.wait(30)
        settings = Configuration()
        settings.host = f"http://127.0.0.1:{self.port}"
        settings.api_key = {"authorization": "Bearer secret"}
        self.api = KubeClient(ApiClient(configuration=settings))

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/default/pods/demo-d1-0-0/exec", self._exec)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        self._started.set()
        await self._end.wait()
        await runner.cleanup()

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        self.asked.append((query["container"], query.getall("command"), request.headers.get("Authorization", "")))
        if self.status != 101:
            return web.json_response({"message": "no"}, status=self.status)
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"))
        await socket.prepare(request)
        for channel, words in self.frames:
            await socket.send_bytes(bytes([channel]) + words)
        if self.ends:
            await socket.close()
        else:
            await self._end.wait()
        return socket

    def close(self) -> None:
        """End the server, once."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(30)
            self._loop.close()


@pytest.fixture
def server() -> Iterator[Execs]:
    execs = Execs()
    yield execs
    execs.close()


def run(server: Execs) -> str:
    return output_of(server.api, POD, "router", ("python", "-m", "weft_router.ask", "/debug/sessions?n=1"))


def test_the_output_of_a_command_is_returned_whole(server: Execs) -> None:
    server.frames = [(1, b"one "), (2, b"a warning"), (1, "größer".encode()), (3, SUCCESS)]
    assert run(server) == "one größer"
    words = ["python", "-m", "weft_router.ask", "/debug/sessions?n=1"]
    assert server.asked == [("router", words, "Bearer secret")]


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([(2, b"weft ask: refused\n"), (3, b'{"status": "Failure", "message": "exit code 1"}')], "weft ask: refused"),
        ([(3, b'{"status": "Failure", "message": "container router not found"}')], "container router not found"),
        ([(1, b"half")], "it was cut off"),
        ([(3, b"no json")], "it was cut off"),
    ],
)
def test_a_command_that_fails_says_why(server: Execs, frames: Frames, words: str) -> None:
    server.frames = frames
    with pytest.raises(TransientError, match=words):
        run(server)


@pytest.mark.parametrize(("status", "kind"), [(403, ForbiddenError), (404, NotFoundError), (500, TransientError)])
def test_refusals_are_errors_of_our_own(server: Execs, status: int, kind: type[ApiError]) -> None:
    server.status = status
    with pytest.raises(ApiError, match=f"pods/exec: {status}") as caught:
        run(server)
    assert type(caught.value) is kind


def test_a_command_that_does_not_end_is_given_up(server: Execs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_module, "TIMEOUT_S", 0.2)
    server.ends = False
    with pytest.raises(TransientError, match="did not end within"):
        run(server)


def test_a_server_that_is_away_is_an_error_of_our_own(server: Execs) -> None:
    server.close()
    with pytest.raises(TransientError, match="no answer from the API server"):
        run(server)
