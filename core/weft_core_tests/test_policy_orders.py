"""Which queued prefill runs next: AMPD's window, Moore-Hodgson with ageing, earliest deadline, order of arrival."""

from collections.abc import Sequence
from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_core.policies.inputs import MAX_WINDOW, QueueInputs
from weft_core.policies.order.ampd_window import advance, satisfied
from weft_core.policies.registry import ORDERS

NOW = 10.0
NEVER = 10**9


class Queue:
    """A queue as a caller keeps it; figures are exact in binary, so that sums are."""

    def __init__(self, tasks: Sequence[tuple[float, float]], *, slo: float | Sequence[float] = 2.0) -> None:
        self.seconds = [task[0] for task in tasks]
        self.enqueued = [task[1] for task in tasks]
        self.slo = [slo] * len(tasks) if isinstance(slo, float) else list(slo)
        self.postponed = [0] * len(tasks)
        self.lost = [0] * len(tasks)
        self.order = [-1] * MAX_WINDOW

    def inputs(self, *, now: float = NOW, window: int = 3, cap: int = NEVER) -> QueueInputs:
        return QueueInputs(
            now, self.seconds, self.enqueued, self.slo, self.postponed, self.lost, window, cap, self.order
        )

    def next(self, order: str, *, now: float = NOW, window: int = 3, cap: int = NEVER) -> int:
        return ORDERS[order].next_task(self.inputs(now=now, window=window, cap=cap))


def on_time(queue: Queue, ordering: Sequence[int], now: float = NOW) -> int:
    """Return how many tasks meet their TTFT when run in an order."""
    finish, met = now, 0
    for i in ordering:
        finish += queue.seconds[i]
        met += finish <= queue.enqueued[i] + queue.slo[i]
    return met


def test_equations_3_and_4_worked_by_hand() -> None:
    queue = Queue([(1.5, 10.0), (0.5, 9.2), (1.0, 8.5)])
    assert satisfied(queue.inputs(), [0, 1, 2], 3) == 1  # 1.5; 0.8 + 2.0; 1.5 + 3.0
    assert satisfied(queue.inputs(), [1, 0, 2], 3) == 2  # 0.8 + 0.5; 2.0; 1.5 + 3.0


def test_a_short_task_goes_ahead_when_that_satisfies_more() -> None:
    queue = Queue([(1.5, 10.0), (0.5, 9.0)])
    assert queue.next("ampd-window") == 1
    assert (queue.order[:2], queue.postponed) == ([1, 0], [1, 0])


def test_without_any_gain_the_order_stays() -> None:
    for seconds in (0.25, 9.0):  # all meet their TTFT, or none can
        queue = Queue([(seconds, 10.0)] * 3)
        assert queue.next("ampd-window") == 0
        assert (queue.order[:3], queue.postponed) == ([0, 1, 2], [0, 0, 0])


def test_a_task_postponed_often_enough_is_not_postponed_again() -> None:
    queue = Queue([(1.5, 10.0), (0.5, 9.0)])
    queue.postponed[0] = 3
    assert queue.next("ampd-window") == 0
    assert queue.postponed == [3, 0]


def test_only_the_head_window_is_touched() -> None:
    queue = Queue([(1.5, 10.0), (9.0, 10.0), (0.25, 8.5)])
    assert queue.next("ampd-window", window=2) == 0
    assert queue.order == [0, 1, -1, -1, -1, -1]
    assert queue.next("ampd-window", window=3) == 2


@pytest.mark.parametrize("size", range(1, 6))
def test_orderings_come_in_lexicographic_order(size: int) -> None:
    trial = list(range(size))
    seen = [tuple(trial)]
    while advance(trial, size):
        seen.append(tuple(trial))
    assert seen == list(permutations(range(size)))


quarters = st.integers(1, 32).map(lambda n: n / 8)
arrivals = st.integers(0, 24).map(lambda n: 7 + n / 8)
queues = st.lists(st.tuples(quarters, arrivals), min_size=1, max_size=6)


@given(queues, st.lists(st.integers(0, 4), min_size=6, max_size=6), st.integers(1, MAX_WINDOW), quarters)
@settings(max_examples=100)
def test_no_allowed_ordering_satisfies_more(
    tasks: list[tuple[float, float]], postponed: list[int], window: int, slo: float
) -> None:
    queue = Queue(tasks, slo=slo)
    before = postponed[: len(tasks)]
    queue.postponed = list(before)
    size = min(window, len(tasks))

    def allowed(ordering: Sequence[int]) -> bool:
        return all(before[i] < window or ordering.index(i) <= i for i in range(size))

    assert queue.next("ampd-window", window=window) == queue.order[0]
    order = queue.order[:size]
    assert sorted(order) == list(range(size))
    assert allowed(order)
    assert on_time(queue, order) == max(on_time(queue, p) for p in permutations(range(size)) if allowed(p))
    late = [int(i < size and order.index(i) > i) for i in range(len(tasks))]
    assert queue.postponed == [a + b for a, b in zip(before, late, strict=True)]


def test_moore_hodgson_worked_by_hand() -> None:
    queue = Queue([(2.0, 10.0), (1.5, 10.0), (1.0, 10.0)], slo=3.0)
    assert queue.next("moore-hodgson") == 1
    assert queue.postponed == [1, 0, 0]


def test_what_is_hopeless_does_not_hold_up_the_rest() -> None:
    assert Queue([(9.0, 9.0), (1.0, 9.5), (1.0, 9.75)]).next("moore-hodgson") == 1


def test_when_nobody_can_be_on_time_the_oldest_runs() -> None:
    queue = Queue([(9.0, 9.5), (9.0, 9.0), (9.0, 9.75)])
    assert queue.next("moore-hodgson") == 1
    assert queue.postponed == [0, 0, 0]


def test_the_oldest_runs_when_it_was_passed_over_cap_times() -> None:
    queue = Queue([(9.0, 9.0), (1.0, 9.5), (1.0, 9.75)])
    assert [queue.next("moore-hodgson", cap=3) for _ in range(4)] == [1, 1, 1, 0]


def test_sessions_that_missed_already_can_be_left_behind() -> None:
    queue = Queue([(0.5, 9.0), (0.5, 9.5)])
    queue.lost = [1, 0]
    assert queue.next("moore-hodgson") == 1
    queue.lost = [1, 1]
    assert queue.next("moore-hodgson") == 0


classes = st.lists(st.tuples(quarters, arrivals, st.sampled_from([1.0, 2.0, 4.0])), min_size=1, max_size=7)


@given(classes)
def test_following_moore_hodgson_meets_as_many_as_any_order_could(tasks: list[tuple[float, float, float]]) -> None:
    queue = Queue([(s, at) for s, at, _ in tasks], slo=[slo for _, _, slo in tasks])
    places = range(len(tasks))
    due = [queue.enqueued[i] + queue.slo[i] for i in places]

    def feasible(chosen: Sequence[int]) -> bool:
        return on_time(queue, sorted(chosen, key=lambda i: due[i])) == len(chosen)

    best = max(size for size in range(len(tasks) + 1) for chosen in combinations(places, size) if feasible(chosen))
    now, met = NOW, 0
    left = list(places)
    while left:
        rest = Queue([(queue.seconds[i], queue.enqueued[i]) for i in left], slo=[queue.slo[i] for i in left])
        i = left.pop(rest.next("moore-hodgson", now=now))
        now += queue.seconds[i]
        met += now <= due[i]
    assert met == best


distinct = st.lists(
    st.tuples(quarters, arrivals, st.sampled_from([1.0, 2.0, 4.0])),
    min_size=1, max_size=9, unique_by=(lambda task: task[0], lambda task: task[1] + task[2], lambda task: task[1]),
)  # fmt: skip


@given(distinct)
def test_a_queue_kept_by_deadline_gives_the_same_task(tasks: list[tuple[float, float, float]]) -> None:
    ordered = sorted(tasks, key=lambda task: task[1] + task[2])
    mixed = Queue([task[:2] for task in tasks], slo=[task[2] for task in tasks])
    kept = Queue([task[:2] for task in ordered], slo=[task[2] for task in ordered])
    assert tasks[mixed.next("moore-hodgson")] == ordered[kept.next("moore-hodgson")]
    assert sum(mixed.postponed) == sum(kept.postponed)


@given(st.lists(st.tuples(quarters, st.integers(0, 2)), min_size=1, max_size=30), st.integers(1, 5), st.data())
@settings(max_examples=60)
def test_nobody_waits_for_ever_while_new_tasks_keep_coming(
    tasks: list[tuple[float, int]], cap: int, data: st.DataObject
) -> None:
    waiting, now, dispatches = list(tasks), NOW, 0
    queue = Queue([])
    names: list[int] = []
    came: dict[int, tuple[int, int]] = {}
    while waiting or names:
        for _ in range(data.draw(st.integers(0 if names else 1, 3), label="arrivals")):
            if waiting:
                came[len(came)] = (dispatches, len(names))
                names.append(len(came) - 1)
                queue.seconds.append(waiting.pop(0)[0])
                queue.enqueued.append(now)
                queue.slo.append(2.0)
                queue.postponed.append(0)
                queue.lost.append(0)
        if not names:
            continue
        place = queue.next("moore-hodgson", now=now, cap=cap)
        now += queue.seconds[place]
        dispatches += 1
        for vector in (queue.enqueued, queue.slo, queue.postponed, queue.lost):
            del vector[place]
        del queue.seconds[place]
        begun, ahead = came[names.pop(place)]
        assert dispatches - begun <= (ahead + 1) * (cap + 1)


def test_edf_worked_by_hand() -> None:
    assert Queue([(1.0, 0.0), (1.0, 1.0)], slo=[5.0, 2.0]).next("edf") == 1


@given(classes)
def test_edf_takes_the_first_deadline_and_fcfs_the_head(tasks: list[tuple[float, float, float]]) -> None:
    queue = Queue([task[:2] for task in tasks], slo=[task[2] for task in tasks])
    due = [task[1] + task[2] for task in tasks]
    assert queue.next("edf") == due.index(min(due))
    assert queue.next("fcfs") == 0


@pytest.mark.parametrize("name", ORDERS)
def test_a_single_task_runs(name: str) -> None:
    assert Queue([(1.0, 9.0)]).next(name) == 0
