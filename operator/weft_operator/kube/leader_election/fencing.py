"""Fenced connections: a check just before the bytes of a write are sent."""

import socket
from collections.abc import Callable
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection


def fenced_pools(check: Callable[[], None]) -> dict[str, type[urllib3.HTTPConnectionPool]]:
    """Return connection pools by scheme whose writes call ``check`` after waiting for and opening a connection.

    A check before the request would be too early: the connection may take seconds to open, or the process may be
    stopped meanwhile. An exception of ``check`` ends the connection, so that nothing is sent.
    """

    class Fenced:
        sock: socket.socket | None

        def putrequest(self, method: str, *args: Any, **kwargs: Any) -> None:
            self._changes = method != "GET"
            super().putrequest(method, *args, **kwargs)  # type: ignore[misc]

        def send(self, data: Any) -> None:
            if self.sock is None:
                self.connect()  # type: ignore[attr-defined]
            if self._changes:
                check()
            super().send(data)  # type: ignore[misc]

    class FencedHttp(Fenced, HTTPConnection):
        pass

    class FencedHttps(Fenced, HTTPSConnection):
        pass

    class HttpPool(urllib3.HTTPConnectionPool):
        ConnectionCls = FencedHttp

    class HttpsPool(urllib3.HTTPSConnectionPool):
        ConnectionCls = FencedHttps

    return {"http": HttpPool, "https": HttpsPool}
