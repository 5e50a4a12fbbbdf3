"""Fetching keys: one bounded answer or an OSError, and nobody is followed elsewhere."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from weft_router.auth import fetch as fetching
from weft_router.auth.fetch import MAX_BYTES, fetch


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        kind = self.path.strip("/")
        if kind == "redirect":
            self.send_response(302)
            self.send_header("Location", "/keys")
            self.end_headers()
            return
        self.send_response({"missing": 404, "broken": 500, "empty": 204}.get(kind, 200))
        self.end_headers()
        if kind in ("keys", "large"):
            self.wfile.write(b"{}" if kind == "keys" else b"x" * (MAX_BYTES + 10))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""


@pytest.fixture
def provider() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.component
async def test_an_answer_is_returned(provider: str) -> None:
    assert await fetch(f"{provider}/keys") == b"{}"


@pytest.mark.component
@pytest.mark.parametrize("path", ["missing", "broken", "empty", "redirect", "large"])
async def test_anything_else_is_an_oserror(provider: str, path: str) -> None:
    with pytest.raises(OSError, match=r"."):
        await fetch(f"{provider}/{path}")


@pytest.mark.component
async def test_nobody_there_is_an_oserror(provider: str) -> None:
    with pytest.raises(OSError, match=r"."):
        await fetch("http://127.0.0.1:9/")
    with pytest.raises(OSError, match="no HTTP address"):
        await fetch("file:///etc/passwd")


@pytest.fixture
def dripping() -> Iterator[tuple[str, list[bytes]]]:
    """Serve connections that get the first of some parts, and then the second again and again."""
    parts: list[bytes] = []
    stop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        try:
            with connection:
                connection.recv(65536)
                connection.sendall(parts[0])
                while not stop.wait(0.02):
                    connection.sendall(parts[1])
        except OSError:
            pass

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/keys", parts
    stop.set()
    listener.close()


@pytest.mark.component
@pytest.mark.parametrize(
    ("head", "part"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"y"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n[", b" "),
    ],
    ids=["head", "continue", "body", "chunks", "length"],
)
async def test_an_answer_that_drips_is_ended_by_the_clock(
    dripping: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch, head: bytes, part: bytes
) -> None:
    url, parts = dripping
    parts[:] = head, part
    monkeypatch.setattr(fetching, "TIMEOUT_S", 0.3)
    began = time.monotonic()
    async with asyncio.timeout(5):
        with pytest.raises(OSError, match="in time"):
            await fetch(url)
    assert time.monotonic() - began < 5


@pytest.mark.component
@pytest.mark.parametrize("head", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n"])
async def test_what_is_no_http_is_an_oserror(dripping: tuple[str, list[bytes]], head: bytes) -> None:
    url, parts = dripping
    parts[:] = head, b" "
    with pytest.raises(OSError, match="HTTP"):
        await fetch(url)


async def test_a_name_that_is_not_resolved_takes_no_thread_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    monkeypatch.setattr(fetching, "TIMEOUT_S", 0.01)
    monkeypatch.setattr(fetching, "RESOLVE_S", 0.0)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: stop.wait(20))
    for _ in range(64):
        with pytest.raises(TimeoutError):
            await fetch("https://slow.example.com/keys")
    assert await asyncio.wait_for(asyncio.to_thread(lambda: 7), 5) == 7
    stop.set()
