"""Compile the mock engine and the client into the cache folder, once for each text of their sources."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from weft_e2e.cluster.paths import cache_root

SOURCES = Path(__file__).with_name("native")
FLAGS = ("-O2", "-Wall", "-Wextra")


class BenchError(RuntimeError):
    """Report why something cannot be measured; the message says what to do."""


def folder() -> Path:
    """Return the bench's own folder in the cache."""
    return cache_root() / "bench-router"


def compiler() -> str:
    """Return the C compiler: $CC, else the first of cc, gcc and clang.

    Raises:
        BenchError: there is none.
    """
    names = (os.environ["CC"],) if os.environ.get("CC") else ("cc", "gcc", "clang")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        raise BenchError(
            f"no C compiler (looked for {', '.join(names)}): install one (Debian: apt-get install gcc libc6-dev) "
            "or name it in CC"
        )
    return found


def program(name: str) -> Path:
    """Return the compiled program of native/<name>.c.

    Raises:
        BenchError: there is no compiler, or it refuses the source.
    """
    cc = compiler()
    texts = [path.read_bytes() for path in (SOURCES / f"{name}.c", *sorted(SOURCES.glob("*.h")))]
    digest = hashlib.sha256(b"\0".join([*texts, cc.encode(), " ".join(FLAGS).encode()])).hexdigest()[:16]
    target = folder() / f"{name}-{digest}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_suffix(f".{os.getpid()}")
    command = [cc, *FLAGS, "-o", str(fresh), str(SOURCES / f"{name}.c"), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise BenchError(f"{cc} refuses {name}.c: {done.stderr[:2000]}")
    fresh.rename(target)
    return target
