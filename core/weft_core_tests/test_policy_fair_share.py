"""Tenants get what their weights say while they wait, all there is while they are alone, and nobody starves."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.inputs import MAX_WINDOW, QueueInputs
from weft_core.policies.qos.fair_share import MOST_TENANTS, FairShares, next_by_share
from weft_core.policies.registry import ORDERS


def served(shares: FairShares, tenants: str, rounds: int, seconds: float = 1.0) -> str:
    order = ""
    for _ in range(rounds):
        tenant = shares.first(tenants)
        shares.serve(tenant, seconds)
        order += tenant
    return order


def test_weights_worked_by_hand() -> None:
    assert served(FairShares({"a": 2.0}), "ab", 6) == "abaaba"


def test_who_was_idle_has_saved_nothing_up() -> None:
    shares = FairShares({})
    assert served(shares, "a", 50) == "a" * 50
    assert Counter(served(shares, "ab", 20))["b"] in (10, 11)


@given(
    st.dictionaries(st.sampled_from("abc"), st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=3),
    st.lists(st.floats(0.1, 3), min_size=60, max_size=300),
)
def test_work_goes_by_the_weights_within_one_task_each(weights: dict[str, float], costs: list[float]) -> None:
    shares, work = FairShares(weights), dict.fromkeys(weights, 0.0)
    for cost in costs:
        tenant = shares.first(weights)
        shares.serve(tenant, cost)
        work[tenant] += cost
    normal = [work[name] / weight for name, weight in weights.items()]
    assert max(normal) - min(normal) <= 2 * 3.0 / min(weights.values())


def test_clocks_of_tenants_that_came_once_are_not_kept_for_ever() -> None:
    shares = FairShares({})
    for i in range(3 * MOST_TENANTS):
        shares.serve(f"t{i}", 1.0)
        shares.serve("always", 2.0)
    assert len(shares._ahead) <= MOST_TENANTS + 1


rows = st.lists(
    st.tuples(st.floats(0.01, 3), st.floats(0, 10), st.sampled_from([1.0, 5.0]), st.integers(0, 3), st.integers(0, 1),
              st.integers(0, 1), st.sampled_from("abc")),
    min_size=1, max_size=20,
)  # fmt: skip


@given(st.sampled_from(sorted(set(ORDERS) - {"ampd-window"})), rows, st.integers(2, 9))
def test_class_then_tenant_then_order_and_the_oldest_at_the_cap(
    name: str, tasks: list[tuple[float, float, float, int, int, int, str]], cap: int
) -> None:
    seconds, enqueued, slo, postponed, lost, priority, tenants = (list(column) for column in zip(*tasks, strict=True))
    shares = FairShares({"a": 3.0})
    shares.serve("a", 1.0)
    shares.serve("b", 1.0)
    counts = list(postponed)
    queue = QueueInputs(10.0, seconds, enqueued, slo, counts, lost, 3, cap, [0] * MAX_WINDOW)
    chosen = next_by_share(ORDERS[name], queue, [float(p) for p in priority], tenants, shares)
    oldest = enqueued.index(min(enqueued))
    top = [i for i, p in enumerate(priority) if p == max(priority)]
    turn = shares.first([tenants[i] for i in top])
    mine = [i for i in top if tenants[i] == turn]
    if postponed[oldest] >= cap and len(mine) < len(tasks):
        assert chosen == oldest
    elif len(mine) < len(tasks):
        assert chosen in mine
        if oldest not in mine:
            assert counts[oldest] == postponed[oldest] + 1


def test_a_waiting_tenant_is_served_within_the_cap_beside_a_flood() -> None:
    tasks = [("flood", 0.1 * i) for i in range(200)] + [("small", 5.0)]
    shares = FairShares({"flood": 100.0})
    ran = []
    while tasks and tasks[-1][0] == "small":
        count = len(tasks)
        queue = QueueInputs(
            30.0, [1.0] * count, [at for _, at in tasks], [9.0] * count, [0] * count, [0] * count, 3, 16,
            [0] * MAX_WINDOW,
        )  # fmt: skip
        place = next_by_share(ORDERS["fcfs"], queue, [0.0] * count, [name for name, _ in tasks], shares)
        name, _ = tasks.pop(place)
        shares.serve(name, 1.0)
        ran.append(name)
    assert len(ran) <= 102
