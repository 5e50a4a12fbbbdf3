"""Watch whether the measuring client or the machine was too busy for its own figures."""

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from weft_e2e.replay.records import ClientLoad

_TICK_S = 0.02


class LoadMeter:
    """Measure, while entered, the client's CPU time, the machine's busy cores and how late the event loop runs."""

    def __init__(self) -> None:
        """Prepare the meter; entering it starts the measurement."""
        self._lags: list[float] = []
        self._task: asyncio.Task[None] | None = None
        self._wall = self._cpu = 0.0
        self._busy: float | None = None
        self._result: ClientLoad | None = None

    async def __aenter__(self) -> Self:
        """Start measuring."""
        self._wall, self._cpu, self._busy = time.perf_counter(), time.process_time(), machine_busy_seconds()
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop measuring."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        wall = max(time.perf_counter() - self._wall, 1e-9)
        busy = machine_busy_seconds()
        lags = sorted(self._lags) or [0.0]
        self._result = ClientLoad(
            cpu_cores=(time.process_time() - self._cpu) / wall,
            machine_busy_cores=None if busy is None or self._busy is None else (busy - self._busy) / wall,
            machine_cores=os.cpu_count() or 1,
            lag_p99_s=lags[min(len(lags) - 1, int(0.99 * len(lags)))],
            lag_max_s=lags[-1],
        )

    @property
    def result(self) -> ClientLoad:
        """Return the measurement; the meter must have been left."""
        if self._result is None:
            raise RuntimeError("the load meter is still running")
        return self._result

    async def _tick(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_TICK_S)
            self._lags.append(max(time.perf_counter() - before - _TICK_S, 0.0))


def machine_busy_seconds() -> float | None:
    """Return the CPU seconds all cores have been busy since boot; None where /proc/stat does not say."""
    try:
        first = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return None
    if first[:1] != ["cpu"] or len(first) < 8:
        return None
    user, nice, system, _idle, _iowait, irq, softirq = (int(v) for v in first[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
