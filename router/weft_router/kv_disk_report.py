"""What ``kv_disk`` finds of its disk, and how the router's sidecar of the same pod gets it: JSON over HTTP on loopback.

A thread of its own answers: calls to a network volume that is away do not return.
"""

import errno
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from threading import Thread

from weft_core.kv_tiers import DISK_FAILED, DISK_FULL, DISK_SLOW
from weft_router.kv_disk_blocks import DeletedBlocks

LOOPBACK = "127.0.0.1"
DELETED = "/deleted/"
"""Before a number: the path of the blocks that were deleted from it on; all other paths are the report's."""
PROBE = ".probe"
PROBE_BYTES = 2**20
SLOW_S = 0.5
"""A write of PROBE_BYTES on an NVMe drive takes some milliseconds, on network volumes tens of them."""
TRIES = 5
"""Writes of which the median counts: a single slow one says nothing."""
STUCK_S = 20.0
"""A write that takes longer counts before it returns."""
ROOM_SHARE = 2
"""A disk counts as full when the tier may hold less than half of its size: a file system takes some of its volume, and
a twentieth stays free."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class DiskReport:
    """What was found last."""

    def __init__(self, limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._writes: deque[float] = deque(maxlen=TRIES)
        self._since: float | None = None
        self._error = ""
        self._used: int | None = None
        self._allowed = limit
        self._free = 0
        self._full = False
        self.deleted = 0
        """Bytes since the start."""
        self.blocks = DeletedBlocks()

    @contextmanager
    def waiting(self, *, measured: bool = False) -> Iterator[None]:
        """Note that the disk is waited for; where ``measured``, as a write of PROBE_BYTES."""
        since = self._since = self._clock()
        try:
            yield
            if measured:
                self._writes.append(self._clock() - since)
        finally:
            self._since = None

    def found(self, used: int, *, allowed: int, free: int) -> None:
        """Record a look that went well, in bytes: used and free of the disk, and what the tier may hold."""
        self._used, self._allowed, self._free = used, allowed, free
        self._full, self._error = False, ""

    def failed(self, error: OSError) -> None:
        """Record a failure."""
        self._full = error.errno in FULL
        self._error = "" if self._full else str(error)

    def faults(self) -> list[tuple[str, str]]:
        """Return what is wrong, with words."""
        found = []
        if self._error:
            found.append((DISK_FAILED, self._error))
        if self._full or self._allowed * ROOM_SHARE < self._limit:
            found.append((DISK_FULL, ""))
        since, writes = self._since, tuple(self._writes)  # another thread changes them
        stuck = since is not None and self._clock() - since > STUCK_S
        if stuck or (len(writes) > TRIES // 2 and median(writes) > SLOW_S):
            found.append((DISK_SLOW, ""))
        return found

    def fields(self) -> dict[str, object]:
        """Return the report as it is served."""
        return {
            "limitBytes": self._limit,
            "usedBytes": self._used,
            "allowedBytes": self._allowed,
            "freeBytes": self._free,
            "deletedBytes": self.deleted,
            "run": self.blocks.run,
            "deletedBlocks": self.blocks.count,
            "writeSeconds": next(reversed(tuple(self._writes)), None),
            "faults": self.faults(),
        }


def try_write(folder: Path) -> None:
    """Write a file to the disk, not only to its cache, and delete it.

    Raises:
        OSError: the disk does not take it.
    """
    path = folder / PROBE
    try:
        with path.open("wb") as probe:
            probe.write(os.urandom(PROBE_BYTES))  # which no file system can compress
            probe.flush()
            os.fsync(probe.fileno())
    finally:
        path.unlink(missing_ok=True)


def serve(report: DiskReport, port: int) -> ThreadingHTTPServer:
    """Serve a report in a thread of its own; port 0 is any free one."""

    class Handler(BaseHTTPRequestHandler):
        """Answers every GET with the report."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            number = self.path.removeprefix(DELETED)
            page = report.blocks.page(int(number)) if number.isdecimal() else report.fields()
            body = json.dumps(page).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing: the router asks every few seconds."""

    server = ThreadingHTTPServer((LOOPBACK, port), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, name="report", daemon=True).start()
    return server
