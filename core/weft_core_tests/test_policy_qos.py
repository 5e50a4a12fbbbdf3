"""Quality of service: priority, early rejection, output caps, local-only degradation, hedging."""

import math

from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.inputs import LOCAL, MAX_WINDOW, LocalFigures, QueueInputs, RemoteFigures, TaskFigures
from weft_core.policies.qos import hedge, output_cap
from weft_core.policies.qos.early_rejection import predicted_ttft, retry_after
from weft_core.policies.qos.local_only import prefill_workers_busy
from weft_core.policies.qos.priority import next_by_priority
from weft_core.policies.registry import ORDERS
from weft_core_tests.vectors import NOT_KNOWN, fleets, inputs, local, locals_, remote, task, tasks


def run(
    order: str, priorities: list[float], postponed: list[int], *, cap: int = 3, seconds: list[float] | None = None
) -> int:
    n = len(priorities)
    at = [float(i) for i in range(n)]
    queue = QueueInputs(
        float(n), seconds or [0.1] * n, at, [9.0] * n, postponed, [0] * n, 3, cap, [0] * MAX_WINDOW
    )  # fmt: skip
    return next_by_priority(ORDERS[order], queue, priorities)


def test_priority_worked_by_hand() -> None:
    postponed = [0, 0, 0]
    assert [run("fcfs", [0, 1, 1], postponed) for _ in range(4)] == [1, 1, 1, 0]


def test_within_a_class_the_queues_own_order_holds() -> None:
    assert run("moore-hodgson", [0, 1, 1], [0, 0, 0], seconds=[0.1, 99.0, 0.1]) == 2
    assert run("fcfs", [1, 1, 1], [0, 0, 0]) == 0
    assert run("edf", [0, 0, 1], [0, 0, 0]) == 2
    assert run("ampd-window", [0, 1, 1], [0, 0, 0]) == 0


@given(
    st.lists(st.integers(0, 3).map(float), min_size=1, max_size=8), st.sampled_from(sorted(ORDERS)), st.integers(1, 4)
)
def test_the_oldest_task_is_passed_over_at_most_cap_times(priorities: list[float], order: str, cap: int) -> None:
    postponed = [0] * len(priorities)
    chosen = [run(order, priorities, postponed, cap=cap) for _ in range(cap + 1)]
    assert 0 in chosen
    assert order == "ampd-window" or all(i == 0 or priorities[i] == max(priorities) for i in chosen)


def test_early_rejection_worked_by_hand() -> None:
    of = task(waited=0.5, ttft=2.0)
    best = predicted_ttft(inputs(of, local(own=5.0), [remote(queue=1.0, own=0.8), remote(own=9.0)]))
    assert best == 2.3
    assert retry_after(best, 2.0) == 1.0
    assert retry_after(best, 2.3) is None
    assert retry_after(9.0, 2.0) == 7.0


def test_what_cannot_be_predicted_is_admitted() -> None:
    best = predicted_ttft(inputs(task(), local(own=NOT_KNOWN, chunked=NOT_KNOWN), [remote(own=NOT_KNOWN)]))
    assert best == math.inf
    assert retry_after(best, 2.0) is None


@given(tasks, locals_, fleets)
def test_the_best_option_counts(of: TaskFigures, here: LocalFigures, there: list[RemoteFigures]) -> None:
    least = min(
        here.queue_s + here.prefill_s,
        here.chunked_queue_s + here.chunked_s,
        *(max(w.queue_s, w.read_s) + w.prefill_s + w.back_s for w in there),
    )
    assert predicted_ttft(inputs(of, here, there)) == of.waited_s + least


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
    assert prefill_workers_busy(8, 2, 4.0)
    assert not prefill_workers_busy(7, 2, 4.0)
    assert not prefill_workers_busy(0, 0, 4.0)


def test_the_hedge_worked_by_hand() -> None:
    there, here = [remote(own=1.6), remote(own=1.9)], local(own=2.5)

    def raced(risk: float = 0.7, waited: float = 0.0, own: LocalFigures = here) -> int:
        return hedge.hedge(0, inputs(task(ttft=2.0, waited=waited), own, there), risk)

    assert raced() == 1
    assert raced(risk=0.9) == hedge.NO_HEDGE  # 1.6 <= 1.8: the first choice is safe
    assert raced(own=local(own=1.7)) == LOCAL
    assert raced(waited=0.5) == hedge.NO_HEDGE


@given(tasks, locals_, fleets, st.data())
def test_a_hedge_is_another_option_that_makes_it(
    of: TaskFigures, here: LocalFigures, there: list[RemoteFigures], data: st.DataObject
) -> None:
    choice = data.draw(st.integers(LOCAL, len(there) - 1))
    asked = inputs(of, here, there)
    found = hedge.hedge(choice, asked, 0.7)
    if found != hedge.NO_HEDGE:
        assert found != choice
        assert of.waited_s + hedge.finish_of(found, asked) <= of.ttft_slo + 1e-9
