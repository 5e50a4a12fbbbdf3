"""The second disk of a virtual machine: the checkout's Python code, what it imports, and the cluster's programs."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from weft_e2e.cluster.errors import SetupError
from weft_e2e.cluster.paths import cache_root
from weft_e2e.cluster.preflight import PROGRAMS
from weft_e2e.cluster.toolchain import tool_path
from weft_e2e.images.catalogue import repository_root
from weft_e2e.vm.root import make_disk

PYTHON = "3.11"  # Debian bookworm's
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_28_x86_64")
DISTRIBUTIONS = ("click", "cryptography", "cffi", "pycparser", "pyyaml")
"""What `weft cluster` imports beside the standard library."""
CODE = ("core/weft_core", "cli/weft_cli", "planner/weft_planner", "e2e/weft_e2e", "e2e/weft_e2e_tests")
SPARE_MIB = 6144  # preflight asks for 4 GiB; a sparse file holds them
TIMEOUT_SCALE = 8  # what an emulated processor is slower
PIP_SECONDS = 300.0


def make_content_disk(disk: Path, module: str) -> None:
    """Write a disk whose program runs a module of the checkout as root, the cluster's cache beside it."""
    site = python_packages()
    with tempfile.TemporaryDirectory(dir=disk.parent, prefix="content-") as scratch:
        content = Path(scratch)
        for folder in CODE:
            shutil.copytree(
                repository_root() / folder,
                content / "code" / Path(folder).name,
                ignore=shutil.ignore_patterns("__pycache__"),
            )
        shutil.copytree(site, content / "site")
        for program in map(tool_path, PROGRAMS):
            target = content / "cache" / program.relative_to(cache_root())
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(program, target)
        run = content / "run"
        run.write_text(run_script(module))
        run.chmod(0o755)
        make_disk(content, disk, spare_mib=SPARE_MIB)


def run_script(module: str) -> str:
    """Return the program of the disk: reports go to the second serial port, everything else to the first."""
    return f"""\
#!/bin/sh
export HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PYTHONPATH=/weft/code:/weft/site PYTHONDONTWRITEBYTECODE=1 WEFT_CACHE=/weft/cache
export WEFT_TIMEOUT_SCALE={TIMEOUT_SCALE} GOGC=400
exec python3 -m {module} > /dev/ttyS1 2> /dev/ttyS0
"""


def python_packages() -> Path:
    """Return a folder with the packages as Debian's Python imports them, downloaded where the cache lacks it."""
    wanted = pinned((repository_root() / "requirements/e2e.txt").read_text(), DISTRIBUTIONS)
    folder = cache_root() / "vm" / f"site-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="pip-") as scratch:
        made, requirements = Path(scratch) / "site", Path(scratch) / "requirements.txt"
        requirements.write_text(wanted)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--require-hashes", "--only-binary=:all:", f"--python-version={PYTHON}", f"--target={made}"]
        command += [*(f"--platform={name}" for name in PLATFORMS), "-r", str(requirements)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS)
        if done.returncode != 0:
            raise SetupError(f"Python packages for Debian's Python {PYTHON}: {done.stderr.strip()[-1500:]}")
        if not folder.is_dir():  # another run was faster
            made.rename(folder)
    return folder


def pinned(requirements: str, distributions: Sequence[str]) -> str:
    """Return the entries of some distributions, with their hashes and without their markers."""
    entries = requirements.replace("\\\n", "").splitlines()
    found = {entry.partition("==")[0].strip(): entry for entry in entries if "==" in entry}
    if absent := [name for name in distributions if name not in found]:
        raise SetupError(f"requirements/e2e.txt pins no {', '.join(absent)}: run `make requirements`")
    lines = []
    for name in distributions:
        version, *hashes = (word for word in found[name].split() if "==" in word[:60] or word.startswith("--hash="))
        lines.append(" ".join([version, *hashes]))
    return "\n".join(lines) + "\n"
