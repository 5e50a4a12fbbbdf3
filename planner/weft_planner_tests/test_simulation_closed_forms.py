"""The simulator against what queueing theory knows exactly."""

import numpy as np
import pytest

from weft_core.cost import DecodePiece, PrefillPiece, TransferCost
from weft_planner.simulation import Layout, Options, PolicyChoice, SloClass, Worker, simulate
from weft_planner.workload.distributions import Floats
from weft_planner.workload.sessions import Sample
from weft_planner_tests.simulated import profile

SESSIONS = 250_000
"""Enough for a standard error of about one percent of the mean wait at half load."""
REMOTE = PolicyChoice(route="always-remote", mode="", order="fcfs")
LAYOUT = Layout((Worker(1),), (Worker(1),))
NO_TRANSFER = TransferCost(0.0, 0.0)


def poisson(rate: float, increments: Floats, seed: int) -> Sample:
    """Return one-round sessions with one-token answers: they only ever pass through one queue."""
    count = len(increments)
    arrival = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))
    return Sample(
        rate=rate,
        window=float(arrival[-1]),
        arrival=arrival,
        first_row=np.arange(count),
        session=np.arange(count),
        history=np.zeros(count),
        increment=increments,
        tokens=np.ones(count),
        gap=np.zeros(count),
        reserve=increments + 1,
        dropped=0.0,
        past=0.0,
        short_past=False,
        session_class=np.zeros(count, np.int64),
        prefix=np.zeros(count),
    )


def mean_ttft(sample: Sample, *, prefill: PrefillPiece, transfer: TransferCost, links: str, layout: Layout) -> float:
    costs = profile(prefill=[prefill], decode=[DecodePiece(0.01)], transfer=transfer, kv=10**12)
    options = Options(links=links, admission="oracle", warm_up=0.05, cool_down=0.0)  # type: ignore[arg-type]
    outcome = simulate(sample, layout, {"gpu": costs}, REMOTE, [SloClass(1e6, 1e6)], options=options)
    return float(outcome.ttft[outcome.counted].mean())


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_equal_prefills_wait_as_in_m_d_1(load: float) -> None:
    sample = poisson(load, np.full(SESSIONS, 100.0), seed=1)
    ttft = mean_ttft(sample, prefill=PrefillPiece(1.0), transfer=NO_TRANSFER, links="none", layout=LAYOUT)
    assert ttft - 1 == pytest.approx(load / (2 * (1 - load)), rel=0.03)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_unequal_prefills_wait_as_in_m_g_1(load: float) -> None:
    tokens = np.random.default_rng(2).gamma(2.0, 500.0, SESSIONS) + 1  # mean 1,001, variance 2 x 500^2
    sample = poisson(load, tokens, seed=3)
    service = tokens / 1001
    ttft = mean_ttft(sample, prefill=PrefillPiece(0.0, 1 / 1001), transfer=NO_TRANSFER, links="none", layout=LAYOUT)
    wait = load * float((service**2).mean()) / (2 * (1 - load))  # Pollaczek-Khinchine
    assert ttft - service.mean() == pytest.approx(wait, rel=0.03)


def test_transfers_queue_at_the_card_as_in_m_d_1() -> None:
    sample = poisson(0.5, np.full(SESSIONS, 100.0), seed=4)
    ttft = mean_ttft(sample, prefill=PrefillPiece(1e-9), transfer=TransferCost(1.0, 0.0), links="fifo", layout=LAYOUT)
    assert ttft - 1 == pytest.approx(0.5, rel=0.03)


def test_shared_transfers_take_as_long_as_in_m_g_1_processor_sharing() -> None:
    tokens = np.random.default_rng(5).exponential(1000.0, 60_000) + 1
    sample = poisson(0.5, tokens, seed=6)
    link = TransferCost(0.0, 1 / 1001)
    ttft = mean_ttft(sample, prefill=PrefillPiece(1e-9), transfer=link, links="fair", layout=LAYOUT)
    assert ttft == pytest.approx(1 / (1 - 0.5), rel=0.03)


def test_a_lone_round_takes_exactly_its_parts() -> None:
    sample = poisson(1.0, np.array([1000.0]), seed=7)
    sample.tokens[:] = 5
    sample.reserve[:] = 1005
    costs = profile(
        prefill=[PrefillPiece(0.1, 1e-3)], decode=[DecodePiece(0.01, 0.0, 1e-6)], transfer=TransferCost(0.005, 1e-5)
    )
    outcome = simulate(
        sample, LAYOUT, {"gpu": costs}, REMOTE, [SloClass(9, 9)], options=Options(warm_up=0, cool_down=0)
    )
    assert outcome.ttft[0] == pytest.approx(0.1 + 1.0 + 0.005 + 0.01)
    steps = sum(0.01 + 1e-6 * (1001 + k) for k in range(4))
    assert outcome.finished[0] - outcome.arrival[0] - outcome.ttft[0] == pytest.approx(steps)
