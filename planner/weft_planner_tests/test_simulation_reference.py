"""The compiled simulator against the slow and obvious one, event for event."""

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_core.cost import DecodePiece
from weft_core.kv_tiers import KV_WRITES, KVTier
from weft_core.layouts import LayoutKind
from weft_core.parallelism import Degree, degree_of
from weft_core.policies.registry import BINDINGS, ORDERS, POLICIES
from weft_core.policies.retention import RETENTIONS
from weft_planner.simulation import Layout, Options, PolicyChoice, Worker, simulate
from weft_planner.simulation.options import ENDED, EVICTS, StepLimits
from weft_planner.workload.sessions import Sample
from weft_planner_tests.reference import Reference
from weft_planner_tests.simulated import DECODE, ONE_CLASS, TWO_CLASSES, profile, sample_of, with_degrees

TIERS = (KVTier("cpu", 3e6, 5e6, 0.001), KVTier("disk", 6e6, 1e6))
"""Room for 3,000 and 6,000 tokens of the profile's 1,000 bytes."""
CHANGING = (DECODE[0], DecodePiece(0.018, 0.0001, 3e-7, per_chunk_token=0.0004, from_batch=3))
"""An engine that takes other kernels for three sequences and more."""


DEGREES: tuple[Degree, ...] = (1, 2, degree_of(dp=2, ep=True), degree_of(pp=3), degree_of(pp=2, dp=2, ep=True))


@st.composite
def samples(draw: st.DrawFn, classes: int) -> Sample:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(1, 14))
    spread = draw(st.sampled_from((0.05, 1.0, 6.0)))
    arrivals = np.sort(rng.uniform(0, spread, count))
    sessions = [
        (
            float(at),
            [
                (float(rng.integers(1, 1500)), float(rng.integers(1, 30)), float(rng.uniform(0, 0.6)))
                for _ in range(rng.integers(1, 5))
            ],
        )
        for at in arrivals
    ]
    kinds = rng.integers(0, classes, count).tolist()
    prefix = draw(st.sampled_from((0.0, 400.0)))
    sample = sample_of(sessions, kinds=kinds, prefixes=[min(prefix, r[0][0]) for _, r in sessions])
    return sample.since(draw(st.sampled_from((0.0, 0.4, 2.0))), round_seconds=0.2)


@st.composite
def layouts(draw: st.DrawFn, known: Sequence[Degree] = DEGREES) -> Layout:
    kind: LayoutKind = draw(st.sampled_from(("disaggregated", "colocated", "symmetric", "hybrid")))
    nodes = st.integers(-1, 1)
    few = st.integers(1, 3)
    degrees = st.sampled_from(known)
    prefill = [Worker(draw(degrees), node=draw(nodes)) for _ in range(draw(few))]
    decode = [Worker(draw(degrees), node=draw(nodes)) for _ in range(draw(few))]
    if kind == "hybrid":
        decode += [Worker(draw(degrees), node=draw(nodes), both=True) for _ in range(draw(few))]
    return Layout(tuple(prefill) if kind in ("disaggregated", "hybrid") else (), tuple(decode), kind)


policies = st.builds(
    PolicyChoice,
    route=st.sampled_from((*POLICIES, "weft", "weft", "ampd")),
    mode=st.sampled_from(("imd", "whole-or-chunked", "ia", "remote-jsq")),
    binding=st.sampled_from(tuple(BINDINGS)),
    order=st.sampled_from(tuple(ORDERS)),
    window=st.integers(1, 4),
    cap=st.sampled_from((None, 1, 3)),
)
options = st.builds(
    Options,
    chunked=st.sampled_from((None, True, False)),
    chunk_limit=st.sampled_from((64, 4096)),
    chunk_fraction=st.sampled_from((0.5, 0.9)),
    chunk_floor=st.sampled_from((1, 32)),
    slice_turn_s=st.sampled_from((0.0, 0.003, 0.1)),
    prefill=st.sampled_from((StepLimits(), StepLimits(1, 400), StepLimits(4, 700), StepLimits(max_tokens=10**6))),
    decode=st.sampled_from((StepLimits(), StepLimits(2), StepLimits(1, 100), StepLimits(3, 300))),
    prefill_concurrency=st.integers(1, 3),
    shared_work=st.sampled_from((0.0, 0.4)),
    links=st.sampled_from(("none", "fifo")),
    history=st.sampled_from(("read", "recompute")),
    handover=st.sampled_from(("push", "pull")),
    prefix_cache=st.booleans(),
    min_cache_hit_ratio=st.sampled_from((0.0, 0.3, 1.0)),
    admission=st.sampled_from(("oracle", "reserve")),
    retention=st.sampled_from(RETENTIONS),
    evicts=st.sampled_from(EVICTS),
    ended=st.sampled_from(ENDED),
    tiers=st.sampled_from(((), (), TIERS, TIERS[:1], TIERS[1:])),
    writes=st.sampled_from(KV_WRITES),
    window_s=st.sampled_from((0.3, 10.0)),
    prefill_noise_sigma=st.sampled_from((0.0, 0.3)),
    chunk_noise_sigma=st.sampled_from((0.0, 0.3)),
    retransmit_probability=st.sampled_from((0.0, 0.3)),
    warm_up=st.just(0.0),
)


@settings(max_examples=120)
@given(
    st.data(), layouts(), policies, options, st.sampled_from((3000, 7000, 100_000)), st.booleans(), st.integers(0, 99)
)
def test_the_compiled_simulator_does_what_the_obvious_one_does(
    data: st.DataObject,
    layout: Layout,
    policy: PolicyChoice,
    option: Options,
    kv: int,
    statistics: bool,
    seed: int,
) -> None:
    slo = data.draw(st.sampled_from((ONE_CLASS, TWO_CLASSES)))
    sample = data.draw(samples(len(slo)))
    if policy.route == "weft" and statistics:
        policy = PolicyChoice(
            route="weft", mode=policy.mode, binding=policy.binding, order=policy.order, params={"itl_statistic": 1.0}
        )
    costs = with_degrees(profile(kv=kv, decode=data.draw(st.sampled_from((DECODE, CHANGING)))), *DEGREES)
    outcome = simulate(sample, layout, {"gpu": costs}, policy, slo, options=option, seed=seed)
    reference = Reference(sample, layout, costs, policy, slo, option, seed)
    reference.run()
    rows = reference.rows
    np.testing.assert_array_equal(outcome.route, [r.route for r in rows])
    np.testing.assert_array_equal(outcome.reason, [r.reason for r in rows])
    np.testing.assert_allclose(outcome.arrival, [r.arrival for r in rows], rtol=1e-9, atol=1e-9)
    served = outcome.state == 1
    np.testing.assert_array_equal(served, [r.state == 1 for r in rows])
    np.testing.assert_allclose(outcome.ttft[served], [r.ttft for r in rows if r.state == 1], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        outcome.finished[served], [r.finished for r in rows if r.state == 1], rtol=1e-9, atol=1e-9
    )
    for i, row in enumerate(rows):
        if row.state != 1:
            continue
        gaps = row.token_gaps
        limit = slo[row.session.kind].itl_s
        assert outcome.gaps[i] == len(gaps) == row.tokens - 1
        if gaps:
            assert math.isclose(outcome.itl_max[i], max(gaps), rel_tol=1e-9, abs_tol=1e-9)
            assert round(outcome.itl_over[i] * len(gaps)) == sum(g > limit for g in gaps)
            assert math.isclose(outcome.itl_mean[i], sum(gaps) / len(gaps), rel_tol=1e-9, abs_tol=1e-9)
    assert outcome.events == reference.taken
    assert outcome.preemptions == reference.preemptions
    assert outcome.evictions == reference.evictions
    assert outcome.read_tokens == reference.read_tokens
    assert outcome.loaded_tokens == reference.loaded
    assert outcome.back_tokens == reference.back_tokens
