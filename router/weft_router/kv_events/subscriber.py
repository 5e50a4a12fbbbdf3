"""Receive the KV events of an engine over ZeroMQ, and ask for those that were missed.

The engine connects to this process: vLLM's and SGLang's publishers connect to an address without a wildcard, and bind
to one with it. So events, which hold the token ids of prompts, stay on the loopback device of the pod, and either side
may be restarted. A data-parallel rank has the port of the first one plus its number; it answers requests for earlier
batches REPLAY_OFFSET ports below.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Final

import zmq
import zmq.asyncio

from weft_router.kv_events.rank_cache import RankCache
from weft_router.kv_events.wire import MAX_PAYLOAD, MalformedError, number_of
from weft_router.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
REPLAY_OFFSET: Final = 100
MAX_WAITING: Final = 1000
"""Batches that wait here; the engine's socket drops what is beyond, and it is asked for again."""
REPLAY_S: Final = 5.0
"""How long the next batch of a replay may take."""
REPLAYS: Final = 20
"""Requests in a row for the same gap: an engine's socket may drop a part of a long answer."""
BIND_AGAIN_S: Final = 5.0
LOG_EVERY_S: Final = 60.0


class KvEventSubscriber:
    """Takes in the events of all ranks of one engine."""

    def __init__(self, caches: Sequence[RankCache], *, port: int, metrics: Metrics, replay_s: float = REPLAY_S) -> None:
        """Listen on a port for the first rank, and the ones after it for the others."""
        self._caches = caches
        self._port = port
        self._batches = metrics.kv_events
        self._replay_s = replay_s
        self._context = zmq.asyncio.Context()
        self._logged: dict[str, float] = {}

    async def run(self) -> None:
        """Follow all ranks until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for rank, cache in enumerate(self._caches):
                    group.create_task(self._follow(rank, cache))
        finally:
            self._context.destroy(linger=0)

    async def _follow(self, rank: int, cache: RankCache) -> None:
        with self._socket(zmq.SUB) as socket:
            socket.set(zmq.RCVHWM, MAX_WAITING)
            socket.subscribe(b"")
            while not self._bind(socket, self._port + rank):  # noqa: ASYNC110 - another process frees it
                await asyncio.sleep(BIND_AGAIN_S)
            while True:
                await self._receive(rank, cache, await socket.recv_multipart())

    def _bind(self, socket: zmq.asyncio.Socket, port: int) -> bool:
        try:
            socket.bind(f"tcp://{HOST}:{port}")
        except zmq.ZMQError as error:
            self._warn("kv_events_port", port=port, error=str(error))
            return False
        return True

    async def _receive(self, rank: int, cache: RankCache, frames: list[bytes]) -> None:
        try:
            if len(frames) != 3:
                raise MalformedError(f"a message of {len(frames)} frames")
            number = number_of(frames[1])
            if number < 0:
                raise MalformedError(f"a batch with the number {number}")
        except MalformedError as error:
            # If it was one of the engine's, the next number shows that it is missing.
            self._refuse(rank, error)
            return
        place = cache.place(number)
        if place == "known":
            return
        if place == "restart":
            self._warn("kv_events_restarted", rank=rank, number=number)
            self._batches.labels("restarted").inc()
            cache.restart(number)
        if cache.expected < number:
            if await self._replay(rank, cache, number):
                self._batches.labels("replayed").inc()
            else:
                self._warn("kv_events_lost", rank=rank, first=cache.expected, number=number)
                self._batches.labels("lost").inc()
                if cache.expected < number:
                    cache.forget(number)
        if cache.expected == number:
            await self._take(rank, cache, number, frames[2])

    async def _replay(self, rank: int, cache: RankCache, number: int) -> bool:
        """Ask for all batches from the expected one up to before ``number``; return whether none is missing."""
        whole = True
        for _ in range(REPLAYS):
            before = cache.expected
            whole = await self._replay_once(rank, cache) and whole
            if cache.expected >= number or cache.expected == before:
                break
        return whole and cache.expected >= number

    async def _replay_once(self, rank: int, cache: RankCache) -> bool:
        """Take in what the engine still has from the expected batch on; return whether it had that one."""
        whole, first = True, True
        with self._socket(zmq.DEALER) as socket:
            socket.connect(f"tcp://{HOST}:{self._port + rank - REPLAY_OFFSET}")
            await socket.send_multipart([b"", cache.expected.to_bytes(8, "big")])
            while await socket.poll(int(self._replay_s * 1000)):
                # An empty frame, in vLLM the topic, number and payload.
                frames = await socket.recv_multipart()
                try:
                    number = number_of(frames[-2]) if len(frames) in (3, 4) else None
                    if number is None:
                        raise MalformedError(f"a replayed message of {len(frames)} frames")
                except MalformedError as error:
                    self._refuse(rank, error)
                    return False
                if number < 0:
                    return whole
                if number < cache.expected:
                    continue
                if number > cache.expected:
                    if not first:
                        return whole  # its socket dropped some; they are asked for again
                    cache.forget(number)
                    whole = False
                first = False
                await self._take(rank, cache, number, frames[-1])
        return whole

    async def _take(self, rank: int, cache: RankCache, number: int, payload: bytes) -> None:
        try:
            for _ in cache.take(number, payload):
                await asyncio.sleep(0)
        except MalformedError as error:
            self._refuse(rank, error)
        else:
            self._batches.labels("applied").inc()

    def _refuse(self, rank: int, error: MalformedError) -> None:
        self._warn("kv_events_malformed", rank=rank, error=str(error))
        self._batches.labels("malformed").inc()

    @contextmanager
    def _socket(self, kind: int) -> Iterator[zmq.asyncio.Socket]:
        socket = self._context.socket(kind)
        try:
            socket.set(zmq.MAXMSGSIZE, MAX_PAYLOAD)
            socket.set(zmq.LINGER, 0)
            yield socket
        finally:
            socket.close(linger=0)

    def _warn(self, event: str, **extra: object) -> None:
        """Write a line of the log, of each kind one a minute."""
        now = monotonic()
        if now - self._logged.get(event, -LOG_EVERY_S) >= LOG_EVERY_S:
            self._logged[event] = now
            log.warning(event, extra=extra)
