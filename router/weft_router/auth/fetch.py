"""Fetch a small document over HTTPS, once in minutes: in a thread, with bounds on size and time, without redirects."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

Connect = Callable[..., socket.socket]
"""Opens a connection, as ``socket.create_connection`` does."""

TIMEOUT_S = 10.0
"""For the whole exchange, by the clock."""
RESOLVE_S = 1.0
"""So much longer is waited where even the thread does not end: to resolve a name knows no timeout."""
MAX_BYTES = 2**20
_CHUNK = 65536

_thread = ThreadPoolExecutor(1, thread_name_prefix="fetch")
"""One, and not the loop's own: an address that cannot be resolved in time must not take threads from others."""


class _NoRedirects(HTTPRedirectHandler):
    """A party that could redirect the request could choose the keys."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Follow none: the answer stays the error that it is."""


class _Plain(HTTPConnection):
    def __init__(self, connect: Connect, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._create_connection = connect


class _Encrypted(HTTPSConnection):
    def __init__(self, connect: Connect, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._create_connection = connect


class _Http(HTTPHandler):
    def __init__(self, connect: Connect) -> None:
        super().__init__()
        self._connect = connect

    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(partial(_Plain, self._connect), req)


class _Https(HTTPSHandler):
    def __init__(self, connect: Connect) -> None:
        super().__init__()
        self._connect = connect

    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(partial(_Encrypted, self._connect), req)


class _Deadline:
    """Ends connections at a moment: a byte now and then would keep within a timeout of each read forever."""

    def __init__(self, connect: Connect) -> None:
        self._inner = connect
        self._at = time.monotonic() + TIMEOUT_S
        self._lock = threading.Lock()
        self._watched: list[socket.socket] = []
        self._timer = threading.Timer(TIMEOUT_S, self._end)
        self._timer.daemon = True

    def __enter__(self) -> "_Deadline":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            for connection in self._watched:
                connection.close()
            self._watched.clear()

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self._at

    def connect(self, *args: Any, **options: Any) -> socket.socket:
        opened = self._inner(*args, **options)
        with self._lock:
            # A second descriptor: TLS takes the first one away from the object that was opened.
            self._watched.append(opened.dup())
        if self.passed:
            self._end()
        return opened

    def _end(self) -> None:
        with self._lock:
            for connection in self._watched:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


async def fetch(url: str, *, connect: Connect = socket.create_connection) -> bytes:
    """Return the body of a 200 answer; certificates are checked against the system's authorities.

    ``connect`` opens the connection and may refuse to.

    Raises:
        OSError: there is no such answer, it came too late, or it is larger than ``MAX_BYTES``.
    """
    async with asyncio.timeout(TIMEOUT_S + RESOLVE_S):
        return await asyncio.get_running_loop().run_in_executor(_thread, _get, url, connect)


def _get(url: str, connect: Connect) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise OSError("is no HTTP address")
    with _Deadline(connect) as deadline:
        try:
            body = _body(url, deadline.connect)
        except (OSError, HTTPException, ValueError) as error:
            if deadline.passed:
                raise TimeoutError("did not answer as a whole in time") from error
            if isinstance(error, OSError):
                raise
            raise OSError("gave no answer of HTTP") from error
        if deadline.passed:
            raise TimeoutError("did not answer as a whole in time")
    return body


def _body(url: str, connect: Connect) -> bytes:
    request = Request(url, headers={"Accept": "application/json", "User-Agent": "weft"})  # noqa: S310 - checked above
    with build_opener(_NoRedirects, _Http(connect), _Https(connect)).open(request, timeout=TIMEOUT_S) as answer:
        if answer.status != 200:
            raise OSError(f"answered {answer.status}")
        body = bytearray()
        while part := answer.read(_CHUNK):
            body += part
            if len(body) > MAX_BYTES:
                raise OSError(f"is larger than {MAX_BYTES} bytes")
    return bytes(body)
