from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies import kv_headroom_snapshot as kv_headroom
from weft_core.policies import remote_jsq_snapshot as remote_jsq
from weft_core.policies.ampd_snapshot import remote_seconds
from weft_core.policies.snapshot import PrefillTask
from weft_core_tests.profiles import decode_worker, prefill_worker, simple_profile

PROFILE = simple_profile()
queues = st.lists(st.builds(PrefillTask, st.integers(0, 9000), st.integers(1, 4000)), max_size=4).map(tuple)


def test_remote_jsq_counts_seconds_not_tasks() -> None:
    short = prefill_worker("a", queue=(PrefillTask(0, 100), PrefillTask(0, 100)))
    long = prefill_worker("b", queue=(PrefillTask(0, 900),))
    decision = remote_jsq.route(PrefillTask(0, 10), decode=decode_worker(), prefill=[long, short], profile=PROFILE)
    assert (decision.remote, decision.reason) == ("a", "shortest-finish")


def test_remote_jsq_breaks_ties_by_name_and_stays_local_alone() -> None:
    task = PrefillTask(0, 10)
    workers = [prefill_worker("b"), prefill_worker("a")]
    assert remote_jsq.route(task, decode=decode_worker(), prefill=workers, profile=PROFILE).remote == "a"
    alone = remote_jsq.route(task, decode=decode_worker(), prefill=[], profile=PROFILE)
    assert (alone.remote, alone.reason) == (None, "no-prefill-worker")


@given(st.lists(st.tuples(queues, st.sampled_from([1, 2])), min_size=1, max_size=5), st.integers(0, 5000))
def test_remote_jsq_finishes_first(workers: list[tuple[tuple[PrefillTask, ...], int]], history: int) -> None:
    task = PrefillTask(history, 700)
    prefill = [prefill_worker(f"p{i}", queue=q, degree=n) for i, (q, n) in enumerate(workers)]
    decision = remote_jsq.route(task, decode=decode_worker(), prefill=prefill, profile=PROFILE)
    finish = {w.worker: remote_seconds(task, decode_worker(), w, PROFILE) for w in prefill}
    assert decision.costs == finish
    assert finish[str(decision.remote)] == min(finish.values())


def test_binding_takes_the_most_headroom_then_fewest_sessions_then_the_name() -> None:
    workers = [
        decode_worker("d2", used=500, sessions=1),
        decode_worker("d1", used=500, sessions=1),
        decode_worker("d0", used=500, sessions=2),
        decode_worker("full", used=990),
        decode_worker("small", used=0, capacity=400),
    ]
    assert kv_headroom.bind(workers, need=100) == "d1"
    assert kv_headroom.bind(workers, need=501) is None
    assert kv_headroom.bind([], need=1) is None


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 1000)), max_size=8), st.integers(0, 1000))
def test_binding_always_has_room_and_nobody_has_more(sizes: list[tuple[int, int]], need: int) -> None:
    workers = [decode_worker(f"d{i}", used=used, capacity=cap) for i, (used, cap) in enumerate(sizes)]
    free = {w.worker: w.kv_capacity - w.kv_used for w in workers}
    bound = kv_headroom.bind(workers, need=need)
    if bound is None:
        assert all(room < need for room in free.values())
    else:
        assert free[bound] >= need
        assert free[bound] == max(free.values())
