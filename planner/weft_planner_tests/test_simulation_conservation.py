"""What holds in every run: each round is served once or accounted for, tokens and memory balance, runs repeat."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.parallelism import batches_of
from weft_planner.simulation import Change, Layout, Options, PolicyChoice, Worker, inputs, simulate
from weft_planner.simulation.inputs import initial_state
from weft_planner.simulation.records import BELOW, KEPT, NEVER_ARRIVED, SERVED, SLOT, TOO_LONG, UNPLACED
from weft_planner.simulation.run import run_events
from weft_planner.workload.sessions import Sample
from weft_planner_tests.simulated import ONE_CLASS, profile, sample_of, with_degrees
from weft_planner_tests.test_simulation_reference import DEGREES, layouts, options, policies, samples


@st.composite
def changes(draw: st.DrawFn, workers: int) -> tuple[Change, ...]:
    one = st.builds(
        Change,
        at=st.floats(0, 8),
        worker=st.integers(0, workers - 1),
        to=st.sampled_from(("off", "prefill", "decode")),
        sessions=st.sampled_from(("send", "recompute")),
        delay_s=st.sampled_from((0.0, 0.5)),
    )
    return tuple(draw(st.lists(one, max_size=4)))


def with_(base: Options, **more: object) -> Options:
    fields = {name: getattr(base, name) for name in base.__dataclass_fields__}
    return Options(**{**fields, **more})


@given(
    st.data(),
    st.booleans(),
    policies,
    options,
    st.sampled_from(("none", "fifo", "fair")),
    st.sampled_from((1500, 5000, 10**5)),
)
def test_every_round_is_served_once_or_accounted_for(
    data: st.DataObject, change: bool, policy: PolicyChoice, base: Options, links: str, kv: int
) -> None:
    sample: Sample = data.draw(samples(1))
    layout: Layout = data.draw(layouts((1, 2)) if change else layouts())  # workers of several batches keep their roles
    roles = data.draw(changes(len(layout.workers))) if change else ()
    ended = "free" if roles else base.ended  # engines have to become empty before they change
    option = with_(base, links=links, changes=roles, ended=ended, timeline_s=0.5)
    costs = {"gpu": with_degrees(profile(kv=kv), *DEGREES)}
    outcome = simulate(sample, layout, costs, policy, ONE_CLASS, options=option, seed=1)
    state = outcome.state
    first = np.zeros(sample.rows, bool)
    first[sample.first_row] = True
    assert (state[first] != NEVER_ARRIVED).all()
    for row in np.flatnonzero(~first):
        # A round arrives if, and only if, the one before was served; it begins after the gap.
        assert (state[row] != NEVER_ARRIVED) == (state[row - 1] == SERVED)
        if state[row] != NEVER_ARRIVED:
            assert outcome.arrival[row] >= outcome.finished[row - 1] + sample.gap[row - 1] - 1e-9
    served = state == SERVED
    assert (outcome.gaps[served] == sample.tokens[served] - 1).all()
    assert np.isfinite(outcome.ttft[served]).all()
    assert (outcome.ttft[served] >= 0).all()
    assert np.isinf(outcome.ttft[~served]).all()
    assert (outcome.itl_mean <= outcome.itl_max + 1e-9).all()
    assert (outcome.kv_peak <= outcome.kv_capacity + 1e-6).all()
    assert ((outcome.busy >= 0) & (outcome.busy <= 1 + 1e-9)).all()
    if kv == 10**5:
        assert not (state == TOO_LONG).any()
        if not option.changes:
            assert served.all()
    assert outcome.timeline is not None
    assert (outcome.timeline.kv >= -1e-6).all()


@given(st.data(), layouts(), policies, options, st.sampled_from(("none", "fifo", "fair")))
def test_when_all_is_done_nothing_is_left(
    data: st.DataObject, layout: Layout, policy: PolicyChoice, base: Options, links: str
) -> None:
    sample: Sample = data.draw(samples(1))
    option = with_(base, links=links, ended="free")
    batches = max(batches_of(worker.degree) for worker in layout.workers)  # which share a worker's memory
    costs = {"gpu": with_degrees(profile(kv=6000 * batches), *DEGREES)}
    end = initial_state(sample, layout.of_batches(), costs, policy, ONE_CLASS, options=option, seed=3)
    run_events(end, policy, option)
    workers = end.workers
    assert (end.rows["state"] == SERVED).all()
    for name in (
        "kv_used",
        "evictable_kv",
        "queue_s",
        "queue_tokens",
        "queue_work",
        "running",
        "batch",
        "context",
        "sessions",
        "mode",
    ):
        assert (workers[name] == 0).all(), name
    kinds = end.lists["kind"]
    left = (kinds != KEPT) & ((kinds < BELOW) | (kinds >= SLOT))
    assert (end.lists["length"][left] == 0).all()
    assert (end.lists["first"][left] == -1).all()
    for number, worker in enumerate(workers):  # prompts stay in prefix caches
        kept = end.rows["kept"][end.rows["route"] == number]
        assert worker["kept"] == kept.sum() <= worker["kv_capacity"]
        assert end.lists["length"][1 + KEPT * len(workers) + number] == (kept > 0).sum()
    for number, of_worker in enumerate(end.tiers):  # what ended sessions had stays in tiers
        for place, tier in enumerate(of_worker):
            there = (end.sessions["below_at"] == number) & (end.sessions["tier"] == place) & (end.sessions["below"] > 0)
            assert tier["used"] == end.sessions["below"][there].sum() <= tier["capacity"]
            assert end.lists["length"][1 + (BELOW + place) * len(workers) + number] == there.sum()
    assert (end.per_class["active"] == 0).all()
    assert end.totals["net"][0] == end.totals["heap"][0] == 0
    assert not (end.rows["state"] == UNPLACED).any()


REPEAT = """
from weft_planner.simulation import Options, PolicyChoice, layout_of, simulate
from weft_planner_tests.simulated import ONE_CLASS, profile, sample_of, with_degrees
from weft_planner_tests.test_simulation_conservation import many
for policy in (PolicyChoice(), PolicyChoice(route="ampd", order="ampd-window")):
    option = Options(prefill_noise_sigma=0.3, retransmit_probability=0.1, links="fair")
    layout = layout_of("disaggregated", prefill={1: 2}, decode={2: 1})
    print(simulate(many(), layout, {"gpu": profile()}, policy, ONE_CLASS, options=option, seed=5).digest())
"""


def many() -> Sample:
    rng = np.random.default_rng(9)
    sessions = [
        (
            float(at),
            [(float(rng.integers(1, 900)), float(rng.integers(1, 40)), float(rng.uniform(0, 1))) for _ in range(3)],
        )
        for at in np.sort(rng.uniform(0, 60, 200))
    ]
    return sample_of(sessions)


def test_a_seed_gives_the_same_bytes_in_another_process() -> None:
    roots = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "core")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
    printed = [
        subprocess.run(
            [sys.executable, "-c", REPEAT], capture_output=True, text=True, check=True, env=environment
        ).stdout
        for _ in range(2)
    ]
    assert printed[0] == printed[1]
    assert len(set(printed[0].split())) == 2


@given(st.integers(0, 10**6), st.sampled_from((2000, 2500, 3000)), st.booleans())
def test_sequences_that_preempt_each_other_come_to_an_end(seed: int, kv: int, chunked: bool) -> None:
    rng = np.random.default_rng(seed)
    sessions = [(0.0, [(float(rng.integers(1, 1900)), float(rng.integers(1, 30)), 0.0)]) for _ in range(9)]
    sample = sample_of(sessions)
    layout = Layout((), (Worker(1),), "symmetric")
    option = Options(chunked=chunked, admission="reserve", warm_up=0.0)
    outcome = simulate(sample, layout, {"gpu": profile(kv=kv)}, PolicyChoice(), ONE_CLASS, options=option)
    assert (outcome.state == SERVED).all()


def test_a_run_that_gets_nowhere_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = sample_of([(float(i), ((200, 20, 0.1), (50, 20, 0.0))) for i in range(8)])
    layout = Layout((Worker(1),), (Worker(1),), "disaggregated")
    whole = simulate(sample, layout, {"gpu": profile(kv=10**5)}, PolicyChoice(), ONE_CLASS)
    assert not whole.cut_short
    assert np.isfinite(whole.ttft).all()
    monkeypatch.setattr(inputs, "event_limit", lambda _: whole.events // 2)
    cut = simulate(sample, layout, {"gpu": profile(kv=10**5)}, PolicyChoice(), ONE_CLASS)
    assert cut.cut_short
    assert cut.events == whole.events // 2
    assert np.isinf(cut.ttft).any()
