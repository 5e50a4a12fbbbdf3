"""Download files into a folder: resume partial files, verify checksums, then rename them to their final names."""

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

PARALLEL_DOWNLOADS = 4
"""Parallel downloads: one stream of a CDN has 50 to 200 MB/s."""
STALL_TIMEOUT_S = 600.0
"""An attempt ends when the source sends nothing for this time; the Job's next pod resumes."""
MAX_PAUSE_S = 30.0
CORRUPT_ATTEMPTS = 3
RESERVED_BYTES = 64 << 20

log = logging.getLogger(__name__)


def download_all(
    source: Source, listing: Listing, folder: Path, *, stop: Event | None = None, pause_s: float = 1.0
) -> None:
    """Download all files of a listing into a folder; complete and partial files in it are used.

    Raises:
        FetchError: no further attempt helps.
        TransientFetchError: the source sent nothing for ``STALL_TIMEOUT_S``.
    """
    _check_space(listing.files, folder)
    stopping = stop or Event()
    with ThreadPoolExecutor(PARALLEL_DOWNLOADS, thread_name_prefix="download") as pool:
        # The largest first, so that no large file is left for one stream at the end.
        largest = sorted(listing.files, key=lambda file: -file.size)
        futures = [pool.submit(download, source, file, folder, stop=stopping, pause_s=pause_s) for file in largest]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            stopping.set()
            for future in futures:
                future.cancel()
            raise


def download(source: Source, file: RemoteFile, folder: Path, *, stop: Event, pause_s: float) -> None:
    """Download one file into a folder."""
    target = folder / file.path
    if target.is_file() and target.stat().st_size == file.size:
        return  # files are verified before they get their final name
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + PARTIAL)
    stalled_s, pause, corrupt = 0.0, pause_s, 0
    while not stop.is_set():
        offset = _size(partial)
        if offset > file.size:
            partial.unlink()
            continue
        try:
            if file.size == 0:
                partial.touch()
            elif offset < file.size:
                _receive(source, file, partial, offset, stop)
        except TransientFetchError as error:
            if _size(partial) > offset:
                stalled_s, pause = 0.0, pause_s
            if stalled_s >= STALL_TIMEOUT_S:
                raise
            log.warning("download_interrupted", extra={"file": file.path, "at": _size(partial), "error": str(error)})
            stop.wait(pause)
            stalled_s, pause = stalled_s + pause, min(MAX_PAUSE_S, 2 * pause)
            continue
        except OSError as error:
            raise _disk_error(error, file, folder) from error
        if stop.is_set() or _size(partial) != file.size:
            continue
        if file.checksum is not None and digest_of(partial, file.checksum.algorithm) != file.checksum.digest:
            corrupt += 1
            partial.unlink()
            log.warning("download_corrupt", extra={"file": file.path, "attempt": corrupt})
            if corrupt == CORRUPT_ATTEMPTS:
                raise FetchError(_corrupt(file, file.checksum))
            continue
        partial.replace(target)
        log.info("file_complete", extra={"file": file.path, "bytes": file.size})
        return


def digest_of(path: Path, algorithm: str) -> str:
    """Return the checksum of a file as hexadecimal digits."""

    def new_hash() -> "hashlib._Hash":
        if algorithm != "git-blob":
            return hashlib.new(algorithm, usedforsecurity=False)
        found = hashlib.sha1(usedforsecurity=False)
        found.update(f"blob {path.stat().st_size}\0".encode())
        return found

    with path.open("rb") as stream:
        return hashlib.file_digest(stream, new_hash).hexdigest()


def _receive(source: Source, file: RemoteFile, partial: Path, offset: int, stop: Event) -> None:
    """Append the missing bytes of a file; a source may begin before the requested offset."""
    with partial.open("r+b" if partial.exists() else "w+b") as stream, source.open(file, offset) as body:
        if body.start > offset:
            raise TransientFetchError(f"{file.path}: the answer begins at {body.start}, and {offset} bytes are there")
        stream.seek(body.start)
        stream.truncate()
        remaining = file.size - body.start
        for chunk in body.chunks:
            if stop.is_set():
                return
            if len(chunk) > remaining:
                stream.truncate(0)  # never resume from wrong content
                raise FetchError(f"{file.path}: the source sends more than the {file.size} bytes that it lists")
            stream.write(chunk)
            remaining -= len(chunk)
        stream.flush()
        os.fsync(stream.fileno())  # so that a file with its final name is complete even after a power failure
    if remaining:
        raise TransientFetchError(f"{file.path}: the answer ended {remaining} bytes early")


def _check_space(files: Sequence[RemoteFile], folder: Path) -> None:
    needed = sum(max(0, file.size - max(_size(folder / file.path), _partial(folder, file))) for file in files)
    free = shutil.disk_usage(folder).free
    if needed + RESERVED_BYTES > free:
        raise FetchError(
            f"the volume has {gigabytes(free)} free and {gigabytes(needed)} are still to be downloaded; enlarge it "
            "(spec.model.source, cache.claim.size) or remove other files from it"
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
        return FetchError(f"the volume is full at {file.path}; enlarge it, or remove other files from it")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return FetchError(f"{folder} cannot be written ({error.strerror}); make it writable for user 65532")
    return TransientFetchError(f"{file.path}: {error.strerror or type(error).__name__} on the volume")


def _corrupt(file: RemoteFile, checksum: Checksum) -> str:
    text = f"{file.path}: downloaded {CORRUPT_ATTEMPTS} times, never with the checksum that the source lists"
    if checksum.algorithm == "md5":
        return f"{text} (its ETag); where the bucket is encrypted with KMS, put a file SHA256SUMS beside the weights"
    return f"{text}; the source or a proxy in front of it is broken"


def gigabytes(size: float) -> str:
    """Return a readable size: 141 GB, 12.3 GB, 3 MB."""
    if size >= 1e9:
        return f"{size / 1e9:.3g} GB" if size < 1e12 else f"{size / 1e9:.0f} GB"
    return f"{size / 1e6:.3g} MB" if size >= 1e6 else f"{size / 1e3:.3g} kB"
