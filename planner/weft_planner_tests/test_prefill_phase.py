import numpy as np
import pytest

from weft_planner.phases.prefill import simulate_prefill
from weft_planner.workload.distributions import Floats
from weft_planner.workload.sessions import Sample, draw
from weft_planner_tests.requests import workload


def run(sample: Sample, service: Floats, *, workers: int, read: float = 0.0, back: float = 0.0) -> Floats:
    think = np.full(sample.rows, 2.0)
    return simulate_prefill(
        sample,
        sample.starts(service + think),
        service=service,
        read=np.full(sample.rows, read),
        back=np.full(sample.rows, back),
        think=think,
        workers=workers,
    )


def single_rounds(seed: int) -> Sample:
    return draw(workload(rounds=1.0), max_model_len=10**6, round_seconds=1.0, seed=seed)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_constant_service_waits_as_the_m_d_1_queue(load: float) -> None:
    """W = load x service / (2 (1 - load)), Pollaczek-Khinchine with no variance."""
    waits = []
    for seed in range(8):
        sample = single_rounds(seed)
        service = np.full(sample.rows, load / sample.rate)
        waits.append(run(sample, service, workers=1).mean() - load / sample.rate)
    assert np.mean(waits) == pytest.approx(load * load / (2 * (1 - load)), rel=0.1)


def test_variable_service_waits_as_the_m_g_1_queue() -> None:
    """W = rate x E[S^2] / (2 (1 - load))."""
    measured, expected = [], []
    for seed in range(8):
        sample = single_rounds(seed)
        service = sample.increment / sample.increment.mean() * 0.6
        measured.append(run(sample, service, workers=1).mean() - service.mean())
        expected.append(sample.rate * (service**2).mean() / (2 * (1 - sample.rate * service.mean())))
    assert np.mean(measured) == pytest.approx(np.mean(expected), rel=0.1)


def test_many_workers_leave_no_wait() -> None:
    sample = single_rounds(0)
    service = np.full(sample.rows, 0.5)
    assert run(sample, service, workers=64) == pytest.approx(0.5)


def test_an_idle_worker_waits_for_the_history_and_the_client_for_the_way_back() -> None:
    sample = single_rounds(0)
    assert run(sample, np.full(sample.rows, 0.5), workers=64, read=0.2, back=0.1) == pytest.approx(0.8)


def test_reading_the_history_does_not_hold_up_the_worker() -> None:
    """At 0.8 load 0.2 s more per task would fill the worker; read while waiting they only come later."""
    sample = single_rounds(0)
    service = np.full(sample.rows, 0.8)
    without = run(sample, service, workers=1).mean()
    assert run(sample, service, workers=1, read=0.2).mean() == pytest.approx(without + 0.2)


def test_every_round_of_the_window_is_counted() -> None:
    sample = draw(workload(), max_model_len=10**6, round_seconds=2.0, seed=1)
    service = np.full(sample.rows, 0.01)
    starts = sample.starts(service + 2.0)
    expected = ((starts >= 0.15 * sample.window) & (starts <= sample.window)).sum()
    assert len(run(sample, service, workers=8)) == pytest.approx(expected, rel=0.01)
