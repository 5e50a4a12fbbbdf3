"""Dial a link to another router process by upgrading a connection (RFC 9110, section 7.8)."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Final, cast

from weft_router.http.handshake import UnauthenticatedPeerError, connect, warn_unproven
from weft_router.http.header_lines import encoded
from weft_router.http.link import PROTOCOL, Link
from weft_router.http.upstream_connection import Origin

log = logging.getLogger(__name__)

LINK_PATH: Final = "/internal/link"
STUCK_S: Final = 10.0
"""How long what was sent may get nowhere, neither acknowledged by the other end's kernel nor, where that has no more
room for it, read: then the link is lost, with the streams on it, and others take another way."""
REDIAL_S: Final = 1.0
"""How long an origin goes without a link after another one was tried; twice as long each time until one is
heard."""
REFUSED_S: Final = 60.0
"""The most of it, and how long it goes where it says that it carries none."""
_NEVER: Final = float("inf")


class LinkRefusedError(Exception):
    """Report a peer without links: an older version, or a proxy in between."""


async def dial(origin: Origin, *, key: bytes | None, on_lost: Callable[[Link], None], within_s: float) -> Link:
    """Return a link to an origin whose other end has proved itself, where there is a ``key`` of hops.

    Raises:
        LinkRefusedError: the peer does not support links.
        OSError: there is no connection, or no answer in time (TimeoutError), or no proof (UnauthenticatedPeerError).
    """
    head, _ = origin.request("GET", LINK_PATH, lines=f"Connection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n")
    async with asyncio.timeout(within_s):
        transport, heads = await connect(origin, key)
        try:
            answer = await heads.ask(head)
        except BaseException:
            transport.abort()
            raise
    wanted = encoded(f"\r\nupgrade: {PROTOCOL}\r\n")
    if not answer.startswith(b"HTTP/1.1 101 ") or wanted not in answer.lower() or not answer.endswith(b"\r\n\r\n"):
        transport.abort()
        if answer.startswith(b"HTTP/1.1 503 "):
            raise ConnectionRefusedError("it has no place for another connection")
        raise LinkRefusedError(answer.partition(b"\r\n")[0][:80].decode("latin-1"))
    link = Link(accept=None, on_lost=on_lost)
    carry_link(transport, link)
    return link


def carry_link(transport: asyncio.Transport, link: Link) -> None:
    """Have a connection carry a link from now on."""
    own = transport.get_extra_info("socket")
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux has it
        with contextlib.suppress(OSError):  # it may be lost already
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STUCK_S * 1000))
    transport.set_protocol(cast(asyncio.Protocol, link))
    link.connection_made(transport)


class LinkPool:
    """The links of a pool: one at most to each origin, tried for in the background."""

    __slots__ = ("_closed", "_connect_s", "_dials", "_key", "_linked")

    def __init__(self, key: bytes | None, *, connect_s: float) -> None:
        self._key = key
        self._connect_s = connect_s
        self._dials: dict[Origin, asyncio.Task[None]] = {}
        self._linked: set[Origin] = set()
        self._closed = False

    def __len__(self) -> int:
        """Return how many get another request on."""
        return sum(origin.link is not None and origin.link.usable for origin in self._linked)

    def seek(self, origin: Origin) -> None:
        """Try to have a link to an origin; what is asked of it meanwhile goes without."""
        origin.dial_at = _NEVER
        self._dials[origin] = asyncio.get_running_loop().create_task(self._seek(origin))

    def sweep(self, now: float, oldest: float) -> int:
        """Check each link, close those without a stream since ``oldest``, and return how many are up."""
        for origin in list(self._linked):
            link = origin.link
            if link is None:
                continue
            link.look(now)
            if not link.streams and link.quiet_since <= oldest:
                origin.redial_s = 0.0  # nothing was wrong with it
                link.close()
        return len(self._linked)

    def terminate(self, url: str) -> None:
        """End the link to a URL."""
        for origin in list(self._linked):
            if origin.url == url and origin.link is not None:
                origin.link.abort()

    def close(self) -> None:
        """Close all, and try for no more."""
        self._closed = True
        for dialling in self._dials.values():
            dialling.cancel()
        for origin in self._linked:
            if origin.link is not None:
                origin.link.close()

    async def _seek(self, origin: Origin) -> None:
        again_s = origin.redial_s or REDIAL_S
        origin.redial_s = min(2 * again_s, REFUSED_S)
        try:
            lost = partial(self._lost, origin)
            link = await dial(origin, key=self._key, on_lost=lost, within_s=self._connect_s)
            if self._closed:  # between its answer and now
                link.close()
                return
            origin.link = link
            self._linked.add(origin)
            log.info("link_up", extra={"url": origin.url})
        except LinkRefusedError as error:
            again_s = REFUSED_S
            log.info("link_refused", extra={"url": origin.url, "reason": str(error)})
        except UnauthenticatedPeerError as error:
            warn_unproven(origin, error, monotonic())
        except OSError as error:
            log.info("link_failed", extra={"url": origin.url, "reason": str(error) or "no answer in time"})
        finally:
            del self._dials[origin]
            origin.dial_at = monotonic() + again_s

    def _lost(self, origin: Origin, link: Link) -> None:
        origin.link = None
        self._linked.discard(origin)
        if link.heard:
            origin.redial_s = 0.0
