import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.ampd_snapshot import local_seconds, remote_seconds, route
from weft_core.policies.snapshot import Decision, PrefillTask, PrefillWorkerView
from weft_core.slo import Slo
from weft_core_tests.profiles import decode_worker, prefill_worker, simple_profile

PROFILE = simple_profile()
SLO = Slo(ttft_s=2.0, itl_s=0.05)
TASK = PrefillTask(history=2000, increment=1000)


def decide(
    prefill: list[PrefillWorkerView],
    *,
    itl: float | None = 0.05,
    order: list[int] | None = None,
    local_queue: tuple[PrefillTask, ...] = (),
) -> Decision:
    return route(
        TASK,
        decode=decode_worker(itl=itl, queue=local_queue),
        prefill=prefill,
        profile=PROFILE,
        slo=SLO,
        alpha=0.9,
        beta=0.85,
        order=order if order is not None else list(range(len(prefill))),
    )


def test_equations_1_and_2_worked_by_hand() -> None:
    # T_pre(2000, 1000) = 1 s at degree 1 and 0.5 s at degree 2; queued tasks of 500 and 1,500 tokens.
    queue = (PrefillTask(0, 500), PrefillTask(9000, 1500))
    assert local_seconds(TASK, decode_worker(queue=queue), PROFILE) == pytest.approx(1.0 + 0.5 + 1.5)
    worker = prefill_worker("p", degree=2, queue=queue)
    # t_pre 0.5 + (T_kv(2000; 1 -> 2) = 0.3) + (T_kv(1000; 2 -> 1) = 0.3) + queue (0.25 + 0.75)
    assert remote_seconds(TASK, decode_worker(), worker, PROFILE) == pytest.approx(0.5 + 0.3 + 0.3 + 1.0)


def test_a_first_round_reads_no_history() -> None:
    first = PrefillTask(history=0, increment=1000)
    assert remote_seconds(first, decode_worker(), prefill_worker("p"), PROFILE) == pytest.approx(1.0 + 0.2)


def test_lines_1_to_3_take_the_first_worker_with_slack_in_the_given_order() -> None:
    workers = [prefill_worker("a", ttft=1.0), prefill_worker("b", ttft=1.81), prefill_worker("c", ttft=1.8)]
    assert decide(workers, order=[1, 2, 0]) == Decision("c", "ttft-slack")
    assert decide(workers, order=[0, 1, 2]).remote == "a"


def test_a_worker_without_samples_has_slack() -> None:
    assert decide([prefill_worker("a", ttft=9.0), prefill_worker("b", ttft=None)]).remote == "b"


def test_lines_4_to_5_stay_local_when_decoding_has_slack() -> None:
    busy = [prefill_worker("a", ttft=1.9)]
    assert decide(busy, itl=0.0425) == Decision(None, "itl-slack")
    assert decide(busy, itl=None).reason == "itl-slack"


def test_lines_6_to_9_take_the_least_cost() -> None:
    busy = [
        prefill_worker("a", ttft=1.9, queue=(PrefillTask(0, 3000),)),
        prefill_worker("b", ttft=1.9, degree=2, queue=(PrefillTask(0, 100),)),
    ]
    decision = decide(busy, local_queue=(PrefillTask(0, 400),))
    # local 1.4; a 1.5 + 3.0; b 0.5 + 0.6 + 0.05
    assert decision.costs == pytest.approx({"local": 1.4, "a": 4.5, "b": 1.15})
    assert (decision.remote, decision.reason) == ("b", "least-cost")
    assert decide(busy).remote is None  # local 1.0 beats 1.15


def test_without_prefill_workers_the_task_stays_local() -> None:
    assert decide([], itl=9.0).remote is None


def test_an_order_that_is_no_permutation_is_refused() -> None:
    with pytest.raises(ValueError, match="order"):
        decide([prefill_worker("a")], order=[0, 0])


ttfts = st.one_of(st.none(), st.floats(0, 4))
queues = st.lists(st.builds(PrefillTask, st.integers(0, 9000), st.integers(1, 4000)), max_size=4).map(tuple)


@given(st.data(), st.lists(st.tuples(ttfts, queues, st.sampled_from([1, 2])), max_size=5), ttfts, queues)
def test_the_decision_is_the_algorithms(
    data: st.DataObject,
    workers: list[tuple[float | None, tuple[PrefillTask, ...], int]],
    itl: float | None,
    local_queue: tuple[PrefillTask, ...],
) -> None:
    prefill = [prefill_worker(f"p{i}", ttft=t, queue=q, degree=n) for i, (t, q, n) in enumerate(workers)]
    order = data.draw(st.permutations(range(len(prefill))))
    decision = decide(prefill, itl=itl, order=order, local_queue=local_queue)
    slack = [prefill[i].worker for i in order if workers[i][0] is None or (workers[i][0] or 0) <= 0.9 * 2.0]
    if slack:
        assert decision == Decision(slack[0], "ttft-slack")
    elif itl is None or itl <= 0.85 * 0.05:
        assert decision == Decision(None, "itl-slack")
    else:
        assert set(decision.costs) == {"local", *(w.worker for w in prefill)}
        assert decision.costs[decision.remote or "local"] == min(decision.costs.values())
