"""The first process of a member: what it starts, starts again, and recognises."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from weft_e2e.cluster import init, state
from weft_e2e.cluster.paths import ClusterPaths

FAILED, DONE = 1 << 8, 0  # as waitpid tells them


def _service(gate: list[str] | None = None) -> init.SupervisedProgram:
    return init.SupervisedProgram({"name": "x", "argv": ["true"], "gate": gate or []}, Path("/nowhere"))


def test_a_program_that_keeps_dying_is_started_ever_more_seldom() -> None:
    service = _service()
    delays = []
    for _ in range(8):
        service.started = 100.0
        service.ended(FAILED, 100.5)
        delays.append(service.due - 100.5)
    assert delays[:3] == pytest.approx([0.2, 0.4, 0.8])
    assert delays[-1] == init.BACKOFF_MAX
    service.started = 100.0
    service.ended(FAILED, 100.0 + init.STEADY_SECONDS + 1)
    assert service.due - 111.0 == pytest.approx(init.BACKOFF_FIRST), "one that ran steadily is started at once"


def test_a_gate_is_tried_until_it_opens() -> None:
    service = _service(gate=["probe"])
    service.in_gate = True
    service.ended(FAILED, 5.0)
    assert (service.passed, service.due) == (False, 5.0 + init.GATE_INTERVAL)
    service.ended(DONE, 6.0)
    assert (service.passed, service.due, service.failures) == (True, 6.0, 0)


def test_a_process_number_is_only_believed_with_its_start_and_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    paths = ClusterPaths.of("x")
    record = paths.record("node-1")
    record.parent.mkdir(parents=True)
    assert state.member_pid(paths, "node-1") is None
    init.write_record(record, os.getpid())
    assert state.member_pid(paths, "node-1") == os.getpid()
    written = json.loads(record.read_text())
    for change in ({"boot": "an earlier one"}, {"start": written["start"] + 1}, {"pid": 2**22 + 1}):
        record.write_text(json.dumps(written | change))
        assert state.member_pid(paths, "node-1") is None, change
    record.write_text("{")
    assert state.member_pid(paths, "node-1") is None


RUN = """
import pathlib, signal, sys
sys.path.insert(0, sys.argv[1])
import init
signal.pthread_sigmask(signal.SIG_BLOCK, init.SIGNALS)
init.supervise(pathlib.Path(sys.argv[2]))
"""


def _eventually(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.component
def test_services_start_after_their_gate_restart_and_come_and_go(tmp_path: Path) -> None:
    def write_spec(*services: dict[str, object]) -> Path:
        file = tmp_path / "spec.json"
        file.write_text(json.dumps({"log_dir": str(tmp_path), "services": services}))
        return file

    def lines(name: str) -> list[str]:
        file = tmp_path / f"{name}.log"
        return file.read_text().split() if file.exists() else []

    gated: dict[str, object] = {
        "name": "gated",
        "argv": ["sh", "-c", "echo ran"],
        "gate": ["test", "-e", str(tmp_path / "open")],
    }
    added: dict[str, object] = {
        "name": "added",
        "argv": ["sh", "-c", 'echo "$WORD"; exec sleep 60'],
        "env": {"WORD": "hello"},
    }
    missing: dict[str, object] = {"name": "missing", "argv": [str(tmp_path / "no-such-program")]}
    spec = write_spec(gated, missing)
    folder = str(Path(init.__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", RUN, folder, str(spec)],
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        assert lines("gated") == []
        (tmp_path / "open").touch()
        _eventually("a program that ends is started again", lambda: len(lines("gated")) >= 2)
        write_spec(added)
        process.send_signal(signal.SIGHUP)
        _eventually("a new service starts", lambda: lines("added") == ["hello"])
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=10)
        assert process.returncode == 0
        assert "spawn_failed service=missing" in told
        assert "power_off" in told
    finally:
        os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
        _end_children(tmp_path)


def _end_children(folder: Path) -> None:
    """End the sleeping service: outside of namespaces of its own nothing else does."""
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
            if b"WORD=hello" in environment and (entry / "fd/1").readlink() == folder / "added.log":
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue
