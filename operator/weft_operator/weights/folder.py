"""The folder of one model in a cache, and the locks that keep two programs from writing it at once.

``<root>/<namespace>/<service>/<key>`` holds a whole and verified model; ``<key>.partial`` one that is being downloaded,
and becomes it by a rename. Whoever downloads holds ``<key>.lock`` alone; whoever uses a model of a node shares it. The
kernel gives a lock back when its holder ends, so that none is ever stale.
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
"""Between two attempts to have a lock: a program that waits in the kernel would not see its own end."""
PARTIAL_FOLDER = ".partial"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """One model below the root of a cache; ``name`` is ``<namespace>/<service>/<key>``."""

    root: Path
    name: str

    @property
    def path(self) -> Path:
        """Return the folder of the whole model."""
        return self.root / self.name

    @property
    def partial(self) -> Path:
        """Return the folder into which it is downloaded."""
        return self.root / f"{self.name}{PARTIAL_FOLDER}"

    @property
    def lock_file(self) -> Path:
        """Return the file whose lock guards both."""
        return self.root / f"{self.name}{LOCK}"

    def version(self) -> str | None:
        """Return the version of the whole model, None where it is not there, or a file of it is missing or short."""
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
        """Tell whether what is there, if anything, was downloaded by this program."""
        return all((place / MANIFEST).is_file() for place in (self.path, self.partial) if place.exists())

    def size(self) -> int:
        """Return the bytes of all files that are there, whole or in part."""
        return sum(_file_size(path) for place in (self.path, self.partial) for path in place.rglob("*"))

    def begin(self, listing: Listing) -> Path:
        """Return the folder to download a listing into, with the files in it that belong to this listing and are good.

        Those of an attempt before, or of a model that was damaged later, are used; of another version they are not.
        """
        if self.path.is_dir() and not self.partial.exists():
            self.path.rename(self.partial)
        self.partial.mkdir(parents=True, exist_ok=True)
        wanted = {file.path: file.identity for file in listing.files}
        before = _files_of(self.partial / MANIFEST)
        for path in list(self.partial.rglob("*")):
            name = str(path.relative_to(self.partial)).removesuffix(PARTIAL)
            if path.is_file() and name != MANIFEST and wanted.get(name, "") != before.get(name):
                path.unlink()
        self._write_manifest(listing)
        return self.partial

    def finish(self, listing: Listing) -> None:
        """Make what was downloaded visible, in one step."""
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
        """Remove the model, whole or in part."""
        for place in (self.path, self.partial):
            shutil.rmtree(place, ignore_errors=not place.exists())
        self.lock_file.unlink(missing_ok=True)

    @contextmanager
    def locked(self, *, shared: bool = False, halt: Event | None = None) -> Iterator[IO[bytes] | None]:
        """Hold the model's lock, alone or with other users of it.

        Give None where another program holds it until ``halt`` is set; without ``halt`` it is not waited for.
        """
        self.lock_file.parent.mkdir(parents=True, exist_ok=True)
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        while True:
            with self.lock_file.open("ab") as stream:
                if not _flock(stream, kind | fcntl.LOCK_NB):
                    if halt is not None and not halt.wait(LOCK_WAIT_S):
                        continue
                    yield None
                    return
                if not self._is_current(stream):
                    continue  # whoever removed the model removed the file, too
                os.utime(stream.fileno())
                yield stream
                return

    def _is_current(self, stream: IO[bytes]) -> bool:
        try:
            return os.fstat(stream.fileno()).st_ino == self.lock_file.stat().st_ino
        except FileNotFoundError:
            return False


def remove_unused(root: Path, unused_s: float, *, but: str = "") -> list[str]:
    """Remove the models that no program holds and nobody has used for so long, ``but`` one; return their names.

    Folders without a list of files are not of ours, whatever lies beside them: the root may have other contents. One
    that belongs to another user, or goes away meanwhile, is no reason not to go on.
    """
    removed = []
    for lock_file in sorted(root.glob(f"*/*/*{LOCK}")):
        model = ModelFolder(root, str(lock_file.relative_to(root)).removesuffix(LOCK))
        try:
            unused = time.time() - lock_file.stat().st_mtime
            if model.name != but and unused > unused_s and model.is_ours() and _remove_unlocked(model):
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
        if error.errno not in _NO_LOCKS:
            raise
        log.warning("no_locks", extra={"error": f"the volume has no file locks ({error.strerror})"})
    return True


def _files_of(manifest: Path) -> Mapping[str, str]:
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
