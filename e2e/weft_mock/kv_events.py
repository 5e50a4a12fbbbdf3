"""Publish what the caches hold as vLLM 0.32 does (vllm/distributed/kv_events.py): over ZeroMQ, numbered, with replays.

All data-parallel ranks share one pool of blocks here, so all publish the same.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from time import time
from typing import Final

import msgspec
import zmq
import zmq.asyncio

from weft_mock.kv_event_log import Event
from weft_mock.kv_events_config import KvEventsConfig

log = logging.getLogger(__name__)

END: Final = (-1).to_bytes(8, "big", signed=True)


class KvEventPublisher:
    """Sends batches of events to whoever listens, and keeps the latest for those who missed some."""

    def __init__(self, config: KvEventsConfig, *, ranks: int = 1) -> None:
        """Publish for so many ranks."""
        self._config = config
        self._ranks = ranks
        self._number = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._context = zmq.Context()
        self._replays = zmq.asyncio.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Connect to the subscriber, whether it is there or not, and answer requests for earlier batches.

        Raises:
            zmq.ZMQError: a port is in use.
        """
        for rank in range(self._ranks):
            socket = self._context.socket(zmq.PUB)
            socket.connect(f"tcp://127.0.0.1:{self._config.port + rank}")
            self._sockets.append(socket)
            replays = self._replays.socket(zmq.ROUTER)
            replays.bind(f"tcp://127.0.0.1:{self._config.replay_port + rank}")
            self._tasks.append(asyncio.create_task(self._answer(replays, rank)))

    def publish(self, events: Sequence[Event], *, sent: bool = True) -> None:
        """Send a batch; one that is not ``sent`` is as if a socket had dropped it."""
        number, self._number = self._number, self._number + 1
        body = msgspec.msgpack.encode([time(), events])
        self._buffer.append((number, body))
        if sent:
            for rank, socket in enumerate(self._sockets):
                topic = self._config.topic.encode()
                socket.send_multipart((topic, number.to_bytes(8, "big"), of_rank(body, rank)), zmq.NOBLOCK)

    async def stop(self) -> None:
        """Close all sockets."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._replays.destroy(linger=0)
        self._context.destroy(linger=0)

    async def _answer(self, socket: zmq.asyncio.Socket, rank: int) -> None:
        topic = self._config.topic.encode()
        while True:
            frames = await socket.recv_multipart()
            if len(frames) != 3:
                log.warning("kv_events_request_refused", extra={"frames": len(frames)})
                continue
            client, _, first = frames
            for number, body in list(self._buffer):
                if number >= int.from_bytes(first, "big"):
                    await socket.send_multipart((client, b"", topic, number.to_bytes(8, "big"), of_rank(body, rank)))
            await socket.send_multipart((client, b"", b"", END, b""))


def of_rank(body: bytes, rank: int) -> bytes:
    """Return an encoded batch of two fields with the rank as the third."""
    return b"\x93" + body[1:] + msgspec.msgpack.encode(rank)
