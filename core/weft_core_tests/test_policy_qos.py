"""Quality of service: priority, early rejection, output caps, local-only degradation, hedging."""

import math

from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies import early_rejection, hedge, local_only, output_cap
from weft_core.policies.catalogue import ORDERS
from weft_core.policies.codes import AMPD_WINDOW, EDF, FCFS, MOORE_HODGSON
from weft_core.policies.decide_order import ORDER_MAX
from weft_core.policies.features import LOCAL
from weft_core.policies.priority import next_by_priority
from weft_core_tests.vectors import NOT_KNOWN, fleets, local, locals_, remote, task, tasks


def run(
    code: int, priorities: list[float], postponed: list[int], *, cap: int = 3, seconds: list[float] | None = None
) -> int:
    n = len(priorities)
    at = [float(i) for i in range(n)]
    return next_by_priority(
        code, float(n), seconds or [0.1] * n, at, [9.0] * n, postponed, [0] * n, priorities, 3, cap, [0] * ORDER_MAX
    )


def test_priority_worked_by_hand() -> None:
    postponed = [0, 0, 0]
    assert [run(FCFS, [0, 1, 1], postponed) for _ in range(4)] == [1, 1, 1, 0]


def test_within_a_class_the_queues_own_order_holds() -> None:
    assert run(MOORE_HODGSON, [0, 1, 1], [0, 0, 0], seconds=[0.1, 99.0, 0.1]) == 2
    assert run(FCFS, [1, 1, 1], [0, 0, 0]) == 0
    assert run(EDF, [0, 0, 1], [0, 0, 0]) == 2
    assert run(AMPD_WINDOW, [0, 1, 1], [0, 0, 0]) == 0


@given(
    st.lists(st.integers(0, 3).map(float), min_size=1, max_size=8), st.sampled_from(sorted(ORDERS)), st.integers(1, 4)
)
def test_the_oldest_task_is_passed_over_at_most_cap_times(priorities: list[float], order: str, cap: int) -> None:
    postponed = [0] * len(priorities)
    code = ORDERS[order].code
    chosen = [run(code, priorities, postponed, cap=cap) for _ in range(cap + 1)]
    assert 0 in chosen
    assert code == AMPD_WINDOW or all(i == 0 or priorities[i] == max(priorities) for i in chosen)


def test_early_rejection_worked_by_hand() -> None:
    def rejected(priority: float) -> bool:
        of = task(waited=0.5, ttft=2.0, priority=priority)
        there = [*remote(queue=1.0, own=0.8), *remote(own=9.0)]
        return early_rejection.reject(of, local(own=5.0), there, 2, early_rejection.PARAMS)

    assert rejected(0)
    assert not rejected(1)


def test_what_cannot_be_predicted_is_admitted() -> None:
    unknown = local(own=NOT_KNOWN)
    assert not early_rejection.reject(task(), unknown, remote(own=NOT_KNOWN), 1, early_rejection.PARAMS)


@given(tasks, locals_, fleets)
def test_nobody_is_rejected_whom_some_option_serves_in_time(
    of: list[float], here: list[float], there: list[list[float]]
) -> None:
    flat = [figure for worker in there for figure in worker]
    least = min([here[0] + here[1], here[2] + here[3], *(max(w[0], w[2]) + w[1] + w[3] for w in there)])
    assert early_rejection.predicted_ttft(of, here, flat, len(there)) == of[2] + least
    wanted = of[9] < 1 and of[2] + least > of[3]
    assert early_rejection.reject(of, here, flat, len(there), early_rejection.PARAMS) == wanted


def test_the_output_cap_worked_by_hand() -> None:
    assert output_cap.output_cap(9999, 0.9, 0, output_cap.PARAMS) == 2176
    assert output_cap.output_cap(100, 0.9, 0, output_cap.PARAMS) == 100
    assert output_cap.output_cap(9999, 0.9, 1, output_cap.PARAMS) == 9999
    assert output_cap.output_cap(9999, 1.5, 0, output_cap.PARAMS) == 256
    assert output_cap.output_cap(9999, math.nan, 0, output_cap.PARAMS) == 9999


@given(st.floats(1, 1e5), st.floats(0, 1), st.floats(0, 1))
def test_more_pressure_never_allows_longer_answers(asked: float, a: float, b: float) -> None:
    low, high = sorted((a, b))
    capped = output_cap.output_cap(asked, high, 0, output_cap.PARAMS)
    assert min(asked, 256) <= capped <= output_cap.output_cap(asked, low, 0, output_cap.PARAMS) <= asked


def test_local_only_worked_by_hand() -> None:
    there = [*remote(queued=5), *remote(queued=3)]
    assert local_only.keep_local(task(), there, 2, local_only.PARAMS)
    assert not local_only.keep_local(task(priority=1), there, 2, local_only.PARAMS)
    assert not local_only.keep_local(task(), [*remote(queued=5), *remote(queued=2)], 2, local_only.PARAMS)
    assert not local_only.keep_local(task(), [], 0, local_only.PARAMS)


def test_the_hedge_worked_by_hand() -> None:
    there, here = [*remote(own=1.6), *remote(own=1.9)], local(own=2.5)

    def raced(risk: float = 0.7, priority: float = 2) -> int:
        of = task(ttft=2.0, priority=priority)
        return hedge.hedge(0, of, here, there, 2, [2.0, risk])

    assert raced() == 1
    assert raced(priority=1) == hedge.NO_HEDGE
    assert raced(risk=0.9) == hedge.NO_HEDGE  # 1.6 <= 1.8: the first choice is safe
    assert hedge.hedge(0, task(priority=2), local(own=1.7), there, 2, hedge.PARAMS) == LOCAL
    assert hedge.hedge(0, task(priority=2, waited=0.5), here, there, 2, hedge.PARAMS) == hedge.NO_HEDGE


@given(tasks, locals_, fleets, st.data())
def test_a_hedge_is_another_option_that_makes_it(
    of: list[float], here: list[float], there: list[list[float]], data: st.DataObject
) -> None:
    choice = data.draw(st.integers(LOCAL, len(there) - 1))
    flat = [figure for worker in there for figure in worker]
    found = hedge.hedge(choice, of, here, flat, len(there), hedge.PARAMS)
    if found != hedge.NO_HEDGE:
        assert of[9] >= 2
        assert found != choice
        assert of[2] + hedge.finish_of(found, here, flat) <= of[3] + 1e-9
