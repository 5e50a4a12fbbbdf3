"""Move KV blocks between engines over an HTTP side channel, which stands in for NIXL.

The holder serves reads of pinned blocks, once, to readers that name them exactly. What travels is
each block's state and the ids of the last, partly filled block: enough for the reader to prove that
the blocks were computed from its own prompt. The bytes a real engine would have moved are counted,
and the time they would have taken is spent by the reader.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import cast

import aiohttp
import orjson

from weft_core.authority import authority, http_url
from weft_core.cost import CostProfile
from weft_core.parallelism import Degree, degree_from_json
from weft_core.profile_json import profile_from_json
from weft_mock.kv_params import RemoteBlocks, handle_json, read_remote
from weft_mock.meetings import Offer

log = logging.getLogger(__name__)

# A holder answers from memory: one that takes longer than this is gone.
_TIMEOUT_SECONDS = 5.0
_TIMEOUT = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS, connect=2.0)

# Most reads end before the first heartbeat, and need none.
_GRACE_SECONDS = 0.1


class ReadFailedError(Exception):
    """Report a read that did not give the KV asked for; ``reason`` is stable and goes to the ledger."""

    def __init__(self, reason: str, message: str) -> None:
        """Carry the reason and a message."""
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Peer:
    """What a handshake tells about another engine; ``clock_offset`` is its clock minus ours, in seconds.

    ``profile`` is what it costs, the very object of this engine where both are the same.
    """

    engine_id: str
    degree: Degree
    profile: CostProfile
    node: str
    compatibility: str
    clock_offset: float


@dataclass(frozen=True, slots=True)
class Blocks:
    """What a read returns: the states of full blocks and the ids of the tokens behind the last of them."""

    states: list[int]
    tail_ids: list[int]


class SideChannel:
    """Read blocks from other engines; one per engine."""

    def __init__(self, *, engine_id: str, compatibility: str, profile: CostProfile) -> None:
        """Speak for one engine; peers with another compatibility string are refused."""
        self._engine_id = engine_id
        self._profile = profile
        self._compatibility = compatibility
        self._peers: dict[tuple[str, int], Peer] = {}
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the connection pool."""
        self._session = aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=False)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def handshake(self, remote: RemoteBlocks) -> Peer:
        """Return what is known of the engine that holds the blocks, asking it once per engine id.

        Raises:
            ReadFailedError: it cannot be reached, is another engine than the handle says, or does not match this one.
        """
        where = (remote.host, remote.port)
        peer = self._peers.get(where)
        if peer is None or peer.engine_id != remote.engine_id:
            before = monotonic()
            status, body = await self._call(remote, "GET", "/kv/handshake", None)
            if status != 200:
                raise ReadFailedError("unreachable", f"the handshake with {remote.address} got {status}")
            try:
                peer = Peer(
                    engine_id=str(body["engine_id"]),
                    degree=degree_from_json(body["degree"]),
                    profile=self._own_or_other(body["profile"]),
                    node=str(body["node"]),
                    compatibility=str(body["compatibility"]),
                    clock_offset=float(str(body["clock"])) - (before + monotonic()) / 2,
                )
            except (KeyError, ValueError) as error:
                raise ReadFailedError("unreachable", f"{remote.address} is no mock engine: {error}") from error
            self._peers[where] = peer
        if peer.engine_id != remote.engine_id:
            raise ReadFailedError("wrong_engine", f"{remote.address} is engine {peer.engine_id}, not the handle's")
        if peer.compatibility != self._compatibility:
            raise ReadFailedError(
                "incompatible", f"engine {peer.engine_id} has {peer.compatibility}, this one {self._compatibility}"
            )
        return peer

    def _own_or_other(self, body: object) -> CostProfile:
        if not isinstance(body, Mapping):
            raise ValueError("profile: an object is needed")
        found = profile_from_json(body)
        return self._profile if found == self._profile else found

    async def read(self, remote: RemoteBlocks, *, skip_blocks: int, tokens: int) -> Blocks:
        """Read the KV of the first ``tokens`` tokens without the first ``skip_blocks`` blocks; the handle is used up.

        Raises:
            ReadFailedError: the holder refused (its reason is given) or cannot be reached.
        """
        ask = {
            "engine_id": remote.engine_id,
            "request_id": remote.request_id,
            "block_ids": remote.block_ids,
            "skip_blocks": skip_blocks,
            "tokens": tokens,
            "reader": self._engine_id,
        }
        status, body = await self._call(remote, "POST", "/kv/read", ask)
        if status != 200:
            raise ReadFailedError(str(body.get("reason", "unreachable")), str(body.get("message", f"status {status}")))
        states, tail = body.get("states"), body.get("tail_ids")
        if not isinstance(states, list) or not isinstance(tail, list):
            raise ReadFailedError("unreachable", f"{remote.address} is no mock engine")
        return Blocks(states, tail)

    async def done(self, remote: RemoteBlocks) -> bool:
        """Tell the holder that its blocks were read or never will be; False when it freed nothing."""
        ask = {"engine_id": remote.engine_id, "request_id": remote.request_id}
        try:
            status, _ = await self._call(remote, "POST", "/kv/done", ask)
        except ReadFailedError:
            return False
        return status == 200

    async def keep_alive(self, remote: RemoteBlocks, *, every: float) -> None:
        """Renew the lease until cancelled, as a decode engine does from the moment it has seen the request."""
        ask = {"engine_id": remote.engine_id, "request_id": remote.request_id}
        await asyncio.sleep(min(every, _GRACE_SECONDS))
        while True:
            try:
                await self._call(remote, "POST", "/kv/heartbeat", ask)
            except ReadFailedError as error:
                log.info("kv_heartbeat_failed", extra={"remote_engine": remote.engine_id, "reason": error.reason})
            await asyncio.sleep(every)

    async def join(self, where: tuple[str, int], key: str, *, own_port: int, patience: float) -> Offer:
        """Go to a meeting and wait for what the holder offers; leaving early ends the holder's leg.

        Raises:
            ReadFailedError: the holder refused, its leg ended, or nobody is there.
        """
        ask = {"key": key, "reader": self._engine_id, "reader_port": own_port, "patience": patience}
        limit = aiohttp.ClientTimeout(total=patience + _TIMEOUT_SECONDS, connect=2.0)
        status, body = await self._send(where, "POST", "/kv/join", ask, limit)
        if status != 200:
            raise ReadFailedError(str(body.get("reason", "unreachable")), str(body.get("message", f"status {status}")))
        tokens = body.get("first_tokens")
        if not isinstance(tokens, list):
            raise ReadFailedError("unreachable", f"{authority(*where)} is no mock engine")
        return Offer(read_remote(cast(Mapping[object, object], body)), tuple(tokens))

    async def leave(self, where: tuple[str, int], key: str) -> None:
        """Tell the holder of a meeting that this engine's leg is gone."""
        try:
            await self._send(where, "POST", "/kv/leave", {"key": key}, _TIMEOUT)
        except ReadFailedError as error:
            log.info("meeting_leave_failed", extra={"reason": error.reason})

    async def _call(
        self, remote: RemoteBlocks, method: str, path: str, ask: Mapping[str, object] | None
    ) -> tuple[int, dict[str, object]]:
        return await self._send((remote.host, remote.port), method, path, ask, _TIMEOUT)

    async def _send(
        self,
        where: tuple[str, int],
        method: str,
        path: str,
        ask: Mapping[str, object] | None,
        limit: aiohttp.ClientTimeout,
    ) -> tuple[int, dict[str, object]]:
        if self._session is None:
            raise ReadFailedError("unreachable", "this engine's side channel is not started")
        host, port = where
        try:
            async with self._session.request(
                method,
                f"{http_url(host, port)}{path}",
                data=orjson.dumps(ask) if ask is not None else None,
                allow_redirects=False,
                timeout=limit,
            ) as reply:
                body = orjson.loads(await reply.read())
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise ReadFailedError("unreachable", f"{authority(host, port)} does not answer: {error!r}") from error
        return reply.status, body if isinstance(body, dict) else {}


def offer_json(offer: Offer) -> dict[str, object]:
    """Return what the holder answers to the reader who came."""
    return {**handle_json(offer.remote, holder="prefill"), "first_tokens": list(offer.first_tokens)}
