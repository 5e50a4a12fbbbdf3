"""A collector of OpenTelemetry spans over a real socket, which answers what a test says."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson


class Collector(ThreadingHTTPServer):
    """A collector that answers what the test says and remembers what it was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        self.statuses = [200]
        self.got: list[tuple[str, dict[str, str], Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:  # noqa: N805
                body = handler.rfile.read(int(handler.headers["Content-Length"]))
                self.got.append((handler.path, dict(handler.headers), orjson.loads(body)))
                handler.send_response(self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0])
                handler.end_headers()

            def log_message(handler, *_: object) -> None:  # noqa: N805
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def spans(self) -> list[dict[str, Any]]:
        """Return every span it was sent."""
        scopes = [scope for *_, body in self.got for r in body["resourceSpans"] for scope in r["scopeSpans"]]
        return [span for scope in scopes for span in scope["spans"]]


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector."""
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(5)
        server.server_close()
