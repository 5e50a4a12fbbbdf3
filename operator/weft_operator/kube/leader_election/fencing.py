"""Connections that ask leave at the last moment before a write goes out."""

import socket
from collections.abc import Callable
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection


def fenced_pools(check: Callable[[], None]) -> dict[str, type[urllib3.HTTPConnectionPool]]:
    """Return connection pools by scheme whose writes call ``check`` when all waiting and connecting is done.

    A check before the request would not do: a connection that takes seconds to open, or a process that is stopped
    meanwhile, would send what was allowed long ago. What it raises ends the connection, so that nothing goes out.
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
