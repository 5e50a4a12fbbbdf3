"""First process of a node or of the control plane: the power switch of a set of namespaces.

Started by file path with `python -I -S init.py SPEC`, so it uses the standard library alone. It joins
the member's control groups, leaves the machine's namespaces, writes down who it is, and waits for one
line on standard input (its launcher has wired the network by then). If that input ends without the
line, the launcher is gone: it ends too. Then it starts the services in their order, each after its gate, and
starts again whatever exits. It dies on SIGTERM or SIGKILL, and the kernel ends everything inside with it.
SIGHUP makes it read the list of services anew.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x20000, 0x2000000, 0x4000000
CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x8000000, 0x20000000, 0x40000000
GATE_INTERVAL = 0.05
BACKOFF_FIRST, BACKOFF_MAX = 0.2, 5.0
STEADY_SECONDS = 10.0  # a service that ran this long starts again at once
SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def say(event: str, **facts: object) -> None:
    words = " ".join(f"{key}={value}" for key, value in facts.items())
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {event} {words}\n")
    sys.stderr.flush()


class SupervisedProgram:
    """One supervised program: waiting for its gate, running, or waiting for its next start."""

    def __init__(self, spec: dict[str, object], log_dir: Path) -> None:
        self.name = str(spec["name"])
        self.argv = [str(word) for word in _list(spec["argv"])]
        self.gate = [str(word) for word in _list(spec.get("gate", []))]
        self.environment = dict(os.environ) | {str(k): str(v) for k, v in _dict(spec.get("env", {})).items()}
        self.log = log_dir / f"{self.name}.log"
        self.pid: int | None = None
        self.in_gate = False
        self.passed = not self.gate
        self.due = 0.0
        self.started = 0.0
        self.failures = 0

    def start(self, now: float) -> None:
        """Start the gate's command, or the program itself once the gate has been passed."""
        argv = self.argv if self.passed else self.gate
        self.in_gate = not self.passed
        log = "/dev/null" if self.in_gate else str(self.log)
        self.started = now
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        try:
            self.pid = os.posix_spawnp(
                argv[0], argv, self.environment, file_actions=actions, setsid=True, setsigmask=[]
            )
        except OSError as error:
            say("spawn_failed", service=self.name, error=error)
            self._later(now)
            return
        if not self.in_gate:
            say("started", service=self.name, pid=self.pid)

    def ended(self, status: int, now: float) -> None:
        self.pid = None
        if self.in_gate:
            self.passed = status == 0
            self.due = now if self.passed else now + GATE_INTERVAL
            return
        say("ended", service=self.name, status=os.waitstatus_to_exitcode(status), ran=f"{now - self.started:.1f}s")
        if now - self.started > STEADY_SECONDS:
            self.failures = 0
        self._later(now)

    def _later(self, now: float) -> None:
        self.due = now + min(BACKOFF_MAX, BACKOFF_FIRST * 2 ** min(self.failures, 10))
        self.failures += 1

    def stop(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGTERM)


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {value!r}")
    return value


def _dict(value: object) -> dict[object, object]:
    if not isinstance(value, dict):
        raise TypeError(f"expected a mapping, got {value!r}")
    return value


def leave_namespaces() -> None:
    """Give this process namespaces of its own; the process-id namespace is its next child's."""
    flags = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(ctypes.c_int(flags)) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def write_all(writes: list[list[str]]) -> None:
    """Write texts to control-group files."""
    for file, text in writes:
        Path(file).write_text(text)


def write_record(path: Path, pid: int) -> None:
    """Write the identity of `pid`: number, start time and boot, so that a reused number is never taken for it."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    record = {
        "pid": pid,
        "start": int(stat.rpartition(")")[2].split()[19]),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    }
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(record))
    temporary.rename(path)


def supervise(spec_file: Path) -> None:
    spec = json.loads(spec_file.read_text())
    log_dir = Path(spec["log_dir"])
    services = {str(item["name"]): SupervisedProgram(item, log_dir) for item in spec["services"]}
    leaving: dict[int, str] = {}
    while True:
        now = time.monotonic()
        for service in services.values():
            if service.pid is None and service.due <= now:
                service.start(now)
        waits = [service.due - now for service in services.values() if service.pid is None]
        received = signal.sigtimedwait(SIGNALS, max(0.0, min(waits, default=3600.0)))
        if received is not None and received.si_signo in (signal.SIGTERM, signal.SIGINT):
            say("power_off")
            return
        if received is not None and received.si_signo == signal.SIGHUP:
            wanted = {str(item["name"]): item for item in json.loads(spec_file.read_text())["services"]}
            for name in [name for name in services if name not in wanted]:
                gone = services.pop(name)
                if gone.pid is not None:
                    leaving[gone.pid] = name
                gone.stop()
            services |= {
                name: SupervisedProgram(item, log_dir) for name, item in wanted.items() if name not in services
            }
        _reap(services, leaving)


def _reap(services: dict[str, SupervisedProgram], leaving: dict[int, str]) -> None:
    """Collect every child that ended, orphans of the containers included."""
    now = time.monotonic()
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if name := leaving.pop(pid, None):
            say("removed", service=name)
        for service in services.values():
            if service.pid == pid:
                service.ended(status, now)


def main() -> None:
    spec_file = Path(sys.argv[1])
    spec = json.loads(spec_file.read_text())
    write_all(spec["cgroup_writes"]["join"])
    leave_namespaces()
    write_all(spec["cgroup_writes"]["split"])
    if child := os.fork():
        write_record(Path(spec["record"]), child)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    socket.sethostname(spec["hostname"])
    for argv in spec["setup"]:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
        if done.returncode != 0:
            say("setup_failed", argv=" ".join(argv), error=done.stderr.strip())
            os._exit(1)
    say("namespaces_ready", member=spec["hostname"])
    if sys.stdin.readline().strip() != "go":
        say("launcher_gone")
        os._exit(1)
    os.dup2(os.open("/dev/null", os.O_RDWR), 0)
    os.dup2(0, 1)
    supervise(spec_file)
    os._exit(0)


if __name__ == "__main__":
    main()
