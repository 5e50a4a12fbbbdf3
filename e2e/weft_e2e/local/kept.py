"""Keep plans for the next start: the same question to the same planner has the same answer, byte for byte."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import weft_core
import weft_planner
from weft_core.plan import content_hash

MOST = 100
"""Plans that are kept; the oldest go first."""


def folder() -> Path:
    """Return where plans are kept: in $WEFT_CACHE, else in the user's cache."""
    home = os.environ.get("WEFT_CACHE")
    root = Path(home) if home else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft"
    return root / "plans"


def name_of(request: Mapping[str, object]) -> str:
    """Return the name of a request's answer: it changes with the request and with any source of the planner."""
    return f"{content_hash({'request': request, 'sources': list(_sources())}, 32)}.json"


def find(name: str) -> bytes | None:
    """Return a kept answer, None where there is none."""
    try:
        return (folder() / name).read_bytes()
    except OSError:
        return None


def forget(name: str) -> None:
    """Forget an answer that cannot be used."""
    with contextlib.suppress(OSError):
        (folder() / name).unlink(missing_ok=True)


def keep(name: str, answer: bytes) -> None:
    """Keep an answer; where that is not possible the next start plans anew."""
    with contextlib.suppress(OSError):
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place, delete=False) as file:
            file.write(answer)
        Path(file.name).replace(place / name)
        for old in sorted(place.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-MOST]:
            old.unlink(missing_ok=True)


def _sources() -> Iterator[tuple[str, int, int]]:
    for package in (weft_core, weft_planner):
        root = Path(str(package.__file__)).parent
        for path in sorted((*root.rglob("*.py"), *root.rglob("*.yaml"))):
            found = path.stat()
            yield str(path), found.st_mtime_ns, found.st_size
