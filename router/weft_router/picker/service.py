"""The gRPC server of an endpoint picker: Envoy's external processor, and health checks."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import grpc

from weft_core.authority import authority
from weft_router.config import Settings, TlsConfig
from weft_router.picker.messages import Abort, BodyReply, ImmediateReply, Reply, WholeBodyReply
from weft_router.picker.proxy_request import ProxyRequest, ProxyRequests, RequestHost
from weft_router.picker.wire import SERVICE, read, written

log = logging.getLogger(__name__)

HEALTH_SERVICE: Final = "grpc.health.v1.Health"
LIVENESS: Final = "liveness"
_READINESS: Final = frozenset({"", "readiness", SERVICE})
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"
"""Serialized HealthCheckResponse messages."""
HIGH_BYTES: Final = 512 * 2**10
"""An answer waits while the proxy has so many bytes yet to take."""
LOW_BYTES: Final = 128 * 2**10
_SLACK_BYTES: Final = 2**20
"""What a message has besides a body."""


class ReplyQueue:
    """Replies on their way to the proxy, bounded by making their source wait."""

    def __init__(self) -> None:
        self._replies: deque[Reply] = deque()
        self._size = 0
        self._filled = asyncio.Event()
        self._full = False
        self.closed = False
        self.on_full: Callable[[bool], None] = _ignore
        """Called when the queue becomes full, and when it no longer is."""

    def put(self, reply: Reply) -> None:
        """Add a reply."""
        self._replies.append(reply)
        self._size += _size(reply)
        self._filled.set()
        if self._size > HIGH_BYTES and not self._full:
            self._full = True
            self.on_full(True)

    def close(self) -> None:
        """Add no more: the proxy is gone."""
        self.closed = True
        self._filled.set()

    async def get(self) -> Reply | None:
        """Return the next reply; None once the queue is closed and empty."""
        while not self._replies:
            if self.closed:
                return None
            self._filled.clear()
            await self._filled.wait()
        reply = self._replies.popleft()
        self._size -= _size(reply)
        if self._full and self._size < LOW_BYTES:
            self._full = False
            self.on_full(False)
        return reply


class PickerService:
    """The RPCs of a picker."""

    def __init__(self, host: RequestHost, requests: ProxyRequests, *, ready: Callable[[], str | None]) -> None:
        self._host = host
        self._requests = requests
        self._ready = ready

    async def process(self, messages: AsyncIterator[bytes], context: Any) -> None:
        """Process one HTTP request of a proxy."""
        replies = ReplyQueue()
        proxied = ProxyRequest(self._host, requests=self._requests, emit=replies.put)
        replies.on_full = lambda full: proxied.pause_answer(full=full)
        reader = asyncio.get_running_loop().create_task(self._read(messages, proxied, replies))
        try:
            while (reply := await replies.get()) is not None:
                if isinstance(reply, Abort):
                    await context.abort(grpc.StatusCode.INTERNAL, reply.reason)
                await context.write(written(reply))
                if isinstance(reply, ImmediateReply):
                    return
        finally:
            reader.cancel()
            proxied.lost()

    async def _read(self, messages: AsyncIterator[bytes], proxied: ProxyRequest, replies: ReplyQueue) -> None:
        """Give the proxy's messages to a request until the proxy ends the stream."""
        try:
            async for data in messages:
                message = read(data)
                if message is not None:
                    proxied.receive(message)
                await proxied.attempt.may_read.wait()
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("proxy_message_failed")
            replies.put(Abort("the message could not be processed"))
        finally:
            replies.close()

    async def check(self, request: bytes, context: Any) -> bytes:
        """Answer a health check."""
        service = _service_name(request)
        if service == LIVENESS:
            return _SERVING
        if service not in _READINESS:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service; ask for liveness or readiness")
        return _SERVING if self._ready() is None else _NOT_SERVING


def open_server(service: PickerService, settings: Settings) -> grpc.aio.Server:
    """Return a server that listens where the settings say.

    Raises:
        OSError: the port is taken.
    """
    most = settings.config.limits.max_body_bytes + _SLACK_BYTES
    options = [
        ("grpc.max_receive_message_length", most),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", int(settings.processes > 1)),
    ]
    server = grpc.aio.server(options=options)
    process = grpc.stream_stream_rpc_method_handler(service.process)
    check = grpc.unary_unary_rpc_method_handler(service.check)
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(SERVICE, {"Process": process}),
            grpc.method_handlers_generic_handler(HEALTH_SERVICE, {"Check": check}),
        )
    )
    where = authority(settings.host, settings.port)
    try:
        tls = settings.config.tls
        if tls is None:
            server.add_insecure_port(where)
        else:
            server.add_secure_port(where, _credentials(tls))
    except RuntimeError as error:
        raise OSError(f"cannot listen on {where}: {error}") from error
    return server


def _credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """Return credentials with the certificate in the files, which are read again for each new connection."""

    def read_files() -> Any:
        pair = (Path(tls.key_file).read_bytes(), Path(tls.cert_file).read_bytes())
        authority = Path(tls.client_ca_file).read_bytes() if tls.client_ca_file else None
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=authority)

    return grpc.dynamic_ssl_server_credentials(read_files(), read_files, bool(tls.client_ca_file))


def _service_name(request: bytes) -> str:
    """Return the service in a HealthCheckRequest, whose only field is a string with the number 1."""
    return request[2:].decode("utf-8", "replace") if request[:1] == b"\x0a" else ""


def _size(reply: Reply) -> int:
    if isinstance(reply, BodyReply | WholeBodyReply):
        return len(reply.data)
    return len(reply.body) if isinstance(reply, ImmediateReply) else 0


def _ignore(full: bool) -> None:
    del full
