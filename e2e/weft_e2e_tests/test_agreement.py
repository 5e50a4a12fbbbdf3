"""What is simulated is what is sent, token for token, and both sides are judged by the same figures."""

import os
from dataclasses import replace

import numpy as np
import pytest

from weft_core.policies.inputs import LOCAL
from weft_e2e.agreement.comparison import compare
from weft_e2e.agreement.live import REMOTE, Measured, ReplayFailedError, outcome_of, solitary
from weft_e2e.agreement.scenario import LATE_S, default_scenario, shaken, slower
from weft_e2e.agreement.sessions import FIRST_FRAMING, LATER_FRAMING, sessions_of
from weft_e2e.agreement.turns import measured_turn, simulated_turn
from weft_e2e.agreement.waiting import core_wait_s
from weft_e2e.demo.engines import EnginePace
from weft_e2e.replay.records import ClientLoad, ReplayResult, RoundRecord
from weft_e2e.stack import engine_command, router_config
from weft_mock.tokenizer import chat_ids, filler
from weft_planner.simulation import Outcome
from weft_planner.workload.sessions import Sample
from weft_router.config import RoutingConfig
from weft_router.routing.class_policies import slicing_of

SCENARIO = default_scenario()


@pytest.fixture(scope="module")
def sample() -> Sample:
    return SCENARIO.sample(rate=0.8, rounds=100.0, seed=3)


@pytest.fixture(scope="module")
def predicted(sample: Sample) -> Outcome:
    return SCENARIO.predict("remote-jsq", sample)[0]


def replayed(predicted: Outcome, *, factor: float = 1.0) -> ReplayResult:
    """Return a replay in which every round took ``factor`` times what was predicted."""
    sample = predicted.sample
    records = []
    for row in range(sample.rows):
        number = int(sample.session[row])
        tokens = int(sample.tokens[row])
        records.append(
            RoundRecord(
                session=f"s{number}",
                index=row - int(sample.first_row[number]),
                phase="first" if row == sample.first_row[number] else "later",
                added_tokens=1,
                decode_tokens=tokens,
                sent_s=float(predicted.arrival[row]),
                total_s=1.0,
                outcome="ok",
                ttft_s=factor * float(predicted.ttft[row]),
                gaps_s=(factor * float(predicted.itl_mean[row]),) * (tokens - 1),
                prompt_tokens=int(sample.history[row] + sample.increment[row]),
                route="remote",
            )
        )
    load = ClientLoad(cpu_cores=0.0, machine_busy_cores=None, machine_cores=2, lag_p99_s=0.0, lag_max_s=0.0)
    return ReplayResult(records=tuple(records), started_at="", wall_s=1.0, load=load)


def test_prompts_have_the_lengths_that_are_simulated(sample: Sample) -> None:
    sessions = sessions_of(sample)
    assert len(sessions) == sample.sessions
    for number, session in enumerate(sessions[:5]):
        first = int(sample.first_row[number])
        assert session.arrival_s == sample.arrival[number]
        messages: list[dict[str, str]] = []
        for k, planned in enumerate(session.rounds):
            row = first + k
            messages.append({"role": "user", "content": filler(planned.added_tokens, k)})
            assert len(chat_ids(messages)) == sample.history[row] + sample.increment[row]
            assert planned.gap_s == (sample.gap[row - 1] if k else 0.0)
            messages.append({"role": "assistant", "content": filler(planned.decode_tokens, 100 + k)})


def test_no_increment_is_shorter_than_the_template(sample: Sample) -> None:
    assert sample.increment.min() > max(FIRST_FRAMING, LATER_FRAMING)
    before = sample.history + sample.increment + sample.tokens
    later = np.setdiff1d(np.arange(sample.rows), sample.first_row)
    assert (sample.history[sample.first_row] == 0).all()
    np.testing.assert_array_equal(sample.history[later], before[later - 1])


def test_everything_is_slower_by_the_same_factor() -> None:
    profile = SCENARIO.profile
    twice = slower(profile, 2.0)
    assert twice.t_pre(history=300, increment=500, degree=1) == pytest.approx(
        2 * profile.t_pre(history=300, increment=500, degree=1)
    )
    assert twice.t_step(batch=3, context=900, chunk=64, chunk_history=10, degree=1) == pytest.approx(
        2 * profile.t_step(batch=3, context=900, chunk=64, chunk_history=10, degree=1)
    )
    assert twice.t_kv(700, source=1, destination=1) == pytest.approx(2 * profile.t_kv(700, source=1, destination=1))
    assert twice.kv_capacity(1) == profile.kv_capacity(1)


def test_what_took_as_long_as_predicted_agrees(predicted: Outcome) -> None:
    measured = outcome_of(replayed(predicted), predicted)
    np.testing.assert_allclose(measured.finished, predicted.finished)
    assert (measured.route == REMOTE).all()
    one = compare([predicted], measured, policy="remote-jsq", load=0.5, overhead_s=0.0)
    assert one.disagreements == ()
    assert [abs(figure.off) < 1e-9 for figure in (*one.figures, *one.others)] == [True] * 8


def test_what_took_longer_disagrees_by_name(predicted: Outcome) -> None:
    measured = outcome_of(replayed(predicted, factor=1.2), predicted)
    one = compare([predicted], measured, policy="remote-jsq", load=0.5, overhead_s=0.0, starved=("busy",))
    assert [figure.name for figure in one.disagreements] == ["P95 TTFT", "mean ITL"]
    assert "P95 TTFT" in str(one)
    assert str(one).endswith("busy")
    slow = replace(predicted, ttft=predicted.ttft * 0 + 2 * predicted.slo[0].ttft_s)
    assert "attainment" in [
        f.name for f in compare([predicted], slow, policy="x", load=0.5, overhead_s=0.0).disagreements
    ]


def test_a_policy_that_chooses_at_random_may_be_as_far_off_as_its_own_runs_are_apart(predicted: Outcome) -> None:
    runs = [replace(predicted, ttft=predicted.ttft * factor) for factor in (0.7, 0.9, 1.0, 1.1, 1.3)]
    far = replace(predicted, ttft=predicted.ttft * 1.35)
    assert [figure.name for figure in compare(runs, far, policy="x", load=0.5, overhead_s=0.0).disagreements]
    one = compare(runs, far, policy="x", load=0.5, overhead_s=0.0, scattered=True)
    assert one.figures[0].agrees
    assert one.figures[0].scatter == pytest.approx(1.96 * 0.2236, rel=0.01)
    farther = replace(predicted, ttft=predicted.ttft * 1.6)
    assert not compare(runs, farther, policy="x", load=0.5, overhead_s=0.0, scattered=True).figures[0].agrees


def test_the_routers_own_time_is_part_of_the_prediction(predicted: Outcome) -> None:
    late = replace(predicted, ttft=predicted.ttft + 0.2)
    assert compare([predicted], late, policy="x", load=0.5, overhead_s=0.0).disagreements
    assert not compare([predicted], late, policy="x", load=0.5, overhead_s=0.2).disagreements


def test_failed_rounds_and_other_prompts_are_not_compared(predicted: Outcome) -> None:
    good = replayed(predicted)
    failed = replace(good.records[3], outcome="truncated", error="the stream ended")
    with pytest.raises(ReplayFailedError, match=r"1 of .* rounds failed; round .*: the stream ended"):
        outcome_of(replace(good, records=(*good.records[:3], failed, *good.records[4:])), predicted)
    longer = replace(good.records[3], prompt_tokens=7)
    with pytest.raises(ReplayFailedError, match="its prompt had 7 tokens, the sample says"):
        outcome_of(replace(good, records=(*good.records[:3], longer, *good.records[4:])), predicted)


def test_shaken_sessions_come_and_come_back_a_little_later(sample: Sample) -> None:
    late = shaken(sample, 1)
    assert (np.diff(late.arrival) >= 0).all()
    for before, after in ((sample.arrival, late.arrival), (sample.gap, late.gap)):
        assert (after > before).all()
        assert (after - before).max() <= LATE_S
    assert (shaken(sample, 1).gap == late.gap).all()
    assert (shaken(sample, 2).gap != late.gap).any()
    one, other = SCENARIO.predict("remote-jsq", sample, seeds=2)
    assert one.digest() != other.digest()
    assert one.sample is sample


@pytest.mark.parametrize(
    ("lag_s", "lost_s", "waited_s", "words"),
    [
        (0.02, 0.0, 0.1, None),
        (0.02, 0.0, None, None),
        (0.2, 0.0, 0.1, "event loop was late by 200 ms"),
        (0.02, 2.0, 0.1, "fell behind their profile by 2.0 s"),
        (0.02, 0.0, 0.4, "each round's work waited 400 ms for a core"),
    ],
)
def test_a_busy_machine_is_an_excuse_only_where_it_is_late(
    predicted: Outcome, lag_s: float, lost_s: float, waited_s: float | None, words: str | None
) -> None:
    load = ClientLoad(cpu_cores=0.1, machine_busy_cores=2.0, machine_cores=2, lag_p99_s=lag_s, lag_max_s=lag_s)
    starved = Measured(predicted, load, EnginePace(lost_s=lost_s, worst_step_s=0.1), waited_s=waited_s).starved
    assert len(starved) == (words is not None)
    assert words is None or words in starved[0]


def test_the_time_that_threads_wait_for_a_core_only_grows() -> None:
    before = core_wait_s([os.getpid()])
    after = core_wait_s([os.getpid()])
    assert before is None or after is None or 0 <= before <= after
    assert core_wait_s([2**30]) is None


def test_a_prefills_turn_is_told_by_both_sides(sample: Sample, predicted: Outcome) -> None:
    page = "weft_router_prefill_seconds_sum {}\nweft_router_prefill_seconds_count {}\n"
    before = {"p-0": page.format(1.0, 10), "d-0": ""}
    assert measured_turn(before, {"p-0": page.format(4.0, 20), "d-0": ""}) == pytest.approx(0.3)
    assert np.isnan(measured_turn(before, before))
    alone = simulated_turn(SCENARIO.predict("remote-jsq", solitary(SCENARIO))[0], SCENARIO)
    assert alone == pytest.approx(SCENARIO.profile.t_pre(history=0, increment=300, degree=1))
    with_reads = simulated_turn(predicted, SCENARIO)
    without = simulated_turn(replace(predicted, read_tokens=0.0), SCENARIO)
    assert without < with_reads < without + SCENARIO.profile.t_kv(10_000, source=1, destination=1)
    assert np.isnan(simulated_turn(replace(predicted, route=np.full(sample.rows, LOCAL)), SCENARIO))


def test_solitary_rounds_meet_nobody() -> None:
    alone = solitary(SCENARIO)
    outcome = SCENARIO.predict("remote-jsq", alone)[0]
    assert np.ptp(outcome.ttft) < 1e-9
    assert (outcome.finished[:-1] < alone.arrival[1:]).all()


def test_capacity_is_a_rate_that_holds_and_little_more_does_not() -> None:
    capacity = SCENARIO.capacity("remote-jsq")
    samples = [SCENARIO.sample(rate=rate * capacity, rounds=2000.0, seed=9) for rate in (0.6, 1.6)]
    easy, hard = (SCENARIO.predict("remote-jsq", one)[0] for one in samples)
    assert np.quantile(easy.ttft, 0.9) < SCENARIO.slo.ttft_s < np.quantile(hard.ttft, 0.9)


def test_a_mode_that_slices_runs_on_engines_that_take_slices_into_their_steps() -> None:
    config = SCENARIO.stack("weft/imd")
    assert (config.policy, config.mode, config.chunk) == ("weft", "imd", SCENARIO.options.chunk_limit)
    assert router_config(config)["routing"] == {"policy": "weft", "mode": "imd"}
    assert SCENARIO.stack("weft/ia").chunk is None
    commands = [engine_command(config, worker, 1, 2) for worker in config.workers]
    assert {worker.role for worker, argv in zip(config.workers, commands, strict=True) if "--chunk" in argv} == {
        "decode"
    }


def test_slices_are_simulated_as_routers_send_them() -> None:
    slicing = slicing_of(RoutingConfig())
    assert slicing is not None
    options = SCENARIO.options
    assert (options.slice_turn_s, options.chunk_fraction) == (slicing.overhead_s, slicing.share)
    assert options.slice_turn_s > 0
    assert options.chunk_floor >= slicing.least
