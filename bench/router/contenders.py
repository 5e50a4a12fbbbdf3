"""Everything that is measured as one process in front of the engines: Weft, its peers, and a bare proxy."""

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.router import weft
from bench.router.compiled import BenchError
from bench.router.engines import Engines
from bench.router.peers import QUIET, Backends, sglang_command, vllm_command
from bench.router.processes import HOST, Cores, Process, start

READY_S = 60.0


@dataclass(frozen=True, slots=True)
class Contender:
    """A router: its name in the table, what it is, and its command line for engines, port and a spare port."""

    name: str
    note: str
    command: Callable[[Engines, int, int], Sequence[str]]
    env: dict[str, str]
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A router that serves."""

    contender: Contender
    process: Process
    port: int
    engines: Engines
    cores: Cores

    @property
    def pids(self) -> list[int]:
        return [self.process.popen.pid]


def standalone(files: weft.Files, *, processes: int = 1) -> Contender:
    """Return Weft in one process, or in several behind one port."""
    return Contender(
        "Weft",
        "`weft router --role standalone`, policy `weft`: sessions, limits, API keys and metrics on",
        lambda engines, port, _: weft.standalone_command(files, engines, port, processes=processes),
        files.env,
        files.key,
    )


def contenders(files: weft.Files) -> dict[str, Contender]:
    """Return all that can be compared, by name."""
    found = (
        standalone(files),
        Contender("vllm-router", "0.1.17, P/D mode, round_robin", _peer(vllm_command), QUIET),
        Contender("sglang-router", "0.3.2, P/D mode, round_robin", _peer(sglang_command), QUIET),
        Contender(
            "bare", "asyncio.Protocol, httptools and orjson on uvloop without any duty: an upper bound", _bare, {}
        ),
    )
    return {one.name.lower(): one for one in found}


def _peer(command: Callable[[Backends, int, int], Sequence[str]]) -> Callable[[Engines, int, int], Sequence[str]]:
    return lambda engines, port, spare: command(Backends(engines.prefill, engines.decode), port, spare)


def _bare(engines: Engines, port: int, _: int) -> list[str]:
    sides = [",".join(map(str, ports)) for ports in (engines.prefill, engines.decode)]
    return [sys.executable, str(Path(__file__).with_name("bare.py")), str(port), *sides]


@contextmanager
def running(contender: Contender, engines: Engines, *, folder: Path, cores: Cores) -> Iterator[Running]:
    """Give a router that answered its first request, and end it afterwards.

    Raises:
        BenchError: it does not start.
    """
    port, spare = weft.free_ports(2)
    command = contender.command(engines, port, spare)
    log = folder / f"{contender.name.lower()}.log"
    process = start(contender.name, command, on=cores.router, log=log, env=contender.env)
    try:
        _await_answer(process, port, contender.key)
        yield Running(contender, process, port, engines, cores)
    finally:
        process.stop()


def _await_answer(process: Process, port: int, key: str | None) -> None:
    """Wait until a small request is answered: a router may serve before it knows its engines."""
    mark = "0" * 16
    body = {"model": weft.MODEL, "messages": [{"role": "user", "content": f"hello #{mark}#"}], "max_tokens": 4}
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    deadline = time.monotonic() + READY_S
    last = ""
    while time.monotonic() < deadline:
        process.alive()
        url = f"http://{HOST}:{port}/v1/chat/completions"
        request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=5) as reply:  # noqa: S310 - loopback
                if mark in reply.read().decode():
                    return
        except urllib.error.HTTPError as error:
            last = f"{error.code} {error.read()[:200]!r}"
        except OSError as error:
            last = str(error)
        time.sleep(0.1)
    raise BenchError(f"{process.name} answered no request within {READY_S:g} s: {last}; {process.last_words()}")
