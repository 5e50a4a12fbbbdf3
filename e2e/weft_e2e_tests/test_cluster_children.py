"""An interrupted build ends at once: no program of it goes on, and none begins."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.component

BUILDS = """
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from weft_e2e.cluster import packages, preflight, prerequisites, toolchain
from weft_e2e.images.commands import run_logged

preflight.check_setup = lambda: None
toolchain.missing = lambda only=frozenset(): []
packages.missing_packages = lambda: []


def build(name):
    os.write(1, f"begin {name}\\n".encode())  # whole lines, whatever thread is next
    run_logged(["sh", "-c", "sleep 120 & wait"], log=Path(sys.argv[1]) / f"{name}.log", what=name)


def build_all(work):
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(build, "abcdef"))


task = prerequisites.Task(parts=dict.fromkeys("abcdef", 10.0), run=build_all)
try:
    prerequisites.install(lambda _: None, beside=[task])
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(130)
"""


def session(leader: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, *rest = stat.read_text().rpartition(") ")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(rest[2]) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.parametrize(
    ("number", "to_group"),
    [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, False)],
    ids=["Ctrl-C", "SIGTERM", "SIGHUP"],
)
def test_an_interrupted_build_leaves_no_process_behind(tmp_path: Path, number: signal.Signals, to_group: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BUILDS, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        started = {process.stdout.readline().strip() for _ in range(2)}
        assert started == {"begin a", "begin b"}
        deadline = time.monotonic() + 30
        while len(session(process.pid)) < 5:  # itself, two shells and what these started
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (os.killpg if to_group else os.kill)(process.pid, number)
        out, errors = process.communicate(timeout=30)
        assert (process.returncode, out.splitlines()[-1]) == (130, "interrupted"), errors
        while left := session(process.pid):
            assert time.monotonic() < deadline, left
            time.sleep(0.02)
    finally:
        for pid in session(process.pid):
            os.kill(pid, signal.SIGKILL)
