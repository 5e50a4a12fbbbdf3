"""Make room in the folder where an engine keeps KV on a disk: ``python -m weft_router.kv_disk``, a worker's sidecar.

Engines write a file for each block and delete none. Once the files take more than the tier may, or the disk is nearly
full, those that were unused for longest are deleted: by the time of their last read or write, as the file system notes
them (with ``relatime``, the usual mount option, reads are noted once a day). An engine that misses a file computes its
tokens. Folders of other pods beside this one are removed after they were unused for a day: each sidecar touches a file
in its own.

What it finds it serves on loopback, for the router's sidecar of the pod (``kv_disk_report``).
"""

import argparse
import json
import os
import shutil
import signal
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from weft_router.kv_disk_report import DiskReport, serve, try_write

MARKER = ".in-use"
SUFFIXES = (".bin", ".tmp")
"""Files of engines that hold KV; others, such as descriptions of it, are small and stay."""
PERIOD_S = 30.0
SPARE_SHARE = 20
"""A twentieth of the disk stays free: a file system that is full is slow, and others may share it."""
ROOM_SHARE = 10
"""So much more is deleted at once, a tenth: looking through all files takes long where there are many."""
_BUCKET_S = 60


@dataclass(frozen=True, slots=True)
class File:
    """One file with KV."""

    path: str
    size: int
    used: float
    """When it was read or written last."""


@dataclass(frozen=True, slots=True)
class Room:
    """What was found in a folder and deleted from it, in bytes."""

    used: int
    deleted: int = 0
    allowed: int = field(default=0, compare=False)
    """How much the folder may hold, by its limit and by what else is on the disk."""


def files(folder: Path) -> Iterator[File]:
    """Yield the files with KV below a folder; those that vanish meanwhile are left out."""
    folders = [str(folder)]
    while folders:
        try:
            entries = os.scandir(folders.pop())
        except FileNotFoundError:
            continue
        with entries:
            for entry in entries:
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISDIR(found.st_mode):
                    folders.append(entry.path)
                elif stat.S_ISREG(found.st_mode) and entry.name.endswith(SUFFIXES):
                    yield File(entry.path, found.st_size, max(found.st_atime, found.st_mtime))


def allowed_bytes(limit: int, used: int, *, total: int, free: int) -> int:
    """Return how much a folder may hold: the limit, or less where the disk would not keep its spare room."""
    return max(0, min(limit, used + free - total // SPARE_SHARE))


def make_room(
    folder: Path, limit: int, disk: Callable[[Path], tuple[int, int]], deleted: Callable[[str], None] = lambda _: None
) -> Room:
    """Delete what was unused for longest where a folder holds too much; ``disk`` says total and free bytes.

    ``deleted`` is called with the path of each file that is gone.

    Files are read twice and never held in memory: there may be millions.
    """
    total, free = disk(folder)
    allowed = allowed_bytes(limit, total - free, total=total, free=free)
    if total - free <= allowed:
        return Room(total - free, allowed=allowed)  # all that is on the disk would be allowed
    sizes: Counter[int] = Counter()
    for file in files(folder):
        sizes[int(file.used) // _BUCKET_S] += file.size
    used = sizes.total()
    allowed = allowed_bytes(limit, used, total=total, free=free)
    if used <= allowed:
        return Room(used, allowed=allowed)
    wanted = used - (allowed - allowed // ROOM_SHARE)
    newest, gone = 0, 0
    for bucket in sorted(sizes):
        newest, gone = bucket, gone + sizes[bucket]
        if gone >= wanted:
            break
    return Room(used, _delete(folder, newest, wanted, deleted), allowed)


def _delete(folder: Path, newest: int, wanted: int, on_deleted: Callable[[str], None]) -> int:
    """Delete files whose last use is not after a bucket of time, older buckets first, until enough is gone."""
    deleted = 0
    for last in (newest - 1, newest):
        for file in files(folder):
            if deleted >= wanted:
                return deleted
            if int(file.used) // _BUCKET_S <= last:
                try:
                    Path(file.path).unlink()
                except FileNotFoundError:
                    continue
                deleted += file.size
                on_deleted(file.path)
    return deleted


def remove_unused(folder: Path, unused_s: float) -> list[str]:
    """Remove the folders beside this one that nobody touched for long, and return their names.

    Times are those of the file system, as of the file in the own folder, which was touched before.
    """
    now = (folder / MARKER).stat().st_mtime
    removed = []
    for beside in sorted(folder.parent.iterdir()):
        marker = beside / MARKER
        try:
            touched = marker.stat().st_mtime
        except OSError:  # without a file of this name, or of another user
            continue
        if beside != folder and now - touched > unused_s:
            shutil.rmtree(beside, ignore_errors=True)
            removed.append(beside.name)
    return removed


def touch(folder: Path) -> None:
    """Say that a folder is in use; it is made where there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()  # which takes no room: the disk may be full


def disk_bytes(folder: Path) -> tuple[int, int]:
    """Return the bytes of the disk below a folder, and those of them that are free."""
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _say(event: str, **fields: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def keep(folder: Path, limit: int, *, unused_s: float, stop: Event, report: DiskReport | None = None) -> int:
    """Keep a folder within its limit until ``stop``; return the exit status."""
    report = DiskReport(limit) if report is None else report
    try:
        touch(folder)
    except PermissionError as error:
        _say("kv_disk_not_writable", folder=str(folder), error=f"{error}; let user {os.getuid()} write there")
        return 1
    except OSError as error:
        _say("kv_disk_failed", folder=str(folder), error=str(error))
    while True:
        began = time.monotonic()
        try:
            with report.waiting():
                touch(folder)
            for name in remove_unused(folder, unused_s):
                _say("kv_disk_folder_removed", folder=name)
            room = make_room(folder, limit, disk_bytes, report.blocks.add)
            if room.deleted:
                _say("kv_disk_room_made", used=room.used, deleted=room.deleted)
            report.deleted += room.deleted
            with report.waiting(measured=True):  # after room was made: a full disk takes nothing
                try_write(folder)
            total, free = disk_bytes(folder)
            report.found(total - free, allowed=room.allowed, free=free)
        except OSError as error:  # such as a network volume that is away: the engine reads and writes no more either
            report.failed(error)
            _say("kv_disk_failed", folder=str(folder), error=str(error))
        # Where looking takes long it is done less often.
        if stop.wait(max(PERIOD_S, 10 * (time.monotonic() - began))):
            return 0


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m weft_router.kv_disk", description="Make room for KV on a disk.")
    parser.add_argument("--folder", type=Path, required=True, help="the engine's folder")
    parser.add_argument("--bytes", type=int, required=True, help="the most that its files may take")
    parser.add_argument("--unused-seconds", type=float, required=True, help="how long folders of former pods stay")
    given = parser.parse_args(argv)
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    report = DiskReport(given.bytes)
    port = os.environ.get("WEFT_KV_DISK_PORT")
    if port:
        serve(report, int(port))
    return keep(given.folder, given.bytes, unused_s=given.unused_seconds, stop=stop, report=report)


if __name__ == "__main__":
    sys.exit(main())
