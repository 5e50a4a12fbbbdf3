"""Download files into a folder: resumed, verified, and renamed to their names only after that."""

import errno
import hashlib
import logging
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event

from weft_operator.weights.remote import (
    PARTIAL,
    Checksum,
    FetchError,
    Listing,
    RemoteFile,
    Source,
    TransientFetchError,
)

AT_ONCE = 4
"""Parallel downloads: one stream of a CDN has 50 to 200 MB/s."""
GIVE_UP_S = 600.0
"""An attempt ends when the source sends nothing for this time; the Job's next pod resumes."""
MAX_PAUSE_S = 30.0
CORRUPT_TRIES = 3
SPARE_BYTES = 64 << 20

log = logging.getLogger(__name__)


def download_all(
    source: Source, listing: Listing, folder: Path, *, stop: Event | None = None, pause_s: float = 1.0
) -> None:
    """Download all files of a listing into a folder; complete and partial files in it are used.

    Raises:
        FetchError: no further attempt helps.
        TransientFetchError: the source sent nothing for ``GIVE_UP_S``.
    """
    _check_space(listing.files, folder)
    halt = stop or Event()
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="download") as pool:
        # The largest first, so that no large file is left for one stream at the end.
        largest = sorted(listing.files, key=lambda file: -file.size)
        running = [pool.submit(download, source, file, folder, stop=halt, pause_s=pause_s) for file in largest]
        try:
            for one in as_completed(running):
                one.result()
        except BaseException:
            halt.set()
            for one in running:
                one.cancel()
            raise


def download(source: Source, file: RemoteFile, folder: Path, *, stop: Event, pause_s: float) -> None:
    """Download one file into a folder."""
    target = folder / file.path
    if target.is_file() and target.stat().st_size == file.size:
        return  # it was verified before it got its name
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + PARTIAL)
    waited, pause, corrupt = 0.0, pause_s, 0
    while not stop.is_set():
        have = _size(partial)
        if have > file.size:
            partial.unlink()
            continue
        try:
            if file.size == 0:
                partial.touch()
            elif have < file.size:
                _receive(source, file, partial, have, stop)
        except TransientFetchError as error:
            if _size(partial) > have:
                waited, pause = 0.0, pause_s
            if waited >= GIVE_UP_S:
                raise
            log.warning("download_interrupted", extra={"file": file.path, "at": _size(partial), "error": str(error)})
            stop.wait(pause)
            waited, pause = waited + pause, min(MAX_PAUSE_S, 2 * pause)
            continue
        except OSError as error:
            raise _disk_error(error, file, folder) from error
        if stop.is_set() or _size(partial) != file.size:
            continue
        if file.checksum is not None and digest_of(partial, file.checksum.algorithm) != file.checksum.digest:
            corrupt += 1
            partial.unlink()
            log.warning("download_corrupt", extra={"file": file.path, "attempt": corrupt})
            if corrupt == CORRUPT_TRIES:
                raise FetchError(_corrupt(file, file.checksum))
            continue
        partial.replace(target)
        log.info("file_complete", extra={"file": file.path, "bytes": file.size})
        return


def digest_of(path: Path, algorithm: str) -> str:
    """Return the checksum of a file as hexadecimal digits."""

    def seeded() -> "hashlib._Hash":
        if algorithm != "git-blob":
            return hashlib.new(algorithm, usedforsecurity=False)
        found = hashlib.sha1(usedforsecurity=False)
        found.update(f"blob {path.stat().st_size}\0".encode())
        return found

    with path.open("rb") as stream:
        return hashlib.file_digest(stream, seeded).hexdigest()


def _receive(source: Source, file: RemoteFile, partial: Path, have: int, stop: Event) -> None:
    """Append what is missing of a file; a source that begins elsewhere than asked is followed."""
    with partial.open("r+b" if partial.exists() else "w+b") as stream, source.open(file, have) as body:
        if body.start > have:
            raise TransientFetchError(f"{file.path}: the answer begins at {body.start}, and {have} bytes are there")
        stream.seek(body.start)
        stream.truncate()
        left = file.size - body.start
        for chunk in body.chunks:
            if stop.is_set():
                return
            if len(chunk) > left:
                stream.truncate(0)  # of what is wrong nothing is gone on with
                raise FetchError(f"{file.path}: the source sends more than the {file.size} bytes that it lists")
            stream.write(chunk)
            left -= len(chunk)
        stream.flush()
        os.fsync(stream.fileno())  # a file that has its name is whole, also after a power cut
    if left:
        raise TransientFetchError(f"{file.path}: the answer ended {left} bytes early")


def _check_space(files: Sequence[RemoteFile], folder: Path) -> None:
    needed = sum(max(0, file.size - max(_size(folder / file.path), _partial(folder, file))) for file in files)
    free = shutil.disk_usage(folder).free
    if needed + SPARE_BYTES > free:
        raise FetchError(
            f"the volume has {gigabytes(free)} free and {gigabytes(needed)} are still to be downloaded; enlarge it "
            "(spec.model.source, cache.claim.size) or remove what else is on it"
        )


def _partial(folder: Path, file: RemoteFile) -> int:
    return _size(folder / f"{file.path}{PARTIAL}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _disk_error(error: OSError, file: RemoteFile, folder: Path) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FetchError(f"the volume is full at {file.path}; enlarge it, or remove what else is on it")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return FetchError(f"{folder} cannot be written ({error.strerror}); make it writable for user 65532")
    return TransientFetchError(f"{file.path}: {error.strerror or type(error).__name__} on the volume")


def _corrupt(file: RemoteFile, checksum: Checksum) -> str:
    text = f"{file.path}: what was downloaded {CORRUPT_TRIES} times has not the checksum that the source gives"
    if checksum.algorithm == "md5":
        return f"{text} (its ETag); where the bucket is encrypted with KMS, put a file SHA256SUMS beside the weights"
    return f"{text}; the source or a proxy before it is broken"


def gigabytes(size: float) -> str:
    """Return a size for people: 141 GB, 12.3 GB, 3 MB."""
    if size >= 1e9:
        return f"{size / 1e9:.3g} GB" if size < 1e12 else f"{size / 1e9:.0f} GB"
    return f"{size / 1e6:.3g} MB" if size >= 1e6 else f"{size / 1e3:.3g} kB"
