"""A worker that runs several batches at a time serves as so many workers with a share of its memory each."""

from dataclasses import replace

import numpy as np
import pytest

from weft_core.cost import CostProfile
from weft_core.parallelism import Degree, batches_of, degree_of, gpus_of
from weft_planner.phases.latency import decode_latency, phase_inputs, prefill_latency
from weft_planner.simulation import Layout, PolicyChoice, SimulationError, Worker, simulate
from weft_planner.simulation.layout import layout_of
from weft_planner.simulation.options import Change, Options
from weft_planner.workload.sessions import Sample, Size, draw
from weft_planner.workload.traffic import Gap, Rounds, Tokens, Workload
from weft_planner_tests.simulated import ONE_CLASS, profile

TWO: Degree = degree_of(tp=4, pp=2)
"""Two stages of the GPUs of a worker of degree 4, so with a batch in each."""


def costs() -> CostProfile:
    """Return a profile in which a batch of TWO takes as long as one of degree 4 and has twice the memory in all."""
    plain = profile(degrees=(4,))
    one = plain.degrees[4]
    cost = plain.transfers[4, 4, "inter-node"]
    ends: tuple[Degree, ...] = (4, TWO)
    return replace(
        plain,
        degrees={4: one, TWO: replace(one, kv_capacity_tokens=2 * one.kv_capacity_tokens)},
        transfers={(a, b, link): cost for a in ends for b in ends for link in ("intra-node", "inter-node")},
    )


def sample() -> Sample:
    workload = Workload(
        arrival_rate=2.0,
        rounds=Rounds(mean=2.5, cv=0.4),
        first_prompt=Tokens(mean=700, cv=0.5),
        increment=Tokens(mean=250, cv=0.5),
        decode=Tokens(mean=30, cv=0.4),
        gap=Gap(mean=0.5, cv=0.5),
        source="made up",
    )
    return draw(workload, max_model_len=16384, round_seconds=2.0, seed=3, size=Size(rounds=400))


def test_it_counts_as_so_many_workers_in_a_simulation() -> None:
    stages = layout_of("disaggregated", prefill={TWO: 1}, decode={TWO: 2})
    workers = layout_of("disaggregated", prefill={4: 2}, decode={4: 4})
    drawn, of = sample(), {"gpu": costs()}
    found, wanted = (simulate(drawn, one, of, PolicyChoice(), ONE_CLASS, seed=1) for one in (stages, workers))
    assert np.array_equal(found.ttft, wanted.ttft)
    assert np.array_equal(found.itl_mean, wanted.itl_mean)
    assert (str(stages), stages.gpus) == ("P[tp4pp2]x1 D[tp4pp2]x2", 24)
    assert (str(found.layout), found.layout.gpus, len(found.layout.workers)) == (str(stages), 24, 6)


def test_it_counts_as_so_many_workers_of_a_phase() -> None:
    inputs = phase_inputs(sample(), {"gpu": (costs(), [4, TWO])}, percentile=95, bidirectional=True)["gpu"]
    for latency in (prefill_latency, decode_latency):
        assert latency(inputs, degree=TWO, counts=[1, 2]) == {
            count // 2: found for count, found in latency(inputs, degree=4, counts=[2, 4]).items()
        }


def test_each_batch_of_a_phase_has_its_share_of_the_memory() -> None:
    """With little memory two batches hold no more sequences than two workers of half of it."""
    plain = costs()
    tight = {
        degree: replace(one, kv_capacity_tokens=3000 * batches_of(degree)) for degree, one in plain.degrees.items()
    }
    profile = replace(plain, degrees=tight)
    inputs = phase_inputs(sample(), {"gpu": (profile, [4, TWO])}, percentile=95, bidirectional=True)["gpu"]
    assert decode_latency(inputs, degree=TWO, counts=[2])[2] == decode_latency(inputs, degree=4, counts=[4])[4]


def test_its_role_does_not_change_during_a_run() -> None:
    layout = Layout(prefill=(Worker(TWO),), decode=(Worker(TWO),))
    options = Options(changes=(Change(at=1.0, worker=0, to="decode"),))
    with pytest.raises(SimulationError, match="workers of several batches keep their roles"):
        simulate(sample(), layout, {"gpu": costs()}, PolicyChoice(), ONE_CLASS, options=options)


def test_the_gpus_of_a_degree_are_its_parts_product() -> None:
    assert gpus_of(TWO) == 8
