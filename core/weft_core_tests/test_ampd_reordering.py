from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_core.policies.ampd_snapshot import MAX_WINDOW, completion_seconds, reorder, satisfied
from weft_core.policies.snapshot import QueuedTask, Reordering


def seconds(task: QueuedTask) -> float:
    return task.increment / 1000


def run(queue: Sequence[QueuedTask], *, now: float = 10.0, window: int = 3, ttft_slo: float = 2.0) -> Reordering:
    return reorder(queue, now=now, window=window, ttft_slo=ttft_slo, seconds=seconds)


def task(increment: int, *, at: float = 10.0, postponed: int = 0) -> QueuedTask:
    return QueuedTask(history=0, increment=increment, enqueued_at=at, postponed=postponed)


def test_equations_3_and_4_worked_by_hand() -> None:
    times, waited = [1.5, 0.5, 1.0], [0.0, 0.8, 1.5]
    assert completion_seconds(times, (1, 2, 0)) == pytest.approx([0.5, 1.5, 3.0])
    assert satisfied(times, waited, (0, 1, 2), ttft_slo=2.0) == 1  # 1.5; 0.8 + 2.0; 1.5 + 3.0
    assert satisfied(times, waited, (1, 0, 2), ttft_slo=2.0) == 2  # 0.8 + 0.5; 2.0; 1.5 + 3.0


def test_a_short_task_goes_ahead_when_that_satisfies_more() -> None:
    # In order: 1.8 s is met, then 1.8 + 0.5 = 2.3 s misses. The other way round both are met at 0.5 and 2.3 - 0.3.
    queue = [task(1500, at=10.0), task(500, at=9.0)]
    assert run(queue) == Reordering(order=(1, 0), postponed=(0,))


def test_an_order_that_satisfies_all_stays() -> None:
    assert run([task(500), task(400), task(300)]) == Reordering((0, 1, 2), ())


def test_without_any_gain_the_order_stays() -> None:
    assert run([task(9000), task(9000), task(9000)]) == Reordering((0, 1, 2), ())


def test_a_task_postponed_often_enough_is_not_postponed_again() -> None:
    queue = [task(1500, at=10.0, postponed=3), task(500, at=9.0)]
    assert run(queue) == Reordering((0, 1), ())


def test_only_the_head_window_is_touched() -> None:
    queue = [task(1500), task(9000), task(200, at=8.5)]
    assert run(queue, window=2).order == (0, 1)
    assert run(queue, window=3).order[0] == 2


def test_an_empty_queue_has_nothing_to_order() -> None:
    assert run([]) == Reordering((), ())


@pytest.mark.parametrize("window", [0, MAX_WINDOW + 1])
def test_a_window_whose_orderings_are_too_many_is_refused(window: int) -> None:
    with pytest.raises(ValueError, match=f"window: {window} is not between 1 and 6"):
        run([task(1)], window=window)


tasks = st.builds(
    QueuedTask,
    history=st.just(0),
    increment=st.integers(1, 3000),
    enqueued_at=st.floats(7, 10),
    postponed=st.integers(0, 4),
)


@given(st.lists(tasks, max_size=6), st.integers(1, 5), st.floats(0.1, 5))
@settings(max_examples=150)
def test_no_allowed_ordering_satisfies_more(queue: list[QueuedTask], window: int, ttft_slo: float) -> None:
    result = run(queue, window=window, ttft_slo=ttft_slo)
    head = queue[:window]

    def met(ordering: Sequence[int]) -> int:
        clock, count = 0.0, 0
        for i in ordering:
            clock += seconds(head[i])
            count += 10.0 - head[i].enqueued_at + clock <= ttft_slo
        return count

    def allowed(ordering: Sequence[int]) -> bool:
        return all(head[i].postponed < window or ordering.index(i) <= i for i in range(len(head)))

    assert sorted(result.order) == list(range(len(head)))
    assert allowed(result.order)
    assert met(result.order) == max(met(p) for p in permutations(range(len(head))) if allowed(p))
    assert result.postponed == tuple(i for i in range(len(head)) if result.order.index(i) > i)


@given(st.lists(tasks.map(lambda t: replace(t, postponed=0)), min_size=1, max_size=25), st.integers(1, 4), st.data())
@settings(max_examples=60)
def test_over_a_run_nobody_is_postponed_more_than_w_times_nor_starves(
    arrivals: list[QueuedTask], window: int, data: st.DataObject
) -> None:
    """Dequeue one by one, as Algorithm 2 does, while new tasks keep coming."""
    queue: list[tuple[int, QueuedTask]] = []
    waiting = list(enumerate(arrivals))
    joined: dict[int, tuple[int, int]] = {}  # task -> (dequeues so far, place in the queue) when it came
    now, dequeues = 10.0, 0
    while waiting or queue:
        for _ in range(data.draw(st.integers(0 if queue else 1, 3), label="arrivals")):
            if waiting:
                name, new = waiting.pop(0)
                joined[name] = (dequeues, len(queue))
                queue.append((name, replace(new, enqueued_at=now)))
        result = reorder([t for _, t in queue], now=now, window=window, ttft_slo=2.0, seconds=seconds)
        for i in result.postponed:
            queue[i] = (queue[i][0], replace(queue[i][1], postponed=queue[i][1].postponed + 1))
        queue[: len(result.order)] = [queue[i] for i in result.order]
        name, served = queue.pop(0)
        dequeues += 1
        now += seconds(served)
        assert served.postponed <= window
        came, place = joined[name]
        # Each dequeue brings a task one place forward unless it is postponed: at most w times, by w - 1 places at most.
        assert dequeues - came <= place + 1 + window * (window - 1)
