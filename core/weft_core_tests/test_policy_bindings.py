"""Which decode worker a new session is bound to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.finish import hit_worth
from weft_core.policies.inputs import BindingInputs
from weft_core.policies.registry import BINDINGS

NAMES = st.sampled_from(sorted(BINDINGS))


def choose(
    name: str,
    needed_kv: float,
    free: list[float],
    *,
    capacity: list[float] | None = None,
    sessions: list[float] | None = None,
    hits: list[float] | None = None,
    load: list[float] | None = None,
    cursor: int = 0,
    in_memory: list[float] | None = None,
) -> int:
    none = [0.0] * len(free)
    full = [1000.0] * len(free)
    inputs = BindingInputs(
        needed_kv, free, capacity or full, sessions or none, hits or none, load or none, cursor,
        in_memory or hits or none,
    )  # fmt: skip
    return BINDINGS[name].bind(inputs)


def test_headroom_worked_by_hand() -> None:
    assert choose("kv-headroom", 100, [500, 500, 10], sessions=[2, 1, 0]) == 1
    assert choose("kv-headroom", 100, [500, 500], sessions=[1, 1]) == 0
    assert choose("kv-headroom", 501, [500, 400]) == -1
    assert choose("kv-headroom", 1, []) == -1
    assert choose("kv-headroom", 100, [500, 600], capacity=[1000, 4000]) == 0  # 40 % stay free against 12.5 %


def test_prefix_aware_worked_by_hand() -> None:
    assert choose("prefix-aware", 350, [900, 400, 500], hits=[0, 300, 300]) == 2
    assert choose("prefix-aware", 350, [900, 40, 50], hits=[0, 300, 300]) == 2  # 50 tokens hold the rest
    assert choose("prefix-aware", 350, [900, 400]) == 0  # no hit: headroom


def test_what_has_to_be_loaded_from_a_tier_counts_for_less_and_needs_room() -> None:
    assert hit_worth(300, 0.3, 0.0) == 300
    assert hit_worth(300, 0.3, 0.1) == pytest.approx(200)  # a third of the time that it saves
    assert hit_worth(300, 0.3, 0.4) == 0
    assert choose("prefix-aware", 350, [900, 900], hits=[200, 300], in_memory=[0, 300]) == 1
    for name in ("prefix-aware", "kv-aware"):
        assert choose(name, 350, [50, 350], hits=[300, 200], in_memory=[0, 0]) == 1  # a load fills GPU memory


def test_kv_aware_worked_by_hand() -> None:
    assert choose("kv-aware", 1000, [1000, 8000], capacity=[10_000, 10_000], hits=[600, 0]) == 1  # -0.3 against -0.2
    assert choose("kv-aware", 1000, [1000, 8000], capacity=[10_000, 10_000], hits=[800, 0]) == 0


def test_a_cache_of_one_token_is_full_or_empty() -> None:
    assert choose("kv-aware", 1, [1, 60], capacity=[1, 100]) == 0  # empty against 40 % in use
    assert choose("kv-headroom", 1, [1, 60], capacity=[1, 100]) == 1  # nothing stays free against 59 %


def test_a_worker_of_no_capacity_is_bound_only_where_nothing_is_needed() -> None:
    for name in BINDINGS:
        assert choose(name, 1, [0], capacity=[0]) == -1
        assert choose(name, 0, [0], capacity=[0]) == 0


def test_least_requests_worked_by_hand() -> None:
    assert choose("least-requests", 1, [9, 9, 9], load=[3, 1, 1], sessions=[0, 5, 4]) == 2


def test_round_robin_worked_by_hand() -> None:
    assert choose("round-robin", 5, [9, 4, 9], cursor=1) == 2
    assert choose("round-robin", 5, [9, 4, 9], cursor=3) == 0
    assert choose("round-robin", 5, [4, 9, 4], cursor=2) == 1
    assert choose("round-robin", 5, [4, 4, 4], cursor=2) == -1


workers = st.tuples(*[st.floats(0, 1000)] * 2, *[st.integers(0, 9).map(float)] * 2, st.floats(0, 1000))


@given(st.lists(workers, max_size=8), st.floats(0, 1000), NAMES, st.integers(0, 8))
def test_a_bound_worker_has_room_and_the_rules_best_figure(
    figures: list[tuple[float, ...]], needed_kv: float, name: str, cursor: int
) -> None:
    free, used, sessions, load, hits = ([float(f[i]) for f in figures] for i in range(5))
    capacity = [a + b for a, b in zip(free, used, strict=True)]
    chosen = BINDINGS[name].bind(BindingInputs(needed_kv, free, capacity, sessions, hits, load, cursor, hits))
    saved = hits if name in ("prefix-aware", "kv-aware") else [0.0] * len(free)
    roomy = [i for i in range(len(free)) if free[i] >= needed_kv - saved[i]]
    if not roomy:
        assert chosen == -1
        return
    assert chosen in roomy
    if name == "kv-headroom":
        headroom = [(free[i] - needed_kv) / max(capacity[i], 1.0) for i in range(len(free))]
        assert headroom[chosen] == max(headroom[i] for i in roomy)
    elif name == "prefix-aware":
        assert hits[chosen] == max(hits[i] for i in roomy)
    elif name == "kv-aware":
        scores = [hits[i] / max(needed_kv, 1.0) - 1.0 + free[i] / max(capacity[i], 1.0) for i in range(len(free))]
        assert scores[chosen] >= max(scores[i] for i in roomy) - 1e-9
    elif name == "least-requests":
        assert load[chosen] == min(load[i] for i in roomy)
    elif name == "round-robin":
        assert chosen == min(roomy, key=lambda i: (i - cursor) % len(free))


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 9)), min_size=1, max_size=8), st.integers(0, 10**6))
def test_among_like_workers_headroom_is_the_order_of_free_tokens(rows: list[tuple[int, int]], needed_kv: int) -> None:
    free, sessions = [float(f) for f, _ in rows], [float(s) for _, s in rows]
    roomy = [i for i in range(len(rows)) if free[i] >= needed_kv]
    expected = min(roomy, key=lambda i: (-free[i], sessions[i], i)) if roomy else -1
    assert choose("kv-headroom", needed_kv, free, capacity=[1e7] * len(rows), sessions=sessions) == expected


@given(st.integers(1, 7), st.integers(1, 40))
def test_round_robin_gives_everybody_the_same(count: int, sessions: int) -> None:
    given_to = [0] * count
    cursor = 0
    for _ in range(sessions):
        chosen = choose("round-robin", 1, [9.0] * count, cursor=cursor)
        given_to[chosen] += 1
        cursor = chosen + 1
    assert max(given_to) - min(given_to) <= 1


def test_of_equals_the_first_is_bound() -> None:
    for policy in ("kv-headroom", "prefix-aware", "kv-aware", "least-requests"):
        assert choose(policy, 100, [500, 500, 500], hits=[10, 10, 10], load=[1, 1, 1], sessions=[2, 2, 2]) == 0
    assert choose("least-requests", 100, [500, 500], load=[1, 1], sessions=[1, 2]) == 0
    assert choose("least-requests", 100, [500, 500], load=[1, 1], sessions=[2, 1]) == 1
    assert choose("prefix-aware", 100, [500, 500], hits=[10, 10], sessions=[2, 1]) == 1
    assert choose("prefix-aware", 500, [490, 489], hits=[10, 10]) == 0, "just enough is enough"
    assert choose("prefix-aware", 500, [489, 489], hits=[10, 10]) == -1
