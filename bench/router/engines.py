"""Run the compiled mock engine: all prefill and decode engines of a run in one process."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.router.compiled import BenchError, program
from bench.router.processes import Cores, Process, get, start, wait_for


@dataclass(frozen=True, slots=True)
class Engines:
    """Where the engines listen."""

    process: Process
    prefill: tuple[int, ...]
    decode: tuple[int, ...]

    def pace(self, gap_s: float) -> None:
        """Set the time between a stream's events; 0: as fast as they are read."""
        self._ask(f"/bench/pace/{round(gap_s * 1e6)}")

    def ledger(self) -> dict[str, int]:
        """Return what the engines saw since the last reset."""
        return self._ask("/bench/ledger")

    def reset(self) -> None:
        """Forget what the engines saw."""
        self._ask("/bench/reset")

    def _ask(self, path: str) -> dict[str, int]:
        text = get(self.decode[0], path)
        if text is None:
            raise BenchError(f"the mock engine does not answer: {self.process.last_words()}")
        found: dict[str, int] = json.loads(text)
        return found


@contextmanager
def running(folder: Path, cores: Cores, *, prefill: int, decode: int) -> Iterator[Engines]:
    """Give so many engines and end them afterwards."""
    log = folder / "engines.log"
    process = start("the mock engine", [str(program("engine")), str(prefill), str(decode)], on=cores.load, log=log)
    try:
        while log.read_bytes().count(b"\n") < 2:
            process.alive()
        ports = {line.split()[0]: tuple(map(int, line.split()[1:])) for line in log.read_text().splitlines()}
        wait_for(process, "/health", ports["decode"][0])
        yield Engines(process, ports["prefill"], ports["decode"])
    finally:
        process.stop()
