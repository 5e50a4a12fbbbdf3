"""Names an image by the content of what goes into it, so that unchanged means not rebuilt."""

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from weft_e2e.images.errors import RecipeError

DIGEST_LENGTH = 12
# Left by running the code; never part of an image.
BYPRODUCTS = {"__pycache__"}


def copied_paths(dockerfile: str) -> tuple[str, ...]:
    """Return the context paths that the Dockerfile's COPY and ADD lines name, in order, each once.

    Lines with `--from` copy between stages and name nothing of the context. Wildcards and continued lines are refused:
    the tag would not follow them.
    """
    paths: dict[str, None] = {}
    for number, line in enumerate(dockerfile.splitlines(), start=1):
        words = line.split()
        if not words or words[0].upper() not in {"COPY", "ADD"}:
            continue
        if words[1:] and words[1].startswith("--from="):
            continue
        sources = words[1:-1]
        if (
            not sources
            or words[-1] == "\\"
            or any(set(word) & set("*?[$") or word.startswith("--") for word in sources)
        ):
            raise RecipeError(
                f"line {number}: {line!r}: write COPY with plain paths on one line, so that content tags can follow it"
            )
        paths.update(dict.fromkeys(sources))
    return tuple(paths)


def context_files(root: Path, paths: tuple[str, ...], *, outside: Mapping[str, Path]) -> dict[str, Path]:
    """Return context path -> file for every file below the given paths, sorted; `outside` wins over the repository."""
    files: dict[str, Path] = {}
    for name in paths:
        if name in outside:
            files[name] = outside[name]
            continue
        path = root / name
        if path.is_file():
            files[name] = path
        elif path.is_dir():
            for found in path.rglob("*"):
                if found.is_file() and not BYPRODUCTS.intersection(found.parts):
                    files[str(found.relative_to(root))] = found
        else:
            raise RecipeError(f"a Dockerfile copies {name!r}, which does not exist in the repository")
    return dict(sorted(files.items()))


def digest(files: Mapping[str, Path], *, dockerfile: str, args: Mapping[str, str]) -> str:
    """Return the content tag: 12 hex digits over the Dockerfile, its arguments and every file, its path and x bit."""
    total = hashlib.sha256()
    for part in (dockerfile, *(f"{name}={value}" for name, value in sorted(args.items()))):
        total.update(hashlib.sha256(part.encode()).digest())
    for name, path in sorted(files.items()):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        executable = b"x" if os.access(path, os.X_OK) else b"-"
        total.update(hashlib.sha256(name.encode()).digest() + executable + content)
    return total.hexdigest()[:DIGEST_LENGTH]


def stage(files: Mapping[str, Path], into: Path) -> None:
    """Copy the files into an empty folder, the build context: what is not hashed cannot get into the image."""
    for name, path in files.items():
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        target.chmod(0o755 if os.access(path, os.X_OK) else 0o644)
