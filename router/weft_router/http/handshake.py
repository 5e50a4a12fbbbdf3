"""Connect to another router process: both ends prove that they know the service's token without sending it.

A connection proves itself once, before the first request goes out, and all its requests belong to who proved it; so do
the streams of a link that it carries. Each end gives a nonce; a proof is a MAC over both, the side, and the authority
that was dialled, so that it is good for no other connection and no other address:

    GET /internal/hello    X-Weft-Authority, X-Weft-Nonce   ->   204, X-Weft-Nonce, X-Weft-Proof of the server
    GET /internal/prove    X-Weft-Proof of the client       ->   204

Whoever has taken over a worker's address cannot answer the first, and sees no request.
"""

import asyncio
import hmac
import logging
import re
import secrets
from typing import Final, Literal, cast

from weft_router.http.header_lines import header_lines
from weft_router.http.upstream_connection import Origin

log = logging.getLogger(__name__)

HELLO_PATH: Final = "/internal/hello"
PROVE_PATH: Final = "/internal/prove"
AUTHORITY_HEADER: Final = "x-weft-authority"
NONCE_HEADER: Final = "x-weft-nonce"
PROOF_HEADER: Final = "x-weft-proof"
TELL_S: Final = 60.0
"""Interval of log lines about a peer at an address that cannot prove itself."""
_MAX_HEAD: Final = 16 * 2**10
_HEX = re.compile(r"[0-9a-f]{64}")

Side = Literal["client", "server"]


class UnauthenticatedPeerError(OSError):
    """Report that the peer at an address does not prove that it is a router process of this service."""


def fresh_nonce() -> str:
    """Return 256 random bits in hexadecimal digits."""
    return secrets.token_hex(32)


def is_nonce(text: str) -> bool:
    """Return whether a text can be a nonce, or a proof."""
    return _HEX.fullmatch(text) is not None


def proof_of(key: bytes, side: Side, authority: str, asked: str, answered: str) -> str:
    """Return one side's proof: ``asked`` is the client's nonce, ``answered`` the server's, ``key`` that of hops."""
    return hmac.digest(key, "\0".join((side, authority, asked, answered)).encode(), "sha256").hex()


class HeadExchange(asyncio.Protocol):
    """Asks one thing after the other that is answered by a head alone."""

    def __init__(self) -> None:
        self._head: asyncio.Future[bytes] | None = None
        self._read = b""
        self._lost: str | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle an open connection."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Take bytes of a head."""
        self._read += data
        head = self._head
        if head is None:
            self._lost = "it speaks unasked"
        elif (b"\r\n\r\n" in self._read or len(self._read) > _MAX_HEAD) and not head.done():
            head.set_result(self._read)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._lost = str(exc or "the connection was closed")
        if self._head is not None and not self._head.done():
            self._head.set_exception(ConnectionResetError(self._lost))

    async def ask(self, request: bytes) -> bytes:
        """Send a request; return the head of its answer, and what came with it.

        Raises:
            ConnectionResetError: there was none.
        """
        if self._lost is not None or self._transport is None:
            raise ConnectionResetError(self._lost or "there is no connection")
        self._read = b""
        self._head = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._head
        finally:
            self._head = None


async def connect(origin: Origin, key: bytes | None) -> tuple[asyncio.Transport, HeadExchange]:
    """Return a connection to an origin; with a key, both ends have authenticated each other.

    Raises:
        UnauthenticatedPeerError: the other end did not.
        OSError: there is no connection.
    """
    transport, heads = await asyncio.get_running_loop().create_connection(HeadExchange, origin.host, origin.port)
    if key is not None:
        try:
            await _prove(origin, key, heads)
        except BaseException:
            transport.abort()
            raise
    return transport, heads


async def _prove(origin: Origin, key: bytes, heads: HeadExchange) -> None:
    authority, asked = origin.authority, fresh_nonce()
    lines = header_lines({AUTHORITY_HEADER: authority, NONCE_HEADER: asked})
    headers = _headers(await heads.ask(origin.request("GET", HELLO_PATH, lines=lines)[0]), "hello")
    answered, proof = headers.get(NONCE_HEADER, ""), headers.get(PROOF_HEADER, "")
    expected = proof_of(key, "server", authority, asked, answered)
    if not (is_nonce(answered) and is_nonce(proof) and hmac.compare_digest(proof, expected)):
        raise UnauthenticatedPeerError("it does not know the service's token")
    lines = header_lines({PROOF_HEADER: proof_of(key, "client", authority, asked, answered)})
    _headers(await heads.ask(origin.request("GET", PROVE_PATH, lines=lines)[0]), "proof")


def _headers(head: bytes, what: str) -> dict[str, str]:
    """Return the headers of an answer without a body.

    Raises:
        UnauthenticatedPeerError: it is another answer.
        ConnectionRefusedError: the other end has no place for a connection.
    """
    if head.startswith(b"HTTP/1.1 503 "):
        raise ConnectionRefusedError("it has no place for another connection")
    if not head.startswith(b"HTTP/1.1 204 ") or head.find(b"\r\n\r\n") != len(head) - 4:
        first = head.partition(b"\r\n")[0][:80].decode("latin-1")
        raise UnauthenticatedPeerError(f"it answered the {what} by {first!r}")
    found = {}
    for line in head[:-4].split(b"\r\n")[1:]:
        name, _, value = line.decode("latin-1").partition(":")
        found[name.lower()] = value.strip(" ")
    return found


def warn_unproven(origin: Origin, error: UnauthenticatedPeerError, now: float) -> None:
    """Tell, once in a while, who did not prove itself; ``now`` is the monotonic clock."""
    if now >= origin.tell_at:
        origin.tell_at = now + TELL_S
        log.warning("worker_unproven", extra={"url": origin.url, "reason": str(error)})
