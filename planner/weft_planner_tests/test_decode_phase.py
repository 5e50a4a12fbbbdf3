"""The decode pool against a naive engine that takes every single step."""

import heapq
from dataclasses import replace

import numpy as np
import pytest

from weft_core.cost import DecodePiece, DegreeCosts, PrefillPiece
from weft_planner.phases.decode import simulate_decode
from weft_planner.workload.distributions import Floats
from weft_planner.workload.sessions import Sample, draw
from weft_planner_tests.requests import workload
from weft_planner_tests.simulated import lifetimes


def costs(*, alpha: float = 0.02, per_sequence: float = 0.001, per_token: float = 0.0, kv: int = 10**9) -> DegreeCosts:
    return DegreeCosts(
        prefill=(PrefillPiece(0.0),),
        decode=(DecodePiece(alpha, per_sequence, per_token),),
        weight_bytes_per_gpu=1,
        kv_capacity_tokens=kv,
    )


def sessions(seed: int = 0, **means: float) -> Sample:
    return draw(workload(**means), max_model_len=10**6, round_seconds=3.0, seed=seed)


def run(sample: Sample, degree: DegreeCosts, *, workers: int = 1, prefill: float = 0.5) -> Floats:
    return simulate_decode(sample, degree, prefill_s=np.full(sample.rows, prefill), pace=0.03, workers=workers)


def step_by_step(sample: Sample, piece: DecodePiece, *, prefill: float) -> list[float]:
    """Return the mean gaps of a single worker without memory limit that executes each step on its own."""
    last = np.append(sample.session[1:] != sample.session[:-1], True)
    ready = [(float(sample.arrival[s]) + prefill, int(sample.first_row[s])) for s in range(sample.sessions)]
    heapq.heapify(ready)
    running: list[list[float]] = []  # [row, tokens left, context, ready]
    now, gaps = 0.0, []
    while ready or running:
        if not running:
            now = max(now, ready[0][0])
        while ready and ready[0][0] <= now:
            at, row = heapq.heappop(ready)
            context = sample.history[row] + sample.increment[row] + 1
            running.append([row, sample.tokens[row] - 1, context, at])
        if not running:
            continue
        now += piece.seconds(len(running), sum(sequence[2] for sequence in running))
        for sequence in running:
            sequence[1] -= 1
            sequence[2] += 1
        for done in [s for s in running if s[1] <= 0]:
            running.remove(done)
            row = int(done[0])
            if done[3] <= sample.window:
                gaps.append((now - done[3]) / (sample.tokens[row] - 1))
            if not last[row]:
                heapq.heappush(ready, (now + sample.gap[row] + prefill, row + 1))
    return gaps


def beginning_empty(sample: Sample, sessions_kept: int) -> Sample:
    """Return the first sessions that arrive after time 0, so that both engines begin with nothing."""
    chosen = np.flatnonzero(sample.arrival > 0)[:sessions_kept]
    rows = np.isin(sample.session, chosen)
    session = np.searchsorted(chosen, sample.session[rows])
    return Sample(
        rate=sample.rate,
        window=float(sample.arrival[chosen[-1]]) + 300,
        arrival=sample.arrival[chosen],
        first_row=np.searchsorted(session, np.arange(len(chosen))),
        session=session,
        history=sample.history[rows],
        increment=sample.increment[rows],
        tokens=sample.tokens[rows] + 1,
        gap=sample.gap[rows],
        reserve=sample.reserve[chosen],
        dropped=0.0,
        past=0.0,
        short_past=False,
        session_class=sample.session_class[chosen],
        prefix=sample.prefix[chosen],
    )


@pytest.mark.parametrize("rate", [0.2, 1.0, 4.0])
def test_it_agrees_with_taking_every_single_step(rate: float) -> None:
    sample = beginning_empty(sessions(arrival_rate=rate, decode=40.0), 60)
    degree = costs(alpha=0.01, per_sequence=0.0005, per_token=1e-6)
    fast = simulate_decode(sample, degree, prefill_s=np.full(sample.rows, 0.5), pace=0.03, workers=1, warm_up=-1.0)
    naive = step_by_step(sample, degree.decode[0], prefill=0.5)
    assert len(fast) == len(naive) == sample.rows
    assert np.sort(fast) == pytest.approx(np.sort(naive), rel=0.03)
    assert np.mean(fast) == pytest.approx(np.mean(naive), rel=0.005)


def test_regimes_of_large_batches_count_from_their_batch_on() -> None:
    sample = beginning_empty(sessions(arrival_rate=4.0, decode=40.0), 60)
    low, high = DecodePiece(0.01, 0.0005, 1e-6), DecodePiece(0.02, 0.0005, 2e-6)

    def gaps(*pieces: DecodePiece) -> Floats:
        degree = replace(costs(), decode=pieces)
        return simulate_decode(sample, degree, prefill_s=np.full(sample.rows, 0.5), pace=0.03, workers=1, warm_up=-1.0)

    assert gaps(low, replace(high, from_batch=1)) == pytest.approx(gaps(high))
    assert gaps(low, replace(high, from_batch=10**6)) == pytest.approx(gaps(low))
    between = gaps(low, replace(high, from_batch=8)).mean()
    assert gaps(low).mean() < between < gaps(high).mean()


def test_a_lone_sequence_takes_the_time_of_a_batch_of_one() -> None:
    gaps = run(sessions(arrival_rate=0.0005), costs())
    assert np.median(gaps) == pytest.approx(0.021)


def test_constant_steps_give_constant_gaps() -> None:
    """With steps of constant time every gap is that step, however many sequences run."""
    gaps = run(sessions(arrival_rate=5.0), costs(alpha=0.02, per_sequence=0.0))
    assert gaps.mean() == pytest.approx(0.02, rel=0.02)  # a late comer waits for up to one step


def test_more_workers_share_the_load() -> None:
    sample = sessions(arrival_rate=5.0)
    gaps = [run(sample, costs(), workers=k).mean() for k in (1, 2, 4, 8)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] >= 0.021


def test_rounds_wait_for_kv_memory_and_the_wait_counts() -> None:
    sample = sessions(arrival_rate=1.0)
    roomy = run(sample, costs())
    running = sample.rate * sample.per_session((sample.history + sample.increment + sample.tokens) * 60 * 0.025)
    tight = run(sample, costs(kv=int(running * 1.3)))
    assert np.percentile(tight, 99) > 2 * np.percentile(roomy, 99)
    assert np.percentile(tight, 20) < 1.5 * np.percentile(roomy, 20)


def test_sessions_between_rounds_hold_nothing() -> None:
    """With long gaps many sessions are alive and few of them decode: what the idle ones hold may be evicted."""
    sample = sessions(arrival_rate=0.3, gap=120.0)
    alive = sample.rate * float((sample.reserve * lifetimes(sample, np.full(sample.rows, 122.0))).mean())
    tight = run(sample, costs(kv=int(alive / 8)))
    assert np.percentile(tight, 95) == pytest.approx(np.percentile(run(sample, costs()), 95), rel=0.02)


def test_answers_of_one_token_have_no_gap() -> None:
    sample = sessions(decode=1.0)
    one = np.ones(sample.rows)
    only_first = Sample(**{**{f: getattr(sample, f) for f in Sample.__slots__}, "tokens": one})
    assert len(run(only_first, costs())) == 0
