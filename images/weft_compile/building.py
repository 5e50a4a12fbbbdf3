"""Copies the sources, has them compiled there, and takes the libraries."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from weft_compile.path import PACKAGES, ROOT, modules
from weft_compile.rewriting import rewritten

UNWANTED = "Unsupported default attribute value"
"""A warning of mypyc's: a class's default would be looked up anew for each object, not once."""


def compile_into(into: Path, *, jobs: int) -> None:
    """Write the packages with their compiled modules into a folder.

    Raises:
        SystemExit: what the compiler said.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for package, parent in PACKAGES.items():
            shutil.copytree(ROOT / parent / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        for module in modules():
            path = folder / module
            path.write_text(rewritten(path.read_text()))
        words = [sys.executable, "-m", "weft_compile.extensions", str(jobs)]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
        done = subprocess.run(
            words, cwd=folder, env=env, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        sys.stdout.write(done.stdout)
        if done.returncode or UNWANTED in done.stdout:
            raise SystemExit("the router's path was not compiled")
        for library in _libraries(folder):
            target = into / library.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(library, target)
    for package, parent in PACKAGES.items():
        shutil.copytree(
            ROOT / parent / package, into / package, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
        )


def _libraries(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*.so")) if "build" not in path.relative_to(folder).parts)
