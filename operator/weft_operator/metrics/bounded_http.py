"""Limits of an HTTP exchange: total time, bytes of the responses, and memory of their JSON."""

import io
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util.retry import Retry

MAX_BYTES = 16 * 1024 * 1024
"""Bytes of all responses of an exchange, decompressed."""

MAX_VALUES = 500_000
"""Objects, lists and entries in all answers of an exchange; in memory each takes 100 bytes.

A series has 8, and the largest services some 40,000 series: 1,000 pods on trial with 40 buckets each.
"""

_CHUNK = 65536


class TooLargeError(Exception):
    """A response is larger than the limit."""


class TooSlowError(Exception):
    """A response was not complete in time."""


class Budget:
    """The limits of one exchange: seconds, bytes and JSON values. Use it as a context manager.

    It ends connections at its moment, whatever a server still sends: a server that sends a byte now and then keeps
    within a timeout of each read forever.
    """

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds
        self._bytes = MAX_BYTES
        self._values = MAX_VALUES
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> "Budget":
        """Start the timer."""
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the timer."""
        self._timer.cancel()

    @property
    def passed(self) -> bool:
        """Return whether the time is over."""
        return time.monotonic() >= self._at

    def take_bytes(self, count: int) -> None:
        """Count bytes of a response.

        Raises:
            TooLargeError: they are more than are left.
        """
        self._bytes -= count
        if self._bytes < 0:
            raise TooLargeError(f"is longer than {MAX_BYTES} bytes")

    def take_values(self, count: int) -> None:
        """Count values of a response's JSON.

        Raises:
            TooLargeError: they are more than are left.
        """
        self._values -= count
        if self._values < 0:
            raise TooLargeError(f"holds more than {MAX_VALUES} values")

    def watch(self, connection: socket.socket) -> None:
        """Close this connection at the end of the time, too."""
        with self._lock:
            self._sockets.append(connection)
        if self.passed:
            self._end()

    def _end(self) -> None:
        with self._lock:
            for connection in self._sockets:
                with suppress(OSError):
                    # The method of ssl's own class would change an object that another thread reads from.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)


class BudgetAdapter(HTTPAdapter):
    """Opens connections that a budget closes, with the TLS ``context`` where one is given."""

    def __init__(self, budget: Budget, context: ssl.SSLContext | None = None) -> None:
        self._budget = budget
        self._context = context
        super().__init__(max_retries=Retry(total=0))

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """Let the budget close every connection."""
        if self._context is not None:
            options["ssl_context"] = self._context
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = _pools(self._budget.watch)


def _pools(watch: Callable[[socket.socket], None]) -> dict[str, type[urllib3.HTTPConnectionPool]]:
    class Plain(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            watch(self.sock)

    class Encrypted(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            if self.sock is not None:
                watch(self.sock)

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class EncryptedPool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Encrypted

    return {"http": PlainPool, "https": EncryptedPool}


def whole(response: requests.Response, budget: Budget) -> requests.Response:
    """Return a response with its complete body, as text in UTF-8.

    Raises:
        TooLargeError: it holds more bytes or values than are left.
        TooSlowError: it did not come as a whole in time.
    """
    body = bytearray()
    try:
        for part in response.iter_content(_CHUNK):
            budget.take_bytes(len(part))
            body += part
            if budget.passed:
                raise TooSlowError
    finally:
        response.close()
    if budget.passed:
        raise TooSlowError  # the connection was ended, which may look like the end of an answer
    budget.take_values(sum(map(body.count, (b"{", b"[", b","))))
    read = requests.Response()
    # Without an encoding the client would guess one, which takes minutes for megabytes of junk.
    read.__dict__.update(response.__dict__, raw=io.BytesIO(), encoding="utf-8")
    read.__dict__.update(_content=bytes(body), _content_consumed=True)
    return read
