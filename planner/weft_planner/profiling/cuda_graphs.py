"""Time work on a CUDA GPU as engines run it: captured in a CUDA graph, so that no launch by the CPU is in the time.

Decode steps and short prefills of vLLM run as CUDA graphs. Without one, the 300 kernels of a step at 5 to 10 us of
launching each would hide what the GPU does. Where a capture fails, the work is timed launch by launch and the timing
says so.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class GpuTiming:
    """Median seconds of one run, whether it was replayed from a graph, the runs counted, and the SM clock meanwhile.

    ``clock_mhz`` is 0 where the driver's library (nvidia-ml-py) does not tell.
    """

    seconds: float
    graph: bool
    runs: int
    clock_mhz: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    """How long to time: seconds of unrecorded replays first, then at most so many replays within a budget of seconds.

    The warm-up brings the GPU to the clock that its power limit allows under this load. After 30 ms the
    clock still fell: on an H200 a product with 2,064 rows then took 16 % less than one with 2,112.
    """

    warm_up_s: float = 0.1
    counted: int = 15
    budget_s: float = 0.15
    fewest: int = 3


def flash_attention() -> AbstractContextManager[None]:
    """Return the context in which torch attends by FlashAttention, by others only where that cannot.

    Left to itself torch chooses cuDNN's for some shapes and FlashAttention for others.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen: AbstractContextManager[None] = sdpa_kernel(
        [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    )
    return chosen


class GraphClock:
    """Time work on one GPU by events around replays of its graph."""

    def __init__(self, torch: Any, device: Any, limits: ReplayLimits = ReplayLimits()) -> None:
        """Time with ``torch`` on ``device``; keep one clock, since cuBLAS holds a workspace for every stream."""
        self._torch = torch
        self._stream = torch.cuda.Stream(device)
        self._device = device
        self._limits = limits

    def timing(self, run: Callable[[], object], *, runs: int = 1) -> GpuTiming:
        """Return the time of one run, when ``run`` is captured ``runs`` times in a row.

        ``run`` must do the same work each time, on tensors that stay where they are, without waiting for the GPU.

        Raises:
            torch.OutOfMemoryError: the GPU has no memory for it.
        """
        torch = self._torch
        torch.cuda.synchronize(self._device)
        before = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(before)
        with torch.cuda.stream(self._stream):
            for _ in range(2):  # kernels are compiled and chosen, and libraries get their workspaces, before a capture
                run()
        before.wait_stream(self._stream)
        torch.cuda.synchronize(self._device)
        graph, error = None, ""
        try:
            graph = self._captured(run, runs)
            replay: Callable[[], object] = graph.replay
        except RuntimeError as failure:
            torch.cuda.set_stream(before)
            if isinstance(failure, torch.OutOfMemoryError) or "out of memory" in str(failure):
                raise torch.OutOfMemoryError(str(failure)) from failure
            error = f"not captured: {str(failure)[:200]}"
            torch.cuda.synchronize(self._device)

            def replay() -> None:
                for _ in range(runs):
                    run()

        times, clock = self._timed(replay)
        if graph is not None:
            graph.reset()
        return GpuTiming(median(times) / runs, graph is not None, len(times), clock, error)

    def _captured(self, run: Callable[[], object], runs: int) -> Any:
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph, stream=self._stream):
            for _ in range(runs):
                run()
        return graph

    def _timed(self, replay: Callable[[], object]) -> tuple[list[float], int]:
        """Queue replays back to back: the GPU never waits for the CPU between the events of one and of the next."""
        first = self._between(replay, 1)[0]
        limits = self._limits
        warm = min(1000, ceil(limits.warm_up_s / max(first, 1e-6)))
        for _ in range(warm):
            replay()
        within = int(limits.budget_s / max(first, 1e-6))
        counted = max(limits.fewest, min(limits.counted, within))
        clocks: list[int] = []
        times = self._between(replay, counted, lambda: clocks.append(self._clock()))
        return times, clocks[0] if clocks else 0

    def _between(
        self, replay: Callable[[], object], counted: int, queued: Callable[[], object] = lambda: None
    ) -> list[float]:
        """Return the seconds of each replay; the first one in the queue is not counted. ``queued`` runs meanwhile."""
        torch = self._torch
        events = [torch.cuda.Event(enable_timing=True) for _ in range(counted + 1)]
        replay()
        events[0].record()
        for event in events[1:]:
            replay()
            event.record()
        queued()
        torch.cuda.synchronize(self._device)
        return [float(a.elapsed_time(b)) / 1e3 for a, b in pairwise(events)]

    def _clock(self) -> int:
        try:
            return int(self._torch.cuda.clock_rate(self._device))
        except Exception:  # noqa: BLE001 - the driver's library is missing or refuses; the clock only explains a time
            return 0
