"""The nodes of one worker: a leader that serves once all have joined, and ends with any of them, as real engines do.

A follower connects to the leader, says its rank, and both keep the connection: its end is how each learns of the
other's. Who joins late, or twice, is sent away, because a group of ranks cannot be mended while it runs.
"""

import asyncio
import contextlib
import json
import logging
import socket
from dataclasses import dataclass

from weft_core.authority import listen_host
from weft_mock.config import ConfigError

log = logging.getLogger(__name__)

RETRY_S = 0.5
HELLO_S = 10.0
GO, BYE, NO = b"go\n", b"bye\n", b"no "


@dataclass(frozen=True, slots=True)
class Nodes:
    """Which of how many nodes this process is; ``listen`` is the leader's own address, ``leader`` where it is found."""

    count: int = 1
    rank: int = 0
    leader: tuple[str, int] = ("", 0)
    listen: tuple[str, int] = ("::", 29500)

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ConfigError: a rank that is none of these nodes', or a follower that knows no leader.
        """
        if self.count < 1:
            raise ConfigError(f"--nodes: {self.count} is below 1")
        if not 0 <= self.rank < self.count:
            raise ConfigError(f"--node-rank: {self.rank} is none of 0 to {self.count - 1}")
        if self.rank and not self.leader[0]:
            raise ConfigError("--leader: node ranks above 0 need the leader's HOST:PORT; give it")


class Leader:
    """Waits for the other nodes, and tells when one is lost."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._members: dict[int, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self._ending = False
        self.whole = asyncio.Event()
        """Set once all nodes have joined."""
        self.lost: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The rank of the first node that was lost after that."""

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port."""
        self._server = await asyncio.start_server(self._serve, listen_host(host), port)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def stop(self) -> None:
        """Send everybody home."""
        self._ending = True
        if self._server is not None:
            self._server.close()
        for writer in self._members.values():
            writer.write(BYE)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        notice_silence(writer)
        rank = 0
        try:
            async with asyncio.timeout(HELLO_S):
                rank = _rank_of(await reader.readline())
            if not 0 < rank < self._count or rank in self._members:
                log.warning("node_refused", extra={"rank": rank})
                writer.write(NO + b"this rank is none of mine, or taken\n")
                rank = 0
                return
            self._join(rank, writer)
            await reader.read()
        except (OSError, ValueError, TimeoutError) as error:
            log.warning("node_failed", extra={"rank": rank, "error": repr(error)})
        finally:
            writer.close()
            if rank and not self._ending:
                self._leave(rank)

    def _join(self, rank: int, writer: asyncio.StreamWriter) -> None:
        self._members[rank] = writer
        log.info("node_joined", extra={"rank": rank, "nodes": len(self._members) + 1})
        if len(self._members) == self._count - 1:
            for other in self._members.values():
                other.write(GO)
            self.whole.set()

    def _leave(self, rank: int) -> None:
        log.warning("node_left", extra={"rank": rank})
        if not self.whole.is_set():
            del self._members[rank]
        elif not self.lost.done():
            self.lost.set_result(rank)


def _rank_of(line: bytes) -> int:
    body = json.loads(line)
    rank = body.get("rank") if isinstance(body, dict) else None
    if not isinstance(rank, int):
        raise ValueError(f"{line[:80]!r} names no rank")
    return rank


async def follow(nodes: Nodes, stop: asyncio.Event) -> int:
    """Be a follower until ``stop`` is set or the leader is gone; return the exit status, 0 for an orderly end."""
    leaving = asyncio.create_task(stop.wait())
    working = asyncio.create_task(_follow(nodes))
    await asyncio.wait({leaving, working}, return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    if working.done():
        return working.result()
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working
    return 0


async def _follow(nodes: Nodes) -> int:
    reader, writer = await _connect(*nodes.leader)
    try:
        notice_silence(writer)
        writer.write(json.dumps({"rank": nodes.rank}).encode() + b"\n")
        while line := await reader.readline():
            if line == GO:
                log.info("worker_whole", extra={"rank": nodes.rank, "nodes": nodes.count})
            elif line == BYE:
                return 0
            elif line.startswith(NO):
                log.error("leader_refuses", extra={"rank": nodes.rank, "said": line[3:].decode(errors="replace")})
                return 1
    except OSError as error:
        log.warning("leader_failed", extra={"error": repr(error)})
    finally:
        writer.close()
    log.error("leader_lost", extra={"rank": nodes.rank})
    return 1


async def _connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    told = False
    while True:
        try:
            return await asyncio.open_connection(host, port)
        except OSError as error:
            if not told:
                told = True
                log.info("leader_awaited", extra={"host": host, "port": port, "error": repr(error)})
            await asyncio.sleep(RETRY_S)


def notice_silence(writer: asyncio.StreamWriter) -> None:
    """Have the kernel end a connection whose other end does not answer for about five seconds."""
    connection: socket.socket = writer.get_extra_info("socket")
    for option, value in ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
