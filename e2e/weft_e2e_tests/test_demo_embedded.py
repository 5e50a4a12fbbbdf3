"""The demo as a user without root runs it, on a system without what only Linux has: table and report."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft_e2e_tests.without_linux import environment

pytestmark = pytest.mark.component

FEW = ("--sessions", "3", "--max-rounds", "2", "--arrivals-within", "1", "--max-decode", "64")
LONGEST_S = 180.0


def as_another_user() -> list[str]:
    """Return what makes root somebody else who can still read root's files; others are somebody else already."""
    return ["unshare", "--user", "--map-user=65534", "--"] if os.geteuid() == 0 else []


def test_without_root_and_without_linux_it_ends_with_the_report(tmp_path: Path) -> None:
    out = tmp_path / "out/demo"
    argv = [*as_another_user(), sys.executable, "-m", "weft_e2e.demo", "up", *FEW, "--out", str(out)]
    env = {name: value for name, value in os.environ.items() if name not in ("KUBE_CONTEXT", "PYTHONPATH")}

    done = subprocess.run(
        argv,
        env={**env, **environment(tmp_path / "python"), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith("No cluster can run here: the local cluster needs root")
    assert "SLO attainment" in done.stdout
    assert "none failed" in done.stdout
    assert f"Report: {out / 'report.html'}" in done.stdout
    assert "Weft demo report" in (out / "report.html").read_text()
    assert json.loads((out / "figures.json").read_text())["problems"] == []
    assert len(json.loads((out / "records.json").read_text())["records"]) == 6


def test_what_is_taken_away_is_gone(tmp_path: Path) -> None:
    """Holds the stand-in itself to its word."""
    asked = (
        "import os, select, selectors, socket\n"
        "assert not hasattr(os, 'sched_getaffinity') and not hasattr(select, 'epoll')\n"
        "assert not hasattr(socket, 'SOCK_CLOEXEC')\n"
        "assert selectors.DefaultSelector is not getattr(selectors, 'EpollSelector', None)\n"
        "for place in ('/proc/stat', '/sys/fs/cgroup'):\n"
        "    try:\n"
        "        os.listdir(place) if 'sys' in place else open(place)\n"
        "    except FileNotFoundError:\n"
        "        continue\n"
        "    raise SystemExit(place)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", asked],
        env={**os.environ, **environment(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
