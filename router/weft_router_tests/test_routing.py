"""The policy sees what was sent since the last heartbeat, and never fails a request."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from weft_core.cost import CostProfile
from weft_core.heartbeat import QueueEntry, WorkerRecord
from weft_core.policies.estimates import EngineEstimate
from weft_core.policies.finish import overlapped_finish
from weft_core.policies.inputs import RoutingInputs
from weft_core.policies.live import RoutingEvidence
from weft_core.policies.registry import POLICIES
from weft_core.policies.slices import Slicing
from weft_core.policies.snapshot import Circumstances, Decision, DecodeWorkerView, PrefillTask, PrefillWorkerView
from weft_core.profile_json import profile_from_json
from weft_core.slo import Slo
from weft_router.config import RoutingConfig
from weft_router.routing.in_flight_prefills import InFlightPrefills
from weft_router.routing.policy import ClassRules, EarlyRejection, RoutingPolicy
from weft_router.telemetry.sliding_window import SlidingWindow
from weft_router_tests.stack import PROFILE

DECODE = DecodeWorkerView(
    "d0", 1, 0.0, 0, windowed_itl=None, kv_used=0, kv_capacity=1000, batch=0, context=0
)  # fmt: skip
TASK = PrefillTask(0, 100)
FIRST = Circumstances()
COSTS = profile_from_json(PROFILE)
SLOW = {"alpha": 3.0, "perToken": 0.0, "perPair": 0.0, "perContextToken": 0.0}


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def policy(name: str, *, profile: dict[str, Any] | None = None, **routing: object) -> RoutingPolicy:
    config = RoutingConfig.model_validate({"policy": name, **routing})
    costs = profile_from_json(profile or PROFILE)
    return RoutingPolicy(config, profile=costs, slo=Slo(ttft_s=1, itl_s=0.05), salt="d0", clock=lambda: 0.0)


def queue_seconds(tasks: Sequence[PrefillTask], *, costs: CostProfile = COSTS, degree: int = 1) -> float:
    """Return the sum of T_pre over a prefill queue; NaN when the profile does not know the degree."""
    engine = EngineEstimate(costs, degree, None)
    return sum((engine.prefill(task.history, task.increment) for task in tasks), 0.0)


def view(name: str, *, ttft: float | None = None, queue: int = 0, degree: int = 1) -> PrefillWorkerView:
    queue_s = queue_seconds([TASK] * queue, degree=degree)
    return PrefillWorkerView(name, degree, queue_s, queue, ttft)


def decide(rule: RoutingPolicy, prefill: list[PrefillWorkerView], known: Circumstances = FIRST) -> Decision:
    return rule.route(TASK, decode=DECODE, prefill=prefill, known=known)


def test_ampd_routes_as_printed() -> None:
    rule = policy("ampd")
    assert decide(rule, []).reason == "no-prefill-worker"
    assert decide(rule, [view("a", ttft=2.0), view("b", ttft=0.1)]).remote == "b"
    assert decide(rule, [view("a", ttft=2.0)]).reason == "itl-slack"


@pytest.mark.parametrize("name", ["ampd", "always-remote"])
def test_the_random_order_is_repeatable(name: str) -> None:
    both = [view("a"), view("b")]
    rule, same = policy(name, seed=1), policy(name, seed=1)
    chosen = [decide(rule, both).remote for _ in range(50)]
    assert set(chosen) == {"a", "b"}
    assert chosen == [decide(same, both).remote for _ in range(50)]


def test_shortest_queue_wins_also_when_the_profile_cannot_predict() -> None:
    assert decide(policy("remote-jsq"), [view("a", queue=3), view("b", queue=1)]).remote == "b"
    found = decide(policy("remote-jsq"), [view("a", queue=3, degree=8), view("b", queue=1, degree=8)])
    assert (found.remote, found.reason) == ("b", "profile-incomplete")


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_can_be_chosen_and_decides(name: str) -> None:
    found = decide(policy(name), [view("a"), view("b")], Circumstances(later=True, answer=100, rate=1))
    assert found.remote in (None, "a", "b")
    assert decide(policy(name), []).reason == ("colocated" if name == "colocated" else "no-prefill-worker")


def test_fixed_x_draws_its_share() -> None:
    rule = policy("fixed-x", params={"x": 0.5}, seed=3)
    later = Circumstances(later=True)
    here = sum(decide(rule, [view("a")], later).remote is None for _ in range(400))
    assert 150 < here < 250
    assert decide(policy("fixed-x", params={"x": 1}), [view("a")], later).remote is None
    assert decide(policy("fixed-x", params={"x": 0}), [view("a")], later).remote == "a"


def test_the_order_goes_with_the_policy_unless_it_is_given() -> None:
    def order(**routing: object) -> str:
        return RoutingConfig.model_validate(routing).order

    assert order() == "moore-hodgson"
    assert order(policy="ampd") == "ampd-window"
    assert order(policy="weft") == "moore-hodgson"
    assert order(policy="remote-jsq") == "fcfs"
    assert order(policy="remote-jsq", order="edf") == "edf"


@pytest.mark.parametrize(
    ("routing", "message"),
    [
        ({"policy": "ampd", "params": {"alpha": 1}}, "params: the parameters of ampd are the fields alpha and beta"),
        ({"policy": "ampd", "alpha": 3}, "params.alpha: 3 is not between 0 and 2"),
        ({"policy": "fixed-x", "params": {"y": 1}}, "params.y: fixed-x has no such parameter; it has x"),
        ({"policy": "fixed-x", "params": {"x": 2}}, "params.x: 2 is not between 0 and 1"),
        ({"policy": "best"}, "policy\n"),
    ],
)
def test_what_the_router_cannot_do_is_refused(routing: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RoutingConfig.model_validate(routing)


def test_what_was_sent_since_the_heartbeat_counts_once() -> None:
    record = WorkerRecord(
        "p0", "prefill", "http://x", 1, 0, queue=(QueueEntry(1, 2, "mine"), QueueEntry(3, 4, "theirs"))
    )
    now = 7.0
    sent = InFlightPrefills(COSTS, clock=lambda: now)

    def queued(of: WorkerRecord) -> tuple[int, float]:
        return sent.view(of).queued, sent.view(of).queue_s

    def predicted(*tasks: PrefillTask) -> tuple[int, float]:
        return len(tasks), queue_seconds(tasks)

    assert sent.view(record).used_at == -math.inf
    sent.add("p0", "mine", PrefillTask(1, 2))
    sent.add("p0", "new", PrefillTask(5, 6))
    assert queued(record) == predicted(PrefillTask(1, 2), PrefillTask(3, 4), PrefillTask(5, 6))
    assert sent.view(record).used_at == 7.0
    sent.remove("p0", "new")
    sent.remove("p0", "unknown")
    assert queued(record) == predicted(PrefillTask(1, 2), PrefillTask(3, 4))
    assert sent.view(record) is sent.view(record)
    assert queued(replace(record, queue=(), seq=1)) == predicted(PrefillTask(1, 2))
    sent.forget(["p1"])
    assert sent.view(record).used_at == -math.inf


def test_a_queue_is_predicted_by_the_profile_of_its_pool() -> None:
    slow = profile_from_json({**PROFILE, "degrees": [{**PROFILE["degrees"][0], "prefill": [SLOW]}]})
    sent = InFlightPrefills(COSTS, pools={"fast": COSTS, "slow": slow}, clock=lambda: 0.0)
    entries = (QueueEntry(0, 100, "x"),)
    for pool, costs in (("fast", COSTS), ("slow", slow), ("gone", COSTS)):
        seen = sent.view(WorkerRecord(f"p-{pool}", "prefill", "http://x", 1, 0, pool=pool, queue=entries))
        assert (seen.pool, seen.queue_s) == (pool, queue_seconds([TASK], costs=costs))


def test_a_worker_that_is_slower_than_its_profile_counts_as_slow() -> None:
    rule = policy("remote-jsq")
    decided = decide(rule, [replace(view("slow"), slowdown=2.0), replace(view("usual"), slowdown=1.0)])
    assert decided.remote == "usual"
    (alone,) = [one.ttft_s for one in decided.alternatives() if one.option == "usual"]
    (twice,) = [one.ttft_s for one in decided.alternatives() if one.option == "slow"]
    assert alone < twice < 2 * alone + 1e-9  # reading and handing over KV takes as long as ever
    sent = InFlightPrefills(COSTS, clock=lambda: 0.0)
    entries = (QueueEntry(0, 100, "x"),)
    record = WorkerRecord("p0", "prefill", "http://x", 1, 0, queue=entries, slowdown=2.0)
    seen = sent.view(record)
    assert seen.slowdown == 2.0
    assert seen.queue_s == 2 * queue_seconds([PrefillTask(0, 100)])


def test_a_slow_engine_gets_shorter_slices() -> None:
    rule = classed(ClassRules(), Time(), mode="imd")
    beside = replace(DECODE, batch=8, context=4000)
    usual, slow = (
        rule.next_slice(at=0, remaining=10**6, decode=replace(beside, slowdown=factor)) for factor in (1.0, 2.0)
    )
    assert usual is not None
    assert slow is not None
    assert slow < usual


def test_what_is_over_does_not_count_though_a_heartbeat_still_names_it() -> None:
    record = WorkerRecord("p0", "prefill", "http://x", 1, 0, queue=(QueueEntry(1, 2, "a"), QueueEntry(3, 4, "theirs")))
    now = 7.0
    sent = InFlightPrefills(COSTS, clock=lambda: now)
    sent.add("p0", "a", PrefillTask(1, 2))
    assert sent.view(record).queued == 2
    sent.remove("p0", "a")
    assert sent.view(record).queued == 1
    assert sent.view(replace(record, seq=1)).queued == 1, "written before the answer, read after it"
    sent.add("p0", "a", PrefillTask(1, 2))
    assert sent.view(record).queued == 2, "sent again"
    sent.remove("p0", "a")
    now += 3.1
    assert sent.view(replace(record, seq=2)).queued == 2, "a heartbeat that new knows better"
    sent.remove("p0", "a")
    sent.add("p0", "b", PrefillTask(1, 2))
    assert sent.view(replace(record, seq=3)).queued == 2, "theirs and b"
    now += 3.1
    sent.remove("p0", "b")
    assert sent.view(replace(record, seq=3)).queued == 2, "it is still named, so it runs there"


def test_what_was_over_in_the_last_three_seconds_is_known_and_nothing_before() -> None:
    record = WorkerRecord("p0", "prefill", "http://x", 1, 0)
    time = Time()
    sent = InFlightPrefills(COSTS, clock=time)

    def named(*tasks: str) -> int:
        return sent.view(replace(record, queue=tuple(QueueEntry(0, 9, task) for task in tasks))).queued

    for i in range(100):  # one each tenth of a second
        time.now = i / 10
        sent.add("p0", f"t{i}", TASK)
        sent.remove("p0", f"t{i}")
    assert named("t99", "t70") == 0
    assert named("t68", "t0") == 2
    assert named("t99", "t68", "theirs") == 2
    time.now += 2.5
    assert named("t99", "t70") == 1
    sent.add("p0", "t99", TASK)
    assert named("t99") == 1, "sent again, so it is there"
    sent.add("p0", "t99", PrefillTask(0, 50))
    assert (named("t99"), sent.sent("p0")) == (1, 1), "the same one"
    sent.remove("p0", "t99")
    sent.remove("p0", "t99")
    assert (named("t99"), named(), sent.sent("p0")) == (0, 0, 0), "gone once, however often that is said"


def test_what_is_under_way_to_a_worker_that_is_forgotten_still_counts() -> None:
    record = WorkerRecord("p0", "prefill", "http://x", 1, 0)
    sent = InFlightPrefills(COSTS, clock=lambda: 7.0)
    sent.add("p0", "a", TASK)
    sent.add("p0", "b", TASK)
    sent.remove("p0", "b")
    sent.forget([])
    assert (sent.view(record).queued, sent.sent("p0")) == (1, 1)
    sent.remove("p0", "a")
    assert (sent.view(record).queued, sent.sent("p0")) == (0, 0)
    sent.forget([])
    sent.remove("p0", "a")
    assert sent.view(replace(record, queue=(QueueEntry(0, 9, "a"),))).queued == 0


def test_all_views_are_one_tuple_until_one_changes() -> None:
    records = [WorkerRecord(f"p{i}", "prefill", "http://x", 1, 0, queue=(QueueEntry(0, 9, "x"),)) for i in range(3)]
    sent = InFlightPrefills(COSTS, clock=lambda: 7.0)
    first = sent.views(records)
    assert sent.views(list(records)) is first
    sent.add("p1", "mine", PrefillTask(5, 6))
    second = sent.views(records)
    assert [a is b for a, b in zip(first, second, strict=True)] == [True, False, True]
    assert second[1].queued == 2
    assert sent.views(records) is second
    beaten = [records[0], records[1], replace(records[2], seq=1, queue=())]
    assert [view.queued for view in sent.views(beaten)] == [1, 2, 0]
    assert [view.worker for view in sent.views(beaten[::-1])] == ["p2", "p1", "p0"]
    sent.remove("p1", "mine")
    assert [view.queued for view in sent.views(beaten)] == [1, 1, 0]
    sent.forget(["p0"])
    assert [view.worker for view in sent.views(records[:1])] == ["p0"]


steps = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "beat", "list"]), st.integers(0, 3), st.integers(0, 4)), max_size=40
)


@given(steps)
def test_kept_views_are_those_made_anew(events: list[tuple[str, int, int]]) -> None:
    time = Time()
    kept = InFlightPrefills(COSTS, clock=time)
    log: list[tuple[str, str, str]] = []
    records = [WorkerRecord(f"p{i}", "decode" if i == 3 else "prefill", "http://x", 1, 100) for i in range(4)]
    for kind, worker, task in events:
        time.now += 0.5
        name, task_id = f"p{worker}", f"t{task}"
        if kind == "add":
            kept.add(name, task_id, PrefillTask(task, 10))
            log.append(("add", name, task_id))
        elif kind == "remove":
            kept.remove(name, task_id)
            log.append(("remove", name, task_id))
        elif kind == "beat":
            entry = QueueEntry(task, 10, task_id)
            records[worker] = replace(records[worker], seq=records[worker].seq + 1, queue=(entry,), batch=task)
        anew = InFlightPrefills(COSTS, clock=time)
        for what, where, which in log:
            if what == "add":
                anew.add(where, which, PrefillTask(int(which[1:]), 10))
            else:
                anew.remove(where, which)
        mine, theirs = kept.views(records), anew.views(records)
        if kind == "list":
            mine = tuple(map(kept.view, records))
        for one, other in zip(mine, theirs, strict=True):
            # what is over ends 3 s after the removal, which the new one dates to now
            assert one.queued >= other.queued
            if one.queued == other.queued:
                # by their texts: an unknown figure is NaN, which need not be the same object
                assert repr(summed(one)) == repr(summed(other))


def summed(view: PrefillWorkerView) -> PrefillWorkerView:
    """Return a view without what differs by when it was used, or by the order in which its queue was summed up."""
    return replace(view, used_at=0.0, queue_s=round(view.queue_s, 12))


def test_a_worker_that_decodes_has_room_beside_its_sessions() -> None:
    record = WorkerRecord("d1", "decode", "http://x", 1, 1000, kv_used=900, batch=3)
    in_flight = InFlightPrefills(COSTS)
    prefill = replace(record, worker="p0", role="prefill", capacity=500)
    assert in_flight.with_room([record, prefill], 100) == [record, prefill]
    assert in_flight.with_room([record, prefill], 101) == [prefill]
    assert in_flight.with_room([record, prefill], 501) == []
    assert in_flight.with_room([replace(prefill, capacity=0)], 10**9) != [], "one that does not say holds anything"
    for worker in ("d1", "p0"):
        in_flight.add(worker, "c", PrefillTask(40, 20))
    assert in_flight.with_room([record, prefill], 41) == [prefill], "prefills on their way need room, too"
    assert in_flight.with_room([record, prefill], 40) == [record, prefill]


def classed(rules: ClassRules, time: Time, **routing: object) -> RoutingPolicy:
    config = RoutingConfig.model_validate({"policy": "weft", **routing})
    return RoutingPolicy(
        config, profile=COSTS, slo=Slo(ttft_s=1, itl_s=0.05), salt="d0", slicing=Slicing(), rules=rules, clock=time
    )


def test_wrong_predictions_are_corrected_until_they_are_right_again() -> None:
    time = Time()
    rule = classed(ClassRules(), time)
    for i in range(40):
        time.now = i * 0.1
        found = decide(rule, [view("a"), view("b", queue=3)])
        rule.observe(found, 4.0 * found.ttft_s + 1.0)
    assert not rule.trusted
    found = decide(rule, [view("a", queue=2), view("b", queue=1)])
    assert found.reason == "predictions-wrong"
    assert found.ttft_s > 0
    time.now = 100.0
    assert rule.trust.trusted(time.now)
    assert decide(rule, [view("a"), view("b")]).reason != "predictions-wrong"


def test_prefill_workers_later_than_predicted_get_fewer_prefills_and_not_all_of_them() -> None:
    time = Time()
    rule = classed(ClassRules(), time, mode="imd")
    busy = replace(DECODE, queue_s=0.9, queued=1, queue_tokens=2000.0, queue_work=2e6)

    def chosen() -> Decision:
        return rule.route(TASK, decode=busy, prefill=[view("a", queue=2)], known=FIRST)

    remote = chosen()
    assert remote.remote == "a"
    for i in range(40):
        time.now = i * 0.1
        rule.observe(remote, 5.0)
    local = chosen()
    assert local.remote is None, "the decode worker's queue is the shorter one by now"
    for i in range(40):
        time.now = 4.0 + i * 0.1
        rule.observe(local, 40.0)
    assert chosen().remote == "a", "local prefills proved later still"


def test_a_correction_lasts_as_long_as_predictions_without_it_are_wrong() -> None:
    time = Time()
    rule = classed(ClassRules(), time, policy="remote-jsq")
    for i in range(1000):
        time.now = i * 0.1
        found = decide(rule, [view("a")])
        rule.observe(found, 4.0 * found.uncorrected_s + 1.0)
    assert found.remote == "a"
    assert not rule.trusted
    assert found.reason == "predictions-wrong"
    assert found.ttft_s == pytest.approx(rule.trust.correction("remote", time.now) * found.uncorrected_s)
    assert rule.trust.correction("remote", time.now) > 2.0
    for _ in range(1000):
        time.now += 0.1
        found = decide(rule, [view("a")])
        rule.observe(found, found.uncorrected_s)
    assert rule.trusted, "predictions are right again"


def test_a_first_token_is_compared_with_what_was_predicted_when_its_round_was_routed() -> None:
    time = Time()
    rule = classed(ClassRules(), time, policy="remote-jsq")
    rounds = [decide(rule, [view("a", queue=30)]) for _ in range(100)]
    for found in rounds:
        time.now += 0.1
        rule.observe(found, 3.0 * found.ttft_s)
    assert rule.trust.correction("remote", time.now) == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("policy", ["ppd", "always-remote"])
def test_policies_that_do_not_predict_are_not_corrected(policy: str) -> None:
    time = Time()
    rule = classed(ClassRules(), time, policy=policy)
    for i in range(40):
        time.now = i * 0.1
        found = decide(rule, [view("a", queue=30)])
        rule.observe(found, 9.0 * found.uncorrected_s)
    for i in range(700):
        time.now = 4.0 + i * 0.1
        found = decide(rule, [view("a", queue=30)])
        assert found.reason != "predictions-wrong"
        rule.observe(found, found.uncorrected_s)
    assert rule.trusted
    assert rule.trust.correction("remote", time.now) == 1.0


@pytest.mark.parametrize(("policy", "correction"), [("ampd", None), ("weft", "off")])
def test_no_prediction_is_corrected_where_that_is_off_as_for_ampd_by_default(
    policy: str, correction: str | None
) -> None:
    time = Time()
    given = {} if correction is None else {"predictionCorrection": correction}
    rule = classed(ClassRules(), time, policy=policy, **given)
    for i in range(40):
        time.now = i * 0.1
        found = decide(rule, [view("a", queue=3)])
        rule.observe(found, 9.0 * found.uncorrected_s + 1.0)
    assert not rule.trusted, "the metric still says that they are wrong"
    found = decide(rule, [view("a", queue=3)])
    assert found.reason != "predictions-wrong"
    assert found.ttft_s == pytest.approx(found.uncorrected_s)


def test_ampd_is_corrected_where_a_service_asks_for_it() -> None:
    time = Time()
    rule = classed(ClassRules(), time, policy="ampd", predictionCorrection="auto")
    for i in range(40):
        time.now = i * 0.1
        found = decide(rule, [view("a", queue=3)])
        rule.observe(found, 9.0 * found.uncorrected_s + 1.0)
    assert decide(rule, [view("a", queue=3)]).reason == "predictions-wrong"


def test_a_correction_does_not_change_for_how_long_others_stall() -> None:
    rule = classed(ClassRules(), Time(), mode="ia")

    def inputs(*correction: float) -> RoutingInputs:
        queue = [view("a", queue=2)]
        found = rule._rule.decide(TASK, decode=DECODE, prefill=queue, known=FIRST, correction=correction)  # type: ignore[arg-type]
        assert isinstance(found.evidence, RoutingEvidence)
        return rule._rule.inputs(found.evidence)

    plain, corrected = inputs(1.0, 1.0), inputs(3.0, 2.0)
    assert corrected.local.prefill_s == plain.local.prefill_s
    assert corrected.local.queue_s + corrected.local.prefill_s == pytest.approx(
        3.0 * (plain.local.queue_s + plain.local.prefill_s)
    )
    assert overlapped_finish(corrected.remote[0]) == pytest.approx(2.0 * overlapped_finish(plain.remote[0]))


def test_a_class_may_be_refused_early_with_a_time_to_come_back() -> None:
    time = Time()
    late = [view("a", queue=1000)]
    busy = replace(DECODE, queue_s=9.0, queue_tokens=100_000.0, queue_work=1e9)

    def asked(rules: ClassRules) -> EarlyRejection | None:
        rule = classed(rules, time)
        return rule.refuse(rule.route(TASK, decode=busy, prefill=late, known=FIRST))

    assert asked(ClassRules()) is None
    again = asked(ClassRules(tolerance=1.0))
    assert again is not None
    assert again.reason == "predicted-ttft"
    assert again.retry_s >= 1.0
    assert asked(ClassRules(tolerance=100.0)) is None
    rule = classed(ClassRules(tolerance=1.0), time)
    assert rule.refuse(rule.route(TASK, decode=busy, prefill=[view("a")], known=FIRST)) is None
    assert rule.refuse(Decision(None, "degraded")) is None


def test_a_class_is_refused_early_where_one_more_answer_would_make_all_too_slow() -> None:
    time = Time()
    full = replace(DECODE, batch=20_000, context=20_000_000)
    rule = classed(ClassRules(tolerance=1.0), time)
    found = rule.refuse(rule.route(TASK, decode=full, prefill=[view("a")], known=replace(FIRST, answer=200.0)))
    assert found is not None
    assert found.reason == "predicted-itl"
    assert found.retry_s >= 1.0
    alone = replace(DECODE, batch=0, context=20_000_000)
    found = rule.refuse(rule.route(TASK, decode=alone, prefill=[view("a")], known=FIRST))
    assert found is None, "nobody's end would make it faster"
    plain = classed(ClassRules(), time)
    assert plain.refuse(plain.route(TASK, decode=full, prefill=[view("a")], known=FIRST)) is None


def test_the_top_class_races_a_second_prefill_when_the_first_may_be_late() -> None:
    time = Time()
    both = [view("a", queue=25), view("b", queue=26)]
    busy = replace(DECODE, queue_s=9.0, queue_tokens=100_000.0, queue_work=1e9)
    top = classed(ClassRules(priority=2), time, hedge={"mode": "auto", "risk": 0.2})
    found = top.route(TASK, decode=busy, prefill=both, known=FIRST)
    assert (found.remote, top.hedge(found, only_local=False)) == ("a", "b")
    calm = top.route(TASK, decode=busy, prefill=[view("a"), view("b")], known=FIRST)
    assert top.hedge(calm, only_local=False) is None
    plain = classed(ClassRules(priority=1), time, hedge={"mode": "auto", "risk": 0.2})
    assert plain.hedge(plain.route(TASK, decode=busy, prefill=both, known=FIRST), only_local=False) is None
    off = classed(ClassRules(priority=2), time)
    assert off.hedge(off.route(TASK, decode=busy, prefill=both, known=FIRST), only_local=False) is None


@pytest.mark.parametrize(("local_only", "queue", "reason"), [
    ("pressure", 4, "degraded"), ("pressure", 3, ""), ("always", 0, "degraded"), ("off", 9, ""),
])  # fmt: skip
def test_a_low_class_keeps_off_busy_prefill_workers(local_only: Any, queue: int, reason: str) -> None:
    rule = classed(ClassRules(local_only=local_only), Time())
    found = decide(rule, [view("a", queue=queue), view("b", queue=queue)])
    assert (found.reason == "degraded") == (reason == "degraded")
    assert found.remote is None or not reason


def test_slices_follow_the_batch() -> None:
    rule = classed(ClassRules(), Time(), mode="imd")
    found = decide(rule, [view("a", queue=99)])
    assert found.reason in ("local-chunked", "remote-cheaper")
    few = rule.next_slice(at=0, remaining=100_000, decode=replace(DECODE, batch=8, context=4000))
    many = rule.next_slice(at=0, remaining=100_000, decode=DECODE)
    assert few is not None
    assert many == 4096
    assert few % 16 == 0
    assert few < many


def test_the_window_forgets_after_its_time() -> None:
    window = SlidingWindow(10.0)
    assert window.mean(0.0) is None
    window.add(0.1, 2.0)
    window.add(5.0, 1.0, 3)
    assert window.rate(9.9) == 0.4
    assert window.mean(9.9) == 0.75
    assert window.mean(11.0) == 1.0 / 3
    assert window.mean(20.0) is None


def test_ppd_learns_from_what_rounds_took_and_now_and_then_goes_the_other_way() -> None:
    later = Circumstances(later=True, answer=100.0, rate=1.0)
    task = PrefillTask(2000, 400)
    rule = policy("ppd")

    def share() -> float:
        found = [rule.route(task, decode=DECODE, prefill=[view("a")], known=later) for _ in range(400)]
        assert {decision.reason for decision in found} == {"table", "share"}
        return sum(decision.remote is None for decision in found) / len(found)

    assert share() > 0.9, "the built-in table prefers the decode worker"
    for _ in range(600):
        for remote, ttft in ((None, 3.0), ("a", 1.0)):
            decision = rule.route(task, decode=DECODE, prefill=[view("a")], known=later)
            rule.learn(replace(decision, remote=remote), ttft_s=ttft, itl_s=0.02)
    assert share() < 0.1, "local rounds took three times as long"
    rule.learn(Decision(None, "degraded"), ttft_s=1.0, itl_s=0.02)
    first = rule.route(PrefillTask(0, 9), decode=DECODE, prefill=[view("a")], known=FIRST)
    rule.learn(first, ttft_s=99.0, itl_s=0.02)
    assert first.reason == "first-round"
