"""Timing by CUDA graphs, with a torch that only counts: 4 ms a run, a second of warm-up for nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from weft_planner.profiling.cuda_graphs import GraphClock, ReplayLimits

RUN_S = 0.004
LIMITS = ReplayLimits(warm_up_s=0.02, counted=10, budget_s=0.06, fewest=3)


class FakeOutOfMemoryError(RuntimeError):
    """torch.OutOfMemoryError, which is a RuntimeError too."""


class FakeCuda:
    """A GPU whose clock moves on by 4 ms with every run; a capture takes no time, a replay that of its runs."""

    def __init__(self, refuses: Exception | None = None) -> None:
        self.now, self.captures, self.capturing = 0.0, 0, False
        self.refuses = refuses
        self.reset = False
        self.current: Any = "default"

    def run(self) -> None:
        if self.capturing:
            self.captures += 1
        else:
            self.now += RUN_S

    def replay(self) -> None:
        self.now += RUN_S * self.captures

    @contextmanager
    def graph(self, _graph: Any, *, stream: Any) -> Iterator[None]:
        assert stream is not None
        self.capturing, self.current = True, "capture"
        if self.refuses:
            self.capturing = False
            raise self.refuses
        yield
        self.capturing, self.current = False, "default"

    @contextmanager
    def stream(self, _stream: Any) -> Iterator[None]:
        yield

    def set_stream(self, stream: Any) -> None:
        self.current = stream.name

    def current_stream(self, _device: Any) -> Any:
        return FakeStream(self.current)

    def synchronize(self, _device: Any) -> None:
        assert not self.capturing

    def clock_rate(self, _device: Any) -> int:
        return 1755


class FakeStream:
    def __init__(self, name: Any) -> None:
        self.name = name

    def wait_stream(self, _other: Any) -> None:
        """Nothing runs at once here."""


def clock(gpu: FakeCuda) -> GraphClock:
    def event(enable_timing: bool) -> Any:
        assert enable_timing
        return Event()

    class Event:
        def record(self) -> None:
            self.at = gpu.now

        def elapsed_time(self, later: "Event") -> float:
            return 1e3 * (later.at - self.at)

    class Graph:
        replay = staticmethod(gpu.replay)

        def reset(self) -> None:
            gpu.reset = True

    fake: Any = gpu
    fake.Event, fake.Stream, fake.CUDAGraph = event, FakeStream, Graph
    torch: Any = type("torch", (), {"cuda": gpu, "OutOfMemoryError": FakeOutOfMemoryError})
    return GraphClock(torch, "cuda:0", LIMITS)


def test_one_run_is_timed_by_replays_of_several() -> None:
    gpu = FakeCuda()
    timing = clock(gpu).timing(gpu.run, runs=2)
    assert timing.seconds == pytest.approx(RUN_S)
    assert (timing.graph, timing.runs, timing.clock_mhz, timing.error) == (True, 7, 1755, "")
    assert gpu.reset


def test_long_work_is_timed_a_few_times_and_short_work_as_often_as_asked() -> None:
    gpu = FakeCuda()
    assert clock(gpu).timing(gpu.run, runs=100).runs == LIMITS.fewest
    gpu = FakeCuda()
    assert clock(gpu).timing(gpu.run).runs == LIMITS.counted


def test_work_that_cannot_be_captured_is_timed_launch_by_launch() -> None:
    gpu = FakeCuda(refuses=RuntimeError("operation not permitted when stream is capturing"))
    timing = clock(gpu).timing(gpu.run, runs=3)
    assert timing.seconds == pytest.approx(RUN_S)
    assert not timing.graph
    assert "not captured: operation not permitted" in timing.error
    assert gpu.current == "default"


@pytest.mark.parametrize("error", [FakeOutOfMemoryError("no memory"), RuntimeError("CUDA error: out of memory")])
def test_want_of_memory_is_told_as_that(error: Exception) -> None:
    gpu = FakeCuda(refuses=error)
    with pytest.raises(FakeOutOfMemoryError):
        clock(gpu).timing(gpu.run)


def test_a_driver_that_does_not_tell_its_clock_does_no_harm() -> None:
    def refuses(_device: Any) -> int:
        raise ModuleNotFoundError("pynvml")

    gpu = FakeCuda()
    fake: Any = gpu
    fake.clock_rate = refuses
    assert clock(gpu).timing(gpu.run).clock_mhz == 0
