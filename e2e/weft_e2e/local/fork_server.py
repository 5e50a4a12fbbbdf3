"""The parent of all that ``weft local`` runs: it imports engine and router once and forks every part from there.

Orders come on standard input and reports leave on standard output, one JSON object per line. Nobody outlives the one
who gave the orders: parent and parts hold the reading end of a pipe that only that process can close, by its end.
Nothing here is particular to Linux.
"""

import contextlib
import gc
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import click

from weft_cli.running import run

Program = Literal["mock-engine", "router"]

END_S = 2.5
"""How long parts of one kind may take to end before they are killed."""

_ENDS = (signal.SIGTERM, signal.SIGINT)
_ORDER: tuple[Program, ...] = ("router", "mock-engine")
"""Who ends first: a router takes leave of its engines."""


@dataclass(frozen=True, slots=True)
class Part:
    """One process to run: what it is called, its command with arguments, the file of its log, and more environment."""

    name: str
    program: Program
    args: tuple[str, ...]
    log: str
    env: Mapping[str, str] = field(default_factory=dict)


class ForkServer:
    """Fork parts, tell of their ends, and end them all."""

    def __init__(self, *, life: int) -> None:
        """Serve until ``life``, the reading end of a pipe, is closed on the other side."""
        self._life = life
        self._parts: dict[int, Part] = {}
        self._orders = bytearray()
        self._ending = False
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake)
        for number in (*_ENDS, signal.SIGCHLD):
            signal.signal(number, self._heard)

    def run(self) -> int:
        """Carry out orders until told to end; return 0 once every part is gone."""
        tell({"event": "ready"})
        sources = [0, self._life, self._woken]
        while not self._ending:
            ready, _, _ = select.select(sources, [], [])
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 512)
                self._reap()
            if self._life in ready:
                break
            if 0 in ready and not self._take_orders():
                sources.remove(0)
        for program in _ORDER:
            self._end(program)
        return 0

    def _heard(self, number: int, _frame: object) -> None:
        self._ending = self._ending or number in _ENDS

    def _take_orders(self) -> bool:
        data = os.read(0, 1 << 16)
        self._orders += data
        *lines, rest = bytes(self._orders).split(b"\n")
        self._orders = bytearray(rest)
        for line in lines:
            order = json.loads(line)
            self._start(Part(order["name"], order["program"], tuple(order["args"]), order["log"], order["env"]))
        return bool(data)

    def _start(self, part: Part) -> None:
        pid = os.fork()
        if pid == 0:
            _become(part, self._life)
        self._parts[pid] = part
        tell({"event": "started", "name": part.name, "pid": pid})

    def _reap(self) -> None:
        while self._parts:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            part = self._parts.pop(pid, None)
            if part is not None:
                code = os.waitstatus_to_exitcode(status)
                tell({"event": "ended", "name": part.name, "status": code, "log": part.log})

    def _end(self, program: Program) -> None:
        """End the parts of one program: asked first, killed when they take too long."""
        for number, patience in ((signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
            pids = [pid for pid, part in self._parts.items() if part.program == program]
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline = time.monotonic() + patience
            while any(pid in self._parts for pid in pids) and time.monotonic() < deadline:
                select.select([self._woken], [], [], 0.05)
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 512)
                self._reap()


def tell(report: dict[str, object]) -> None:
    """Report to whoever gave the orders, if there is anybody left."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(report).encode() + b"\n")


def _become(part: Part, life: int) -> None:
    """Run a part in this new process and end with its status."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (*_ENDS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(part.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(part.env)
        threading.Thread(target=_end_with, args=(life,), daemon=True).start()
        status = run(_command(part.program), part.args, prog=f"weft {part.program}")
    except BaseException:  # noqa: BLE001 - nothing may return into the parent's loop
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(status)


def _end_with(life: int) -> None:
    """End this process once ``life`` is closed on the other side; by force if it does not hear."""
    os.read(life, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(2 * END_S)
    os._exit(1)


def _command(program: Program) -> click.Command:
    if program == "router":
        from weft_router.cli import router

        return router
    from weft_mock.cli import mock_engine

    return mock_engine


def _load(*, engines: bool) -> None:
    """Import what parts need, once for all of them."""
    import weft_router.cli
    import weft_router.process

    del weft_router
    if engines:
        import weft_mock.cli
        import weft_mock.server

        del weft_mock


def main(argv: list[str]) -> int:
    """Run with the arguments LIFE (a file descriptor) and, where engines are to be started, ``engines``."""
    os.umask(0o077)
    _load(engines="engines" in argv[1:])
    gc.freeze()  # no part walks, and so copies, what they all share: half the memory and time of an engine's start
    return ForkServer(life=int(argv[0])).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
