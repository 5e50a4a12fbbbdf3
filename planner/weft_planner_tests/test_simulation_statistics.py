"""Percentiles, attainment under every reading, intervals and goodput, against what is counted by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.slo import Reading, RoundLatency, Slo
from weft_core.slo import attainment as attainment_of
from weft_planner.simulation import (
    AMPD,
    READINGS,
    Options,
    Outcome,
    PolicyChoice,
    SimulationError,
    SloClass,
    attainment,
    goodput,
    layout_of,
    simulate,
    summarise,
)
from weft_planner.simulation.statistics import estimate
from weft_planner.workload.sessions import Sample, Size, draw
from weft_planner_tests.requests import workload
from weft_planner_tests.simulated import ONE_CLASS, TWO_CLASSES, profile, sample_of

LAYOUT = layout_of("disaggregated", prefill={1: 1}, decode={1: 1})
ALL = Options(warm_up=0.0, cool_down=0.0)


def outcome_with(rounds: list[tuple[float, list[float]]], *, per_session: int, slo: SloClass) -> Outcome:
    """Return an outcome whose rounds have these TTFTs and gaps."""
    sessions = [
        (float(i), [(10.0, float(len(gaps) + 1), 0.0) for _, gaps in rounds[i : i + per_session]])
        for i in range(0, len(rounds), per_session)
    ]
    sample = sample_of(sessions)
    ran = simulate(sample, LAYOUT, {"gpu": profile()}, PolicyChoice(), [slo], options=ALL)
    return replace(
        ran,
        ttft=np.array([ttft for ttft, _ in rounds]),
        gaps=np.array([len(gaps) for _, gaps in rounds]),
        itl_mean=np.array([sum(gaps) / len(gaps) if gaps else 0.0 for _, gaps in rounds]),
        itl_max=np.array([max(gaps, default=0.0) for _, gaps in rounds]),
        itl_over=np.array([sum(g > slo.itl_s for g in gaps) / len(gaps) if gaps else 0.0 for _, gaps in rounds]),
    )


@given(
    st.lists(st.tuples(st.floats(0.01, 2), st.lists(st.floats(0.001, 0.2), max_size=12)), min_size=1, max_size=9),
    st.integers(1, 3),
    st.sampled_from([r for r in READINGS if r.itl != "p95"]),
)
def test_attainment_is_what_the_core_counts(
    rounds: list[tuple[float, list[float]]], per_session: int, reading: Reading
) -> None:
    outcome = outcome_with(rounds, per_session=per_session, slo=SloClass(1.0, 0.05))
    latencies = [RoundLatency(ttft, tuple(gaps)) for ttft, gaps in rounds]
    sessions = [latencies[i : i + per_session] for i in range(0, len(latencies), per_session)]
    assert attainment(outcome, reading) == attainment_of(sessions, Slo(1.0, 0.05), reading)


def test_a_p95_meets_its_threshold_while_five_percent_of_the_gaps_are_over() -> None:
    slo = SloClass(1.0, 0.05)
    for late, expected in ((5, 1.0), (6, 0.0)):
        gaps = [0.06] * late + [0.01] * (100 - late)
        outcome = outcome_with([(0.5, gaps)], per_session=1, slo=slo)
        assert attainment(outcome, Reading("round", "p95")) == expected
        assert attainment(outcome, Reading("session", "p95")) == expected
        assert attainment(outcome, Reading("session", "max")) == 0.0


def test_each_class_is_held_to_its_own_slo() -> None:
    sessions = [(i / 10, [(500.0, 5.0, 0.1), (100.0, 5.0, 0.0)]) for i in range(20)]
    sample = sample_of(sessions, kinds=[i % 2 for i in range(20)])
    strict = (SloClass(100.0, 100.0, "lax"), SloClass(1e-6, 100.0, "impossible"))
    outcome = simulate(sample, LAYOUT, {"gpu": profile()}, PolicyChoice(), strict, options=ALL)
    summary = summarise([outcome])
    assert summary.of_class["lax"].value == 1.0
    assert summary.of_class["impossible"].value == 0.0
    assert summary.attained.value == 0.5


def test_rounds_that_nobody_could_serve_count_as_missed() -> None:
    sample = sample_of([(0.0, [(500.0, 5.0, 0.0)]), (1.0, [(50_000.0, 5.0, 0.0), (10.0, 5.0, 0.0)])])
    outcome = simulate(sample, LAYOUT, {"gpu": profile(kv=1000)}, PolicyChoice(), [SloClass(9, 9)], options=ALL)
    summary = summarise([outcome], Reading("round", "mean"))
    assert summary.unserved == pytest.approx(2 / 3)
    assert summary.attained.value == pytest.approx(1 / 3)
    assert math.isinf(summary.ttft.p95.value)


def test_an_interval_is_students() -> None:
    one = estimate([1.0, 2.0, 3.0])
    half = 4.303 * 1.0 / math.sqrt(3)
    assert (one.value, one.low, one.high) == pytest.approx((2.0, 2.0 - half, 2.0 + half))
    assert math.isnan(estimate([1.0]).low)
    assert estimate([math.inf, 1.0]).value == math.inf


def at(rate: float, seed: int) -> Sample:
    return draw(
        workload(), max_model_len=30_000, round_seconds=2.0, seed=seed, rate=rate, size=Size(sessions=150), steady=False
    )


def test_goodput_lies_between_what_holds_and_what_does_not() -> None:
    found = goodput(at, LAYOUT, {"gpu": profile()}, PolicyChoice(), ONE_CLASS, guess=1.0, seeds=(1, 2), tolerance=0.05)
    for seed, rate in zip((1, 2), found.of_seed, strict=True):
        holding = [r for s, r, share in found.runs if s == seed and share >= found.target]
        failing = [r for s, r, share in found.runs if s == seed and share < found.target]
        assert rate == max(holding)
        assert min(r for r in failing if r > rate) <= rate * 1.05
    assert found.rate.value == pytest.approx(sum(found.of_seed) / 2)


def test_goodput_is_zero_where_nothing_holds() -> None:
    found = goodput(at, LAYOUT, {"gpu": profile()}, AMPD, [SloClass(1e-6, 1e-6)], guess=1.0, seeds=(1,))
    assert found.rate.value == 0.0


@pytest.mark.parametrize(("name", "value"), [("guess", 0.0), ("target", 1.5), ("tolerance", 0.0)])
def test_goodput_refuses_what_cannot_be_searched(name: str, value: float) -> None:
    with pytest.raises(SimulationError, match=name):
        goodput(at, LAYOUT, {"gpu": profile()}, AMPD, ONE_CLASS, **{"guess": 1.0, "seeds": (1,), name: value})  # type: ignore[arg-type]


def test_wefts_rule_serves_more_sessions_than_the_published_one() -> None:
    """The study's finding, on the DuReader workload: about twice the goodput, with half as a margin."""
    layout = layout_of("disaggregated", prefill={2: 1}, decode={2: 1})
    weft, ampd = (
        goodput(at, layout, {"gpu": profile()}, policy, ONE_CLASS, guess=4.0, seeds=(1, 2), tolerance=0.05).rate.value
        for policy in (PolicyChoice(), AMPD)
    )
    assert weft > 1.2 * ampd


def test_a_summary_speaks_of_first_and_later_rounds() -> None:
    outcomes = [
        simulate(at(1.0, seed), LAYOUT, {"gpu": profile()}, PolicyChoice(), TWO_CLASSES, seed=seed)
        for seed in (1, 2, 3)
    ]
    summary = summarise(outcomes)
    assert summary.seeds == 3
    assert summary.ttft_first.p50.value != summary.ttft_later.p50.value
    assert summary.ttft.p50.value <= summary.ttft.p95.value
    assert set(summary.attainment) == set(READINGS)
    assert len(summary.busy) == len(LAYOUT.workers)
    assert summary.attained.low <= summary.attained.value <= summary.attained.high
