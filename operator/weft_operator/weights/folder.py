"""The folder of one model in a cache, and the locks that keep two programs from writing it at once.

``<root>/<namespace>/<service>/<key>`` contains a complete and verified model; ``<key>.partial`` one that is being
downloaded, which is renamed when it is complete. A download has ``<key>.lock`` exclusively; users of a model on a node
share it. The kernel releases a lock when its process ends, so a lock is never stale.
"""

import errno
import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import IO

from weft_operator.weights.remote import PARTIAL, Listing

MANIFEST = ".weft-files.json"
LOCK = ".lock"
LOCK_WAIT_S = 1.0
"""Interval of attempts to lock: a program that blocks in the kernel could not react to SIGTERM."""
PARTIAL_FOLDER = ".partial"
_NO_LOCK_SUPPORT = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """One model below the root of a cache; ``name`` is ``<namespace>/<service>/<key>``."""

    root: Path
    name: str

    @property
    def path(self) -> Path:
        """Return the folder of the complete model."""
        return self.root / self.name

    @property
    def partial(self) -> Path:
        """Return the folder into which it is downloaded."""
        return self.root / f"{self.name}{PARTIAL_FOLDER}"

    @property
    def lock_file(self) -> Path:
        """Return the lock file of both folders."""
        return self.root / f"{self.name}{LOCK}"

    def version(self) -> str | None:
        """Return the version of the complete model; None when it is absent, or a file is missing or truncated."""
        try:
            manifest = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
            whole = all(
                (self.path / path).stat().st_size == int(identity.partition(":")[0])
                for path, identity in manifest["files"].items()
            )
            return str(manifest["version"]) if whole else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def is_ours(self) -> bool:
        """Return whether all existing folders of the model were made by this program."""
        return all((place / MANIFEST).is_file() for place in (self.path, self.partial) if place.exists())

    def size(self) -> int:
        """Return the total size in bytes of complete and partial files."""
        return sum(_file_size(path) for place in (self.path, self.partial) for path in place.rglob("*"))

    def begin_download(self, listing: Listing) -> Path:
        """Prepare and return the folder to download a listing into; files of other versions are removed from it.

        Files of an earlier attempt, or of a complete model that was damaged later, are reused.
        """
        if self.path.is_dir() and not self.partial.exists():
            self.path.rename(self.partial)
        self.partial.mkdir(parents=True, exist_ok=True)
        wanted = {file.path: file.identity for file in listing.files}
        before = _manifest_files(self.partial / MANIFEST)
        for path in list(self.partial.rglob("*")):
            name = str(path.relative_to(self.partial)).removesuffix(PARTIAL)
            if path.is_file() and name != MANIFEST and wanted.get(name, "") != before.get(name):
                path.unlink()
        self._write_manifest(listing)
        return self.partial

    def publish(self, listing: Listing) -> None:
        """Publish the download under the model's name, atomically."""
        self._write_manifest(listing)
        if self.path.exists():
            shutil.rmtree(self.path)
        self.partial.rename(self.path)

    def _write_manifest(self, listing: Listing) -> None:
        manifest = {"version": listing.version, "files": {file.path: file.identity for file in listing.files}}
        text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
        with (self.partial / MANIFEST).open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())

    def remove(self) -> None:
        """Remove the model, complete or partial."""
        for place in (self.path, self.partial):
            shutil.rmtree(place, ignore_errors=not place.exists())
        self.lock_file.unlink(missing_ok=True)

    @contextmanager
    def locked(self, *, shared: bool = False, stop: Event | None = None) -> Iterator[IO[bytes] | None]:
        """Lock the model, exclusively or shared; yield the locked file.

        While another program has the lock, wait until ``stop`` is set and yield None; without ``stop``, do not wait.
        """
        self.lock_file.parent.mkdir(parents=True, exist_ok=True)
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        while True:
            with self.lock_file.open("ab") as stream:
                if not _flock(stream, kind | fcntl.LOCK_NB):
                    if stop is not None and not stop.wait(LOCK_WAIT_S):
                        continue
                    yield None
                    return
                if not self._is_current(stream):
                    continue  # another program removed the model together with this file
                os.utime(stream.fileno())
                yield stream
                return

    def _is_current(self, stream: IO[bytes]) -> bool:
        try:
            return os.fstat(stream.fileno()).st_ino == self.lock_file.stat().st_ino
        except FileNotFoundError:
            return False


def remove_unused(root: Path, unused_s: float, *, except_for: str = "") -> list[str]:
    """Remove the models that are unlocked and unused for ``unused_s``, except one; return their names.

    Folders without our manifest are not touched: the root may have other contents. Models that another user of the
    machine owns, or that disappear meanwhile, are skipped.
    """
    removed = []
    for lock_file in sorted(root.glob(f"*/*/*{LOCK}")):
        model = ModelFolder(root, str(lock_file.relative_to(root)).removesuffix(LOCK))
        try:
            unused = time.time() - lock_file.stat().st_mtime
            if model.name != except_for and unused > unused_s and model.is_ours() and _remove_unlocked(model):
                removed.append(model.name)
                log.info("model_removed", extra={"model": model.name, "unused_s": round(unused)})
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("model_not_removed", extra={"model": model.name, "error": error.strerror})
    return removed


def _remove_unlocked(model: ModelFolder) -> bool:
    with model.locked() as lock:
        if lock is None:
            return False
        model.remove()
    return True


def _flock(stream: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(stream, kind)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCK_SUPPORT:
            raise
        log.warning("no_locks", extra={"error": f"the volume has no file locks ({error.strerror})"})
    return True


def _manifest_files(manifest: Path) -> Mapping[str, str]:
    try:
        files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return files if isinstance(files, dict) else {}


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() and path.name != MANIFEST else 0
    except OSError:
        return 0
