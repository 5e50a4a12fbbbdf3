"""Fetching keys: one bounded answer or an OSError, and nobody is followed elsewhere."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from weft_router.guard.fetch import MAX_BYTES, fetch


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
