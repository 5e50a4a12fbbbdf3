"""Fetch a small document over HTTPS, once in minutes: in a thread, with bounds on size and time, without redirects."""

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

Connect = Callable[..., socket.socket]
"""Opens a connection, as ``socket.create_connection`` does."""

TIMEOUT_S = 10.0
MAX_BYTES = 2**20


class _NoRedirects(HTTPRedirectHandler):
    """Whoever could redirect the request could choose the keys."""

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


async def fetch(url: str, *, connect: Connect = socket.create_connection) -> bytes:
    """Return the body of a 200 answer; certificates are checked against the system's authorities.

    ``connect`` opens the connection and may refuse to.

    Raises:
        OSError: there is no such answer, it came too late, or it is larger than ``MAX_BYTES``.
    """
    return await asyncio.to_thread(_get, url, connect)


def _get(url: str, connect: Connect) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise OSError("is no HTTP address")
    request = Request(url, headers={"Accept": "application/json", "User-Agent": "weft"})  # noqa: S310 - checked above
    with build_opener(_NoRedirects, _Http(connect), _Https(connect)).open(request, timeout=TIMEOUT_S) as answer:
        if answer.status != 200:
            raise OSError(f"answered {answer.status}")
        body: bytes = answer.read(MAX_BYTES + 1)
    if len(body) > MAX_BYTES:
        raise OSError(f"is larger than {MAX_BYTES} bytes")
    return body
