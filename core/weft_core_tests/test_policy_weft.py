"""Weft's own rule: expected missed SLOs, in all modes and all readings of ITL."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.finish import overlapped_finish
from weft_core.policies.inputs import LocalFigures, RemoteFigures, TaskFigures
from weft_core.policies.registry import parameters
from weft_core.policies.routing.weft import POLICY, chance_over, stall_cost
from weft_core_tests.vectors import (
    INFINITE,
    NOT_KNOWN,
    ask_weft,
    fleets,
    gap_lists,
    local,
    locals_,
    remote,
    task,
    tasks,
    unknown_remotes,
)

MODES = st.sampled_from(["imd", "whole-or-chunked", "ia", "remote-jsq"])


def chance(share: float) -> float:
    return 1 / (1 + math.exp(-(share - 0.92) / 0.08))


def test_the_chance_of_a_miss_worked_by_hand() -> None:
    assert chance_over(0.92, 0.92, 0.08) == 0.5
    assert chance_over(1.0, 0.92, 0.08) == pytest.approx(1 / (1 + math.exp(-1)))
    assert chance_over(0.6, 0.92, 0.08) == pytest.approx(1 / (1 + math.exp(4)))
    assert (chance_over(99, 0.92, 0.08), chance_over(-99, 0.92, 0.08)) == (1.0, 0.0)
    assert chance_over(INFINITE, 0.92, 0.08) == 1.0
    assert chance_over(0.92 - 39.5 * 0.08, 0.92, 0.08) > 0.0
    assert chance_over(0.92 - 40.5 * 0.08, 0.92, 0.08) == 0.0, "far below, where exp() would overflow, it is 0"


def test_imd_worked_by_hand() -> None:
    found = ask_weft("imd", task(ttft=1.0), local(chunked_queue=0.1, chunked=0.5), [remote(own=0.92)])
    assert found.short == (-1, "local-chunked")
    assert found.costs == pytest.approx([chance(0.6) + 0.02 * 0.6, 0.5 + 0.02 * 0.92])


def test_imd_charges_chunks_no_stall() -> None:
    slow = [(1.0, 20.0)] * 8  # sessions at the edge of their ITL
    here = local(chunked_queue=0.0, chunked=0.5, batch=8)
    assert ask_weft("imd", task(ttft=1.0), here, [remote(own=0.6)], gaps=slow).short == (-1, "local-chunked")


def test_imd_without_chunks_goes_remote() -> None:
    assert ask_weft("imd", task(), local(own=0.001), [remote(own=3.0)]).short == (0, "remote-cheaper")


def test_the_history_is_read_while_the_task_waits_in_the_queue() -> None:
    found = ask_weft("imd", task(ttft=1.0), local(), [remote(queue=0.3, read=0.2, own=0.1, back=0.05)])
    assert found.costs[1] == pytest.approx(chance(0.45) + 0.02 * 0.45)


def test_time_already_waited_counts() -> None:
    found = ask_weft("imd", task(ttft=1.0, waited=0.5), local(), [remote(own=0.42)])
    assert found.costs[1] == pytest.approx(0.5 + 0.02 * 0.42)


def test_ia_charges_the_stall_to_every_session_worked_by_hand() -> None:
    # ITL SLO 0.05 s, step 0.02 s, stall 0.4 s: a session with 9 gaps of 0.02 s comes to (0.18 + 0.42) / 10 = 0.06 s.
    here = local(own=0.4, step=0.02, batch=2)
    gaps = [(0.18, 9.0), (0.18, 9.0)]
    found = ask_weft("ia", task(ttft=1.0), here, [remote(own=0.92)], gaps=gaps)
    rise = chance(0.06 / 0.05) - chance(0.02 / 0.05)
    assert found.costs[0] == pytest.approx(chance(0.4) + 0.02 * 0.4 + 2 * rise)
    assert found.short == (0, "remote-cheaper")
    assert ask_weft("ia", task(ttft=1.0), here, [remote(own=0.92)]).short == (-1, "local-whole")
    assert ask_weft("ia", task(ttft=1.0), here, [remote(own=0.92)], gaps=gaps, interference=0).choice == -1


def test_whole_or_chunked_takes_the_cheaper_of_the_two() -> None:
    def how(gaps: list[tuple[float, float]]) -> tuple[int, str]:
        here = local(own=0.3, chunked_queue=0.0, chunked=0.5, batch=len(gaps))
        return ask_weft("whole-or-chunked", task(ttft=1.0), here, [remote(own=2.0)], gaps=gaps).short

    assert how([]) == (-1, "local-whole")
    assert how([(0.18, 9.0)]) == (-1, "local-chunked")


@pytest.mark.parametrize(
    ("statistic", "seen", "rise"),
    [
        (0, (0.18, 9.0), chance(0.06 / 0.05) - chance(0.02 / 0.05)),
        (0, (0.0, 0.0), chance(0.42 / 0.05) - chance(0.02 / 0.05)),
        (0, (0.02, 1.0), chance(0.44 / 2 / 0.05) - chance(0.02 / 0.05)),
        (0, (0.03, 0.0), chance(0.45 / 0.05) - chance(0.02 / 0.05)),  # it has paused before its first gap
        (1, (0.0, 99.0), chance(0.01 / 0.05) - chance(0.0)),  # one gap in a hundred is over: P95 keeps
        (1, (1.0, 9.0), chance(0.2 / 0.05) - chance((1 / 9) / 0.05)),
        (1, (0.0, 0.0), chance(1 / 0.05) - chance(0.0)),  # its first gap is over
        (2, (0.0, 9.0), chance(0.42 / 0.05) - chance(0.02 / 0.05)),
        (2, (1.0, 9.0), 0.0),  # missed already: one more makes no difference
    ],
)
def test_the_stall_is_charged_by_the_slos_reading(statistic: int, seen: tuple[float, float], rise: float) -> None:
    params = (POLICY.params[0], float(statistic), *POLICY.params[2:])
    assert stall_cost(0.4, 0.02, 0.05, params, [seen[0]], [seen[1]]) == pytest.approx(rise)


def test_a_short_stall_makes_the_largest_gap_likelier_to_be_over() -> None:
    params = (POLICY.params[0], 2.0, *POLICY.params[2:])
    rise = chance(0.04 / 0.05) - chance(0.02 / 0.05)
    assert stall_cost(0.02, 0.02, 0.05, params, [0.0], [9.0]) == pytest.approx(rise)


def test_the_price_of_a_finish_is_per_slo() -> None:
    """A hundred times its SLO of 2 s late or not at all: the price tells, 0.02 for each SLO."""
    found = ask_weft("ia", task(ttft=2.0), local(own=1.0), [remote(own=400.0)])
    assert found.costs == pytest.approx([chance(0.5) + 0.02 * 0.5, 1.0 + 0.02 * 200])


def test_sessions_without_a_gap_are_charged_alike() -> None:
    one = stall_cost(0.4, 0.02, 0.05, POLICY.params, [0.0], [0.0])
    mixed = stall_cost(0.4, 0.02, 0.05, POLICY.params, [0.0, 0.18, 0.0], [0.0, 9.0, 0.0])
    assert mixed == pytest.approx(2 * one + chance(0.06 / 0.05) - chance(0.02 / 0.05))


def test_a_session_far_within_its_slo_is_charged_nothing() -> None:
    params = parameters("weft", "ia", {"width": 0.001})
    assert stall_cost(0.0001, 0.0001, 0.05, params, [0.001], [10.0]) == 0.0
    assert stall_cost(9.0, 0.02, 0.05, params, [0.2], [10.0]) == pytest.approx(1.0)


def test_among_equal_costs_local_goes_first_and_then_the_first_worker() -> None:
    there = [remote(own=0.5), remote(own=0.5)]
    assert ask_weft("ia", task(ttft=1.0), local(own=0.5), there).choice == -1
    assert ask_weft("ia", task(ttft=1.0), local(own=0.6), there).choice == 0


def test_a_prefill_elsewhere_is_charged_for_the_sessions_it_stalls_there_worked_by_hand() -> None:
    """Two workers finish alike; one decodes 10 sessions, each charged as one of those here is on average."""
    gaps = [(0.9, 20.0), (0.5, 20.0)]
    each = stall_cost(0.5, 0.02, 0.05, parameters("weft", "ia"), [0.9, 0.5], [20.0, 20.0]) / 2
    there = [remote(own=0.5, decoding=10), remote(own=0.5, queue=0.1)]
    found = ask_weft("ia", task(ttft=1.0, itl=0.05), local(own=9.0), there, gaps=gaps)
    assert found.costs[1] == pytest.approx(chance(0.5) + 0.02 * 0.5 + 10 * each)
    assert found.costs[2] == pytest.approx(chance(0.6) + 0.02 * 0.6)
    assert found.choice == 1
    assert ask_weft("remote-jsq", task(ttft=1.0, itl=0.05), local(), there, gaps=gaps).choice == 0


def test_where_nobody_decodes_here_a_stalled_session_elsewhere_counts_as_a_fresh_one() -> None:
    there = [remote(own=0.5, decoding=2), remote(own=0.9)]
    found = ask_weft("ia", task(ttft=9.0, itl=0.05), local(own=9.0), there)
    fresh = chance((0.5 + 0.02) / 0.05) - chance(0.02 / 0.05)
    assert found.costs[1] == pytest.approx(chance(0.5 / 9) + 0.02 / 9 * 0.5 + 2 * fresh)
    assert found.choice == 1


def test_a_stall_within_the_slo_costs_a_p95_reading_nothing() -> None:
    params = (POLICY.params[0], 1.0, *POLICY.params[2:])
    assert stall_cost(0.01, 0.02, 0.05, params, [0.0], [10.0]) == pytest.approx(0.0)


@given(tasks, locals_, fleets, gap_lists, MODES)
def test_the_choice_costs_least_among_the_options_of_its_mode(
    of: TaskFigures, here: LocalFigures, there: list[RemoteFigures], gaps: list[tuple[float, float]], mode: str
) -> None:
    found = ask_weft(mode, of, here, there, gaps=gaps)
    options = {i - 1: cost for i, cost in enumerate(found.costs) if not math.isnan(cost)}
    if found.reason == "no-prefill-worker":
        assert not there
    else:
        assert options[found.choice] <= min(options.values()) + 1e-9
    finishes = [overlapped_finish(worker) for worker in there]
    if found.choice >= 0 and (mode == "remote-jsq" or not any(worker.decoding for worker in there)):
        assert found.choice == finishes.index(min(finishes))
    if mode == "remote-jsq":
        assert found.choice >= 0 or not there
        assert -1 not in options
    if mode == "imd" and found.choice == -1 and there:
        assert found.reason == "local-chunked"
    if mode == "ia":
        assert found.reason != "local-chunked"


@given(tasks, locals_, st.lists(unknown_remotes, min_size=1, max_size=4), st.lists(unknown_remotes, max_size=2), MODES)
def test_without_predictions_the_shortest_queue_is_taken(
    of: TaskFigures, here: LocalFigures, there: list[RemoteFigures], more: list[RemoteFigures], mode: str
) -> None:
    found = ask_weft(mode, of, here, there + more)
    queued = [worker.queued for worker in there + more]
    assert found.short == (queued.index(min(queued)), "profile-incomplete")


def test_a_worker_without_a_prediction_is_passed_over() -> None:
    there = [remote(own=NOT_KNOWN), remote(own=0.5)]
    assert ask_weft("remote-jsq", task(), local(), there).short == (1, "shortest-finish")


@given(st.floats(0, 10), st.floats(0, 10))
def test_a_later_finish_is_never_the_likelier_one(a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert chance_over(low, 0.92, 0.08) <= chance_over(high, 0.92, 0.08)
