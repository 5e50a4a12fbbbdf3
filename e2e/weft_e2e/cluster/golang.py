"""Runs Go: checks its version, builds programs and says which share of their packages is compiled."""

import os
import re
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from weft_e2e.cluster import children
from weft_e2e.cluster.errors import SetupError

GO_MINIMUM = (1, 26)  # kwok asks for it in its go.mod
BUILD_SECONDS = 3600.0  # all programs together take ten minutes on two idle cores; six times that is a hang
SAID_OF_ERRORS = 3000
LINKING = 0.1  # the share of a build that follows the start of the last package

# The programs are stripped, so nothing ever reads the debugging information. No profiles of a program: with one,
# Go compiles all its packages once more for it alone.
FLAGS = ("-trimpath", "-pgo=off", "-gcflags=all=-dwarf=false")
ENVIRONMENT = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "-buildvcs=false"}


def check_go() -> None:
    """Raise SetupError unless a new enough Go is on PATH."""
    needed = ".".join(map(str, GO_MINIMUM))
    try:
        text = subprocess.run(["go", "version"], check=True, capture_output=True, text=True, timeout=60).stdout
    except FileNotFoundError:
        raise SetupError(
            f"Go is missing: install Go {needed} or newer (https://go.dev/dl) and put it on PATH"
        ) from None
    except (subprocess.SubprocessError, OSError) as error:
        raise SetupError(f"`go version` failed: {error}") from error
    if not go_version_suffices(text):
        raise SetupError(f"Go is too old ({text.strip()}): install Go {needed} or newer (https://go.dev/dl)")


def go_version_suffices(text: str) -> bool:
    """Return whether the output of `go version` names GO_MINIMUM or newer."""
    found = re.search(r"\bgo(\d+)\.(\d+)", text)
    return found is not None and (int(found[1]), int(found[2])) >= GO_MINIMUM


def run(argv: Sequence[str], *, cwd: Path) -> str:
    """Run a command of Go (or of C) and return what it prints; raise SetupError with its own words where it fails."""
    try:
        with children.started(argv, cwd=cwd, env=os.environ | ENVIRONMENT, stdout=subprocess.PIPE) as process:
            out, said = process.communicate(timeout=BUILD_SECONDS)
    except FileNotFoundError:
        raise SetupError(f"{argv[0]} is missing: see docs/local-cluster.md") from None
    except subprocess.TimeoutExpired:
        raise SetupError(f"`{' '.join(argv[:4])} …` did not end within {BUILD_SECONDS:.0f} s") from None
    if process.returncode != 0:
        raise SetupError(f"`{' '.join(argv)}` failed:\n{said.strip()[-SAID_OF_ERRORS:]}")
    return out


def stale_sizes(packages: Sequence[str], flags: Sequence[str], *, cwd: Path) -> tuple[dict[str, int], float]:
    """Return package -> bytes of source for what has still to be compiled, and its share of everything.

    The modules that are missing are downloaded for it.
    """
    template = '{{.ImportPath}}\t{{.Stale}}\t{{.Dir}}\t{{join .GoFiles "/"}}'
    listed = run(["go", "list", "-deps", "-f", template, *flags, *packages], cwd=cwd)
    sizes, everything = {}, 0
    for line in listed.splitlines():
        name, stale, folder, files = line.split("\t")
        size = sum(Path(folder, file).stat().st_size for file in files.split("/") if file)
        everything += size
        if stale == "true":
            sizes[name] = size
    return sizes, sum(sizes.values()) / everything if everything else 0.0


def build(
    packages: Sequence[str],
    flags: Sequence[str],
    *,
    cwd: Path,
    output: Path,
    sizes: Mapping[str, int],
    advance: Callable[[float], None],
) -> None:
    """Build programs; `advance` gets the progress, the share of `sizes` whose compilation has started.

    Several packages are built into the folder `output` under the last part of their names, one into the file.
    """
    argv = ["go", "build", "-v", *flags, "-o", str(output), *packages]
    total, started, said, overdue = sum(sizes.values()), 0, [], False
    try:
        with children.started(argv, cwd=cwd, env=os.environ | ENVIRONMENT) as process:
            late = threading.Timer(BUILD_SECONDS, process.kill)
            late.start()
            try:
                for line in process.stderr or ():
                    words = line.strip()
                    if words in sizes:
                        started += sizes[words]
                        advance((1 - LINKING) * started / total if total else 0.0)
                    elif not words.startswith("go: downloading "):
                        said.append(line)
            finally:
                overdue = not late.is_alive()
                late.cancel()
    except FileNotFoundError:
        raise SetupError("go is missing: see docs/local-cluster.md") from None
    if overdue:
        raise SetupError(f"`{' '.join(argv[:4])} …` did not end within {BUILD_SECONDS:.0f} s")
    if process.returncode != 0:
        raise SetupError(f"`{' '.join(argv)}` failed:\n{''.join(said).strip()[-SAID_OF_ERRORS:]}")
