"""Let router processes of the service in, by the proof that each of their connections gave; see http.handshake."""

from hmac import compare_digest
from typing import Final
from urllib.parse import urlsplit

from weft_core.authority import authority
from weft_router.errors import ApiError
from weft_router.http.exchange import Exchange
from weft_router.http.handshake import (
    AUTHORITY_HEADER,
    HELLO_PATH,
    NONCE_HEADER,
    PROOF_HEADER,
    PROVE_PATH,
    fresh_nonce,
    is_nonce,
    proof_of,
)
from weft_router.http.head import Peer

HANDSHAKE: Final = frozenset({HELLO_PATH, PROVE_PATH})
"""Paths that anybody may ask for, to be let in."""
_MAPPED: Final = "::ffff:"


def require_proven(peer: Peer) -> None:
    """Let a request of the router's own in.

    Raises:
        ApiError: its connection did not prove that it is.
    """
    if not peer.proven:
        raise ApiError("this path serves the router's own hops only", status=401)


class HopAuthenticator:
    """The server's side of the handshake; ``url`` is where others find this process, where they do."""

    def __init__(self, key: bytes, url: str) -> None:
        self._key = key
        parts = urlsplit(url)
        self._own = authority(parts.hostname, parts.port or 80) if parts.hostname else ""

    async def hello(self, exchange: Exchange) -> None:
        """Answer a client's nonce by a proof for the address that it dialled, if that is this process's own.

        A proof for any other address would serve who stands between.

        Raises:
            ApiError: it is another one's, or no nonce came.
        """
        headers, peer = exchange.headers, exchange.peer
        dialled, asked = headers.get(AUTHORITY_HEADER, ""), headers.get(NONCE_HEADER, "")
        if not is_nonce(asked) or not dialled:
            raise ApiError(
                f"{NONCE_HEADER}, {AUTHORITY_HEADER}: give 64 hexadecimal digits, and the address dialled", status=400
            )
        if dialled != self._own and dialled != _reached(exchange.sockname()):
            raise ApiError(f"{AUTHORITY_HEADER}: this is another address", status=421)
        answered = fresh_nonce()
        peer.expected = proof_of(self._key, "client", dialled, asked, answered).encode()
        headers = {NONCE_HEADER: answered, PROOF_HEADER: proof_of(self._key, "server", dialled, asked, answered)}
        exchange.stays = True
        exchange.reply(204, content_type="", headers=headers)

    async def prove(self, exchange: Exchange) -> None:
        """Take a client's proof; one that is wrong ends its try.

        Raises:
            ApiError: it is wrong, or no hello came before it.
        """
        peer, given = exchange.peer, exchange.headers.get(PROOF_HEADER, "")
        expected, peer.expected = peer.expected, b""
        if not expected or not compare_digest(given.encode("utf-8", "replace"), expected):
            raise ApiError(f"{PROOF_HEADER}: is not that of a router process of this service", status=401)
        peer.proven = True
        exchange.stays = True
        exchange.reply(204, content_type="")


def _reached(sockname: object) -> str:
    """Return the authority of the address at which a client reached this process."""
    if not isinstance(sockname, tuple) or len(sockname) < 2:
        return ""
    return authority(str(sockname[0]).removeprefix(_MAPPED), int(sockname[1]))
