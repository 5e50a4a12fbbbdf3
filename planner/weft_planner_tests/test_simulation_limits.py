"""Limits on the sequences and tokens of an engine's steps, by closed forms of few sessions."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from weft_core.parallelism import degree_of
from weft_planner.phases.decode import simulate_decode
from weft_planner.phases.latency import PhaseInputs, decode_load, phase_inputs, prefill_seconds
from weft_planner.simulation import Layout, Options, Outcome, PolicyChoice, SimulationError, SloClass, Worker, simulate
from weft_planner.simulation.options import StepLimits
from weft_planner.workload.sessions import Sample
from weft_planner_tests.simulated import profile, sample_of
from weft_planner_tests.test_simulation_conservation import many

COSTS = profile(degrees=(1,))
DISAGGREGATED = Layout((Worker(1),), (Worker(1),))
REMOTE = PolicyChoice(route="always-remote", mode="", order="fcfs")
LOOSE = [SloClass(1e6, 1e6)]


def run(sample: Sample, layout: Layout = DISAGGREGATED, policy: PolicyChoice = REMOTE, **options: Any) -> Outcome:
    return simulate(sample, layout, {"gpu": COSTS}, policy, LOOSE, options=Options(links="none", **options))


def t_pre(history: float, increment: float) -> float:
    return COSTS.t_pre(history=history, increment=increment, degree=1)


def together(*parts: tuple[float, float]) -> float:
    """Return the seconds of a step that prefills some parts of (history, tokens)."""
    tokens, pairs, context = (sum(part) for part in zip(*((n, n * (h + n / 2), h + n) for h, n in parts), strict=True))
    pieces = COSTS.degrees[1].prefill
    regimes = [p.alpha + p.per_token * tokens + p.per_pair * pairs + p.per_context_token * context for p in pieces]
    return float(max(regimes))


def one_round(*rounds: tuple[float, float, float]) -> Sample:
    """Return sessions of one round each: (arrival, prompt, answer)."""
    return sample_of([(at, [(prompt, answer, 0.0)]) for at, prompt, answer in rounds])


@pytest.mark.parametrize("handover", ["push", "pull"])
def test_limits_that_never_bind_change_nothing(handover: str) -> None:
    wide = StepLimits(10**6, 10**6)
    free, limited = run(many(), handover=handover), run(many(), handover=handover, prefill=wide, decode=wide)
    assert free.events == limited.events
    for name in ("ttft", "finished", "itl_mean", "itl_max", "busy", "kv_peak"):
        np.testing.assert_array_equal(getattr(free, name), getattr(limited, name))


@pytest.mark.parametrize(("handover", "waits"), [("push", "a token"), ("pull", "the first token")])
def test_a_sequence_without_a_place_waits_with_its_kv(handover: str, waits: str) -> None:
    sample = one_round((0.0, 100, 30), (0.0, 100, 30))
    one = run(sample, handover=handover, decode=StepLimits(max_sequences=1))
    first, second = one.finished
    free = run(sample, handover=handover)
    assert free.finished[1] < first + 0.1
    alone = run(one_round((0.0, 100, 30)), handover=handover)
    assert first == pytest.approx(alone.finished[0])
    steps = 30 if handover == "pull" else 29
    decoding = sum(COSTS.t_dec(batch=1, context=100 + k, degree=1) for k in range(31 - steps, 31))
    # with pull no KV is fetched while the batch is full: the transfer begins when the first one ends
    transfer = COSTS.t_kv(100, source=1, destination=1) if handover == "pull" else 0.0
    assert second == pytest.approx(first + transfer + decoding, abs=2e-4)
    late = one.ttft[1] if waits == "the first token" else one.itl_max[1] + one.ttft[1]
    assert late > first


def test_a_long_prompt_takes_several_steps_and_short_ones_share_one() -> None:
    budget = StepLimits(max_tokens=400)
    long = run(one_round((0.0, 1000, 1)), prefill=budget)
    back = COSTS.t_kv(1000, source=1, destination=1)
    assert long.ttft[0] == pytest.approx(t_pre(0, 400) + t_pre(400, 400) + t_pre(800, 200) + back)
    short = one_round((0.0, 100, 1), (0.0, 150, 1), (0.0, 250, 1))
    in_turn = run(short, prefill=budget)
    assert in_turn.ttft[0] == pytest.approx(t_pre(0, 100) + COSTS.t_kv(100, source=1, destination=1))
    shared = run(short, prefill=budget, prefill_concurrency=3)
    # The first came while the engine was idle. The others share the next step, which has room for all of the second.
    first, second = t_pre(0, 100), together((0, 150), (0, 250))
    times = shared.ttft - [COSTS.t_kv(n, source=1, destination=1) for n in (100, 150, 250)]
    assert times == pytest.approx([first, first + second, first + second])
    assert together((0, 150), (0, 250)) < t_pre(0, 150) + t_pre(0, 250)


def test_no_prefill_pauses_decoding_in_an_engine_with_a_token_budget() -> None:
    """A whole prefill beside 3 decoding sequences takes what these leave of each step."""
    sample = one_round((0.0, 50, 60), (0.0, 50, 60), (0.0, 50, 60), (0.5, 1000, 2))
    layout, policy = Layout((), (Worker(1),), "colocated"), PolicyChoice(mode="ia", order="fcfs")
    whole = run(sample, layout, policy, chunked=False)
    chunks = run(sample, layout, policy, chunked=False, decode=StepLimits(max_tokens=203))
    pause = t_pre(0, 1000)
    assert whole.itl_max[0] > pause
    context = 3 * (50 + 60)
    longest = COSTS.t_step(batch=3, context=context, chunk=200, chunk_history=1000, degree=1)
    assert chunks.itl_max[0] < longest < pause
    assert sum(chunks.itl_mean[:3] > whole.itl_mean[:3] * 0.9) == 3
    assert chunks.ttft[3] > whole.ttft[3], "five steps cost more than one"


@pytest.mark.parametrize("turn", [0.0, 0.005])
def test_a_prefill_for_another_worker_is_in_no_slices(turn: float) -> None:
    """The second session prefills where the first one decodes; slices, as of local prefills, would keep the SLO."""
    sample = one_round((0.0, 50, 60), (0.5, 1000, 2))

    def longest_gap(layout: Layout, route: str, **limits: Any) -> float:
        policy = PolicyChoice(route=route, mode="", order="fcfs")
        options = Options(links="none", chunked=True, slice_turn_s=turn, **limits)
        return float(simulate(sample, layout, {"gpu": COSTS}, policy, [SloClass(9, 0.05)], options=options).itl_max[0])

    peers = Layout((), (Worker(1), Worker(1)), "symmetric")
    assert longest_gap(Layout((), (Worker(1),), "colocated"), "always-local") < 0.05
    assert longest_gap(peers, "always-remote") > t_pre(0, 1000) > 0.3
    step = COSTS.t_step(batch=1, context=110, chunk=299, chunk_history=701, degree=1)
    budget = longest_gap(peers, "always-remote", decode=StepLimits(max_tokens=300))
    assert 0.05 < budget <= step, "the engine's own chunks"


def test_stages_share_an_engines_sequences_and_every_sequence_takes_a_token() -> None:
    limits = StepLimits(max_sequences=48, max_tokens=64)
    assert [limits.sequences_of_batch(d) for d in (8, degree_of(tp=4, pp=4), degree_of(dp=16, ep=True))] == [48, 12, 48]
    assert StepLimits(max_tokens=64).sequences_of_batch(1) == 64
    assert StepLimits().sequences_of_batch(1) is None
    with pytest.raises(SimulationError, match="max_sequences: 65 is above max_tokens 64"):
        StepLimits(65, 64)
    with pytest.raises(SimulationError, match="max_tokens: 0"):
        StepLimits(max_tokens=0)
    with pytest.raises(SimulationError, match="prefill_concurrency: 0"):
        Options(prefill_concurrency=0)


def _inputs(**limits: StepLimits) -> PhaseInputs:
    return phase_inputs(many(), {"gpu": (COSTS, [1])}, percentile=95, bidirectional=True, **limits)["gpu"]


def test_the_phases_know_the_limits() -> None:
    history, increment = np.array([0.0, 800.0, 10.0]), np.array([1000.0, 400.0, 0.0])
    steps = prefill_seconds(COSTS, history=history, increment=increment, degree=1, most=400)
    assert steps[:2] == pytest.approx([t_pre(0, 400) + t_pre(400, 400) + t_pre(800, 200), t_pre(800, 400)])
    free, one = _inputs(), _inputs(decode=StepLimits(max_sequences=1))
    sample = free.sample
    steps = sample.tokens - 1
    context = float(((sample.history + sample.increment + sample.tokens / 2) * steps).sum() / steps.sum())
    offered = sample.rate * sample.per_session(steps) * COSTS.t_dec(batch=1, context=context, degree=1)
    assert decode_load(one, degree=1, workers=1).utilisation == pytest.approx(offered)
    assert decode_load(free, degree=1, workers=1).utilisation < offered / 3
    chunks = _inputs(prefill=StepLimits(max_tokens=100))
    assert (chunks.service(1) >= free.service(1)).all()
    assert (chunks.prefill_s == chunks.service(1)).all()


def test_a_round_of_the_decode_phase_waits_for_a_place() -> None:
    sample = replace(many(), window=60.0)
    prefill_s = np.full(sample.rows, 0.1)

    def gaps(sequences: int | None) -> float:
        found = simulate_decode(
            sample, COSTS.degrees[1], prefill_s=prefill_s, pace=0.02, workers=1, sequences=sequences, warm_up=0.0
        )
        return float(found.mean())

    assert gaps(None) == gaps(10**6) < gaps(6) < gaps(5)
