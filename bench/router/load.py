"""Send load with the compiled client and read what the router used while it was measured."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.router.compiled import BenchError, program
from bench.router.processes import LAUNCH, TICKS, Cores, cpu_seconds, rss_mb

GRACE_S = 150.0


@dataclass(frozen=True, slots=True)
class Load:
    """What to send; times in seconds, ``prompt`` in characters of each user message."""

    connections: int = 64
    rounds: int = 1
    tokens: int = 16
    prompt: int = 400
    warm_s: float = 1.0
    seconds: float = 3.0
    rate: float = 0.0
    stream: bool = False
    hold: bool = False
    session: bool = True
    prefill_port: int = 0

    def words(self, port: int, key: str | None) -> list[str]:
        """Return the client's command line behind its name."""
        values: dict[str, object] = {
            "port": port,
            "connections": self.connections,
            "rounds": self.rounds,
            "tokens": self.tokens,
            "prompt": self.prompt,
            "warm": self.warm_s,
            "seconds": self.seconds,
            "rate": self.rate,
            "prefill-port": self.prefill_port,
        }
        flags = [f"--{name}" for name in ("stream", "hold", "session") if getattr(self, name)]
        words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
        return [*words, *flags, *(["--key", key] if key else [])]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it; ``cpu_s`` and ``rss_mb`` are the router's, latencies in microseconds (P50, P90, P99, P99.9)."""

    requests: int
    events: int
    seconds: float
    peak: int
    latency_us: tuple[float, ...]
    cpu_s: float
    rss_mb: float

    def per_core(self, count: int) -> float:
        """Return how many of something the router did in a second of its processor time."""
        return count / max(self.cpu_s, 1 / TICKS)

    def each_us(self, count: int) -> float:
        """Return what one of something cost the router, in microseconds of processor time."""
        return self.cpu_s / max(count, 1) * 1e6

    @property
    def busy(self) -> float:
        """Return how many cores the router kept busy."""
        return self.cpu_s / self.seconds


def read(line: str, *, cpu_s: float, rss_mb: float) -> Outcome:
    """Read the client's report.

    Raises:
        BenchError: any answer was wrong, missing or unfinished.
    """
    told: Mapping[str, object] = json.loads(line)

    def number(name: str) -> float:
        value = told[name]
        if not isinstance(value, int | float):
            raise BenchError(f"the client's report has no number {name}: {line[:200]}")
        return value

    latencies = told["latency_us"]
    if number("errors") or number("unfinished"):
        raise BenchError(
            f"{number('errors'):g} wrong and {number('unfinished'):g} unfinished answers; "
            f"the first: {told['first_error']}"
        )
    return Outcome(
        requests=int(number("requests")),
        events=int(number("events")),
        seconds=number("seconds"),
        peak=int(number("peak")),
        latency_us=tuple(map(float, latencies)) if isinstance(latencies, list) else (),
        cpu_s=cpu_s,
        rss_mb=rss_mb,
    )


def run(
    load: Load,
    port: int,
    *,
    cores: Cores,
    pids: Sequence[int] = (),
    key: str | None = None,
    at_end: Callable[[], None] = lambda: None,
) -> Outcome:
    """Send a load to a port and measure; ``pids`` are the router's processes, ``at_end`` is called behind it.

    Raises:
        BenchError: any answer was wrong, or the client could not do its work.
    """
    words = [str(program("client")), *load.words(port, key)]
    argv = [sys.executable, "-c", LAUNCH, ",".join(map(str, cores.load)), *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
        if client.stdout is None or client.stderr is None:
            raise BenchError("the client's output cannot be read")
        before = after = memory = 0.0
        last = ""
        try:
            for line in client.stdout:
                if line == "begin\n":
                    before = cpu_seconds(pids)
                elif line == "end\n":
                    after = cpu_seconds(pids)
                    memory = max(rss_mb(pids), default=0.0)
                    at_end()
                else:
                    last = line
            client.wait(GRACE_S)
        finally:
            client.kill()
        if not last:
            raise BenchError(f"the client gave up: {client.stderr.read()[-500:].strip()}")
    return read(last, cpu_s=after - before, rss_mb=memory)
