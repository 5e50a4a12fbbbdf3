"""A worker that runs several batches at a time: each has a share of its memory, and they share stages and steps."""

from dataclasses import replace
from typing import Any

import pytest

from weft_core.cost import CostProfile
from weft_core.layouts import LayoutKind
from weft_core.parallelism import Degree, batches_of, degree_of, gpus_of
from weft_planner.phases.latency import decode_latency, phase_inputs, prefill_latency
from weft_planner.simulation import Layout, Outcome, PolicyChoice, SimulationError, SloClass, Worker, simulate
from weft_planner.simulation.layout import layout_of
from weft_planner.simulation.options import Change, Options
from weft_planner.workload.sessions import Sample, Size, draw
from weft_planner.workload.traffic import Gap, Rounds, Tokens, Workload
from weft_planner_tests.simulated import ONE_CLASS, profile, sample_of, with_degrees

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


def test_a_simulation_has_a_worker_for_each_batch() -> None:
    stages = layout_of("disaggregated", prefill={TWO: 1}, decode={TWO: 2})
    found = simulate(sample(), stages, {"gpu": costs()}, PolicyChoice(), ONE_CLASS, seed=1)
    assert (str(stages), stages.gpus) == ("P[tp4pp2]x1 D[tp4pp2]x2", 24)
    assert (str(found.layout), found.layout.gpus, len(found.layout.workers)) == (str(stages), 24, 6)
    assert [worker.batch for worker in found.layout.workers] == [0, 1] * 3


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


RANKS: Degree = degree_of(dp=2, ep=True)
MADE_UP = with_degrees(profile(degrees=(1,)), RANKS)


def of_ranks(rounds: list[tuple[float, float, float]], *, kind: LayoutKind = "colocated", **more: Any) -> Outcome:
    """Simulate sessions of one round, (arrival, prompt, answer), on one worker of two ranks for each role."""
    sessions = sample_of([(at, [(prompt, answer, 0.0)]) for at, prompt, answer in rounds])
    layout = layout_of(kind, prefill={RANKS: 1} if kind == "disaggregated" else None, decode={RANKS: 1})
    policy = PolicyChoice(route="always-remote", mode="", order="fcfs", binding="round-robin")
    options = Options(links="none", handover="pull", warm_up=0.0, cool_down=0.0, **more)
    return simulate(sessions, layout, {"gpu": MADE_UP}, policy, [SloClass(1e6, 1e6)], options=options)


def test_a_step_of_ranks_takes_as_long_as_that_of_the_fullest() -> None:
    """A session with a long context on one rank, then one with a short context on the other."""

    def steps(context: int, count: int) -> float:
        return sum(MADE_UP.t_dec(batch=1, context=context + k, degree=1) for k in range(count))

    both, alone = of_ranks([(0.0, 4000, 60), (0.1, 50, 40)]), of_ranks([(0.1, 50, 40)])
    long, short = (MADE_UP.t_pre(history=0, increment=tokens, degree=1) for tokens in (4000, 50))
    assert both.ttft == pytest.approx([long, long - 0.1 + short], rel=1e-9)
    assert both.itl_max[0] == pytest.approx(short), "its first step lasts as long as the other rank's prefill"
    assert both.itl_mean[1] * 39 == pytest.approx(steps(4002, 39), rel=1e-9)
    assert alone.itl_mean[0] * 39 == pytest.approx(steps(51, 39), rel=1e-9)
    assert alone.itl_mean[0] < 0.97 * both.itl_mean[1]


def test_a_rank_begins_with_the_next_step_of_the_others() -> None:
    """A prompt that comes while the other rank computes has to wait for the end of that, and no longer."""
    first, second = (MADE_UP.t_pre(history=0, increment=tokens, degree=1) for tokens in (3000, 100))
    rest = [
        MADE_UP.t_kv(tokens, source=1, destination=1) + MADE_UP.t_dec(batch=1, context=tokens, degree=1)
        for tokens in (3000, 100)
    ]
    found = of_ranks([(0.0, 3000, 1), (first / 2, 100, 1)], kind="disaggregated")
    assert found.ttft == pytest.approx([first + rest[0], first / 2 + second + rest[1]], rel=1e-9)
    layout = layout_of("disaggregated", prefill={1: 2}, decode={1: 2})
    alone = simulate(found.sample, layout, {"gpu": MADE_UP}, found.policy, found.slo, options=found.options)
    assert alone.ttft == pytest.approx([first + rest[0], second + rest[1]], rel=1e-9), "two workers do not wait"


def test_experts_of_all_ranks_share_what_their_tokens_ask_for() -> None:
    """Of a lone prefill's work the experts' half is done by both ranks; of equal prefills nothing is saved."""
    long, short = (MADE_UP.t_pre(history=0, increment=tokens, degree=1) for tokens in (4000, 1000))
    alone = of_ranks([(0.0, 4000, 1)], shared_work=0.5)
    assert alone.ttft == pytest.approx([0.75 * long])
    for other, together in ((4000, long), (1000, 0.75 * long + 0.25 * short)):
        found = of_ranks([(0.0, 1000, 1), (0.01, 4000, 1), (0.01, other, 1)], shared_work=0.5)
        wait = 0.75 * short - 0.01  # for the end of the first, which is alone
        assert found.ttft[1:] == pytest.approx([wait + together] * 2)


def of_stages(rounds: list[tuple[float, float, float]], *, kind: LayoutKind, **more: Any) -> Outcome:
    """Simulate sessions of one round on one worker of four stages for each role."""
    sessions = sample_of([(at, [(prompt, answer, 0.0)]) for at, prompt, answer in rounds])
    layout = layout_of(kind, prefill={STAGES: 1} if kind == "disaggregated" else None, decode={STAGES: 1})
    policy = PolicyChoice(mode="remote-jsq", order="fcfs", binding="round-robin")
    options = Options(links="none", handover="pull", warm_up=0.0, cool_down=0.0, **more)
    return simulate(sessions, layout, {"gpu": FOUR}, policy, [SloClass(1e6, 1e6)], options=options)


STAGES: Degree = degree_of(pp=4)
FOUR = with_degrees(profile(degrees=(1,)), STAGES)


def test_a_prefill_takes_all_stages_and_the_next_one_follows_a_stage_behind() -> None:
    whole = FOUR.t_pre(history=0, increment=1000, degree=1)
    rest = FOUR.t_kv(1000, source=1, destination=1) + FOUR.t_dec(batch=1, context=1000, degree=1)
    alone = of_stages([(0.0, 1000, 1)], kind="disaggregated")
    assert alone.ttft == pytest.approx([whole + rest])
    many = of_stages([(0.0, 1000, 1)] * 12, kind="disaggregated")
    assert sorted(many.ttft) == pytest.approx([whole + rest + k * whole / 4 for k in range(12)])


def test_a_batch_behind_a_long_prefill_waits_for_it_in_every_stage() -> None:
    """A session decodes on one batch of a co-located worker; a long prompt on another batch is in the way once."""
    long = FOUR.t_pre(history=0, increment=4000, degree=1)
    found = of_stages([(0.0, 50, 200), (0.5, 4000, 1)], kind="colocated")
    alone = of_stages([(0.0, 50, 200)], kind="colocated")
    assert found.ttft[1] == pytest.approx(long, abs=FOUR.t_dec(batch=1, context=250, degree=1))
    assert found.itl_max[0] == pytest.approx(long, abs=2 * FOUR.t_dec(batch=1, context=250, degree=1))
    delay = (found.itl_mean[0] - alone.itl_mean[0]) * 199
    assert delay == pytest.approx(found.itl_max[0] - alone.itl_max[0], rel=0.02), "once"
