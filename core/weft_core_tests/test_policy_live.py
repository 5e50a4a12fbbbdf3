"""A snapshot becomes figures, and a policy's answer a Decision with names."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.analytic import derive_profile
from weft_core.cost import TransferCost
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_core.policies.estimates import EngineEstimate, WorkerKind
from weft_core.policies.live import Routing
from weft_core.policies.live_binding import Binding, Candidates
from weft_core.policies.policy import PolicyError
from weft_core.policies.registry import BINDINGS, MODES, POLICIES, parameters
from weft_core.policies.slices import Slicing
from weft_core.policies.snapshot import (
    BindingView,
    Circumstances,
    Decision,
    DecodeWorkerView,
    PrefillTask,
    PrefillWorkerView,
)
from weft_core.slo import Slo
from weft_core.transfers import transfer_between
from weft_core_tests.profiles import simple_profile

PROFILE = simple_profile()
SLO = Slo(ttft_s=2.0, itl_s=0.05)
TASK = PrefillTask(history=2000, increment=1000)
QUEUE = (PrefillTask(0, 500), PrefillTask(9000, 1500))


def rule(policy: str = "ampd", *, mode: str = "ia", **overrides: float) -> Routing:
    return Routing(policy, mode=mode, overrides=overrides, profile=PROFILE, slo=SLO)


def queue_seconds(queue: tuple[PrefillTask, ...], degree: int) -> float:
    """Return the queuing term of AMPD's Eq. (1) and (2): sum of T_pre over a prefill queue."""
    engine = EngineEstimate(PROFILE, degree, None)
    return sum(engine.prefill(task.history, task.increment) for task in queue)


def prefill(
    name: str, *, degree: int = 1, queue: tuple[PrefillTask, ...] = (), ttft: float | None = 9.0
) -> PrefillWorkerView:
    return PrefillWorkerView(name, degree, queue_seconds(queue, degree), len(queue), ttft)


def decode(
    *, degree: int = 1, queue: tuple[PrefillTask, ...] = (), itl: float | None = 9.0, gaps: int = 0
) -> DecodeWorkerView:
    return DecodeWorkerView(
        "d", degree, queue_seconds(queue, degree), len(queue), itl, 0, 1000, gaps, 0,
        gap_sums=[0.05] * gaps, gap_counts=[1.0] * gaps,
    )  # fmt: skip


def decide(routing: Routing, workers: list[PrefillWorkerView], here: DecodeWorkerView) -> Decision:
    return routing.decide(TASK, decode=here, prefill=workers, order=range(len(workers)))


def test_equations_1_and_2_from_a_snapshot_worked_by_hand() -> None:
    # T_pre(2000, 1000) = 1 s at degree 1, 0.5 s at degree 2; queued are 500 and 1,500 tokens. T_kv = 0.1 s + 0.1 ms a
    # token, twice that from degree 2: 0.3 s there for the history, 0.3 s back for the increment.
    found = decide(rule(), [prefill("p", degree=2, queue=QUEUE)], decode(queue=QUEUE))
    assert found.costs == pytest.approx({"local": 1.0 + 0.5 + 1.5, "p": 0.5 + 0.3 + 0.3 + 1.0})
    assert (found.remote, found.reason) == ("p", "least-cost")


def test_a_first_round_reads_no_history() -> None:
    first = PrefillTask(history=0, increment=1000)
    found = rule("remote-jsq").decide(first, decode=decode(), prefill=[prefill("p")], order=[0])
    assert found.costs == pytest.approx({"p": 1.0 + 0.2})


def test_a_prefill_worker_reads_only_what_its_own_prefix_cache_lacks() -> None:
    # T_kv = 0.1 s + 0.1 ms a token: 0.3 s for all of the history, 0.15 s for the 500 tokens that b lacks, 0.2 s back.
    workers = [prefill("a"), prefill("b"), prefill("c")]
    known = Circumstances(cached={"b": 1500, "c": 2000})
    found = rule("remote-jsq").decide(TASK, decode=decode(), prefill=workers, order=range(3), known=known)
    assert found.costs == pytest.approx({"a": 1.0 + 0.3 + 0.2, "b": 1.0 + 0.15 + 0.2, "c": 1.0 + 0.2})
    assert found.remote == "c"


def test_where_the_history_cannot_be_read_a_worker_computes_what_its_prefix_cache_lacks() -> None:
    known = Circumstances(cached={"b": 1500}, readable=False)
    workers = [prefill("a"), prefill("b")]
    found = rule("remote-jsq").decide(TASK, decode=decode(), prefill=workers, order=range(2), known=known)
    engine = EngineEstimate(PROFILE, 1, None)
    back = 0.1 + 1000 * 0.0001
    assert found.costs == pytest.approx({"a": engine.prefill(0, 3000) + back, "b": engine.prefill(1500, 1500) + back})
    assert found.remote == "b"


def test_windows_without_samples_have_slack() -> None:
    assert decide(rule(), [prefill("a"), prefill("b", ttft=None)], decode()).short == ("b", "ttft-slack")
    assert decide(rule(), [prefill("a")], decode(itl=None)).short == (None, "itl-slack")


def test_the_mode_of_weft_and_the_running_sessions_count() -> None:
    workers = [prefill("p", queue=(PrefillTask(0, 500),))]
    assert decide(rule("weft"), workers, decode()).reason == "local-whole"
    assert decide(rule("weft"), workers, decode(gaps=3)).reason == "remote-cheaper"
    assert decide(rule("weft", interference=0), workers, decode(gaps=3)).reason == "local-whole"
    assert decide(rule("weft", mode="remote-jsq"), workers, decode()).reason == "shortest-finish"
    assert decide(rule("weft", mode="imd"), workers, decode()).reason == "local-whole"  # without slices it is ia


def test_what_else_is_known_of_a_task_reaches_the_rules() -> None:
    workers = [prefill("a"), prefill("b")]
    routing = rule("fixed-x", x=1.0)
    assert decide(routing, workers, decode()).reason == "first-round"
    later = routing.decide(TASK, decode=decode(), prefill=workers, order=[], known=Circumstances(later=True))
    assert later.short == (None, "share")
    hot = Circumstances(cached={"b": 700})
    costly = rule("latency-cost").decide(PrefillTask(0, 9), decode=decode(gaps=9), prefill=workers, order=[], known=hot)
    assert costly.remote == "b"


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_degree_the_profile_does_not_know_never_stops_a_decision(policy: str) -> None:
    workers = [
        PrefillWorkerView("a", 8, math.nan, 3, 9.0), PrefillWorkerView("b", 8, math.nan, 1, 9.0),
    ]  # fmt: skip
    found = decide(rule(policy), workers, decode())
    assert found.remote in (None, "a", "b")
    if policy in ("weft", "ampd", "remote-jsq", "ppd", "fixed-x"):
        assert found.short == ("b", "profile-incomplete")


queues = st.lists(st.builds(PrefillTask, st.integers(0, 9000), st.integers(1, 4000)), max_size=4).map(tuple)


@given(
    st.sampled_from(sorted(POLICIES)),
    st.lists(st.tuples(queues, st.sampled_from([1, 2]), st.floats(0, 4)), max_size=5),
    queues,
)
def test_every_decision_names_a_worker_and_its_costs(
    policy: str, workers: list[tuple[tuple[PrefillTask, ...], int, float]], own: tuple[PrefillTask, ...]
) -> None:
    views = [prefill(f"p{i}", queue=q, degree=n, ttft=t) for i, (q, n, t) in enumerate(workers)]
    found = decide(rule(policy), views, decode(queue=own))
    names = [view.worker for view in views]
    assert found.remote is None or found.remote in names
    assert set(found.costs) <= {"local", *names}
    assert all(math.isfinite(cost) for cost in found.costs.values())


def bound(name: str, workers: list[tuple[str, int, int, float]], *, needed_kv: int = 100) -> list[str | None]:
    binding = Binding(name)
    views = [BindingView(worker, used, 1000, sessions, load) for worker, used, sessions, load in workers]
    return [binding.choose(views, needed_kv=needed_kv) for _ in range(4)]


def test_bindings_go_by_name_among_equals() -> None:
    workers = [("d2", 500, 1, 4.0), ("d1", 500, 1, 4.0), ("d0", 500, 2, 1.0), ("full", 990, 0, 0.0)]
    assert bound("kv-headroom", workers) == ["d1"] * 4
    assert bound("least-requests", workers) == ["d0"] * 4
    assert bound("round-robin", workers) == ["d0", "d1", "d2", "d0"]
    assert bound("kv-headroom", workers, needed_kv=501) == [None] * 4
    assert bound("round-robin", []) == [None] * 4


def test_round_robin_goes_on_from_the_last_whoever_leaves() -> None:
    binding = Binding("round-robin")
    views = {name: BindingView(name, 0, 1000, 0, 0.0) for name in ("a", "b", "c")}
    assert binding.choose(list(views.values()), needed_kv=1) == "a"
    del views["b"]
    assert binding.choose(list(views.values()), needed_kv=1) == "c"
    assert binding.choose(list(views.values()), needed_kv=1) == "a"


def test_a_known_prefix_hit_counts() -> None:
    views = [BindingView("a", 0, 1000, 0, 0.0), BindingView("b", 0, 1000, 0, 0.0)]
    assert Binding("prefix-aware").choose(views, needed_kv=100, prefix_hit={"b": 50}) == "b"


def test_only_bindings_by_prefix_read_the_caches() -> None:
    assert {name for name in BINDINGS if Binding(name).reads_prefix_hits} == {"prefix-aware", "kv-aware"}


def test_a_learned_table_replaces_the_parameters_and_nothing_else_does() -> None:
    always, never = (parameters("fixed-x", overrides={"x": x}) for x in (1.0, 0.0))
    routing = Routing("fixed-x", mode="ia", overrides={"x": 1.0}, profile=PROFILE, slo=SLO)
    known = Circumstances(later=True)
    assert routing.params == always
    assert routing.decide(TASK, decode=decode(), prefill=[prefill("p")], known=known).remote is None
    routing.use(never)
    assert routing.params == never
    assert routing.decide(TASK, decode=decode(), prefill=[prefill("p")], known=known).remote == "p"
    with pytest.raises(PolicyError, match="2 for a rule that takes 1"):
        routing.use((0.0, 1.0))
    with pytest.raises(PolicyError, match="weft's stay as they are"):
        rule("weft").use(rule("weft").params)


def test_an_unknown_binding_is_refused() -> None:
    with pytest.raises(PolicyError, match="binding: 'best' is not one of kv-aware, kv-headroom"):
        Binding("best")


def test_a_worker_of_another_pool_is_predicted_by_its_own_profile() -> None:
    fast = derive_profile(MODELS["meta-llama/Llama-3.1-8B-Instruct"], GPUS["nvidia-h100"], degrees=(1, 2))
    slow = derive_profile(MODELS["meta-llama/Llama-3.1-8B-Instruct"], GPUS["nvidia-l40s"], degrees=(1, 2))
    views = [replace(prefill("slow"), pool="l40s"), replace(prefill("fast"), pool="h100")]
    mixed = Routing("remote-jsq", mode="ia", overrides={}, profile=slow, slo=SLO, pools={"l40s": slow, "h100": fast})

    found = mixed.decide(TASK, decode=decode(), prefill=views, order=(0, 1))

    assert found.remote == "fast"
    alone = Routing("remote-jsq", mode="ia", overrides={}, profile=slow, slo=SLO)
    own = alone.decide(TASK, decode=decode(), prefill=views[:1], order=(0,)).costs["slow"]
    assert found.costs["slow"] == own, "its own pool is predicted as before"
    there = transfer_between(slow, fast, source_degree=1, destination_degree=1, link="inter-node")
    back = transfer_between(fast, slow, source_degree=1, destination_degree=1, link="inter-node")
    compute = fast.t_pre(history=TASK.history, increment=TASK.increment, degree=1)
    moved = there.seconds(TASK.history) + back.seconds(TASK.increment)
    assert compute <= found.costs["fast"] <= compute + moved + 1e-9
    again = mixed.decide(TASK, decode=decode(), prefill=views, order=(0, 1))
    assert again.costs == found.costs


def test_a_decision_tells_its_alternatives_and_what_it_expects() -> None:
    workers = [prefill("a", queue=(PrefillTask(0, 500),)), prefill("b", queue=QUEUE)]
    here = decode(queue=(PrefillTask(0, 3000),), gaps=2)
    found = rule("weft", mode="ia").decide(TASK, decode=here, prefill=workers, known=Circumstances(waited_s=0.25))
    told = {option.option: option for option in found.alternatives()}
    assert list(told) == ["local", "a", "b"]
    assert told["local"].ttft_s == pytest.approx(0.25 + 3.0 + 1.0)
    assert told["a"].ttft_s == pytest.approx(0.25 + 0.5 + 1.0 + 0.2)
    assert told["b"].ttft_s == pytest.approx(0.25 + 2.0 + 1.0 + 0.2)
    assert (found.remote, found.ttft_s) == ("a", told["a"].ttft_s)
    assert told["local"].itl_cost > 0.5
    assert told["a"].itl_cost == 0.0
    assert told["a"].cost < told["local"].cost
    assert found.evidence is not None
    assert found.evidence.best_ttft() == found.ttft_s
    assert found.evidence.hedge("a", 0.1, only_local=False) is None  # nobody else would make it
    assert rule().decide(TASK, decode=decode(), prefill=workers).alternatives()[1].option == "a"
    assert Decision(None, "degraded").alternatives() == ()
    assert Decision(None, "degraded").costs == {}


def test_measured_link_rates_take_the_place_of_the_profiles() -> None:
    workers = [prefill("a"), prefill("b")]
    asked: dict[str, Any] = {"decode": decode(gaps=9), "prefill": workers, "order": range(2)}
    routing = rule("latency-cost")
    same = routing.decide(PrefillTask(0, 9), **asked)
    measured = Circumstances(link_rates={"a": 1e9, "b": 4e9})
    found = routing.decide(PrefillTask(0, 9), **asked, known=measured)
    again = routing.decide(PrefillTask(0, 9), **asked, known=Circumstances(link_rates={}))
    assert (same.remote, found.remote, again.remote) == ("a", "b", "a")
    assert found.costs["a"] - found.costs["b"] == pytest.approx(0.5 * 0.75)


def test_a_hedge_may_be_local() -> None:
    workers = [prefill("a", queue=(PrefillTask(0, 500),)), prefill("b", queue=QUEUE)]
    found = rule("remote-jsq").decide(TASK, decode=decode(), prefill=workers)
    assert found.remote == "a"
    assert found.evidence is not None
    assert found.evidence.hedge("a", 0.5, only_local=False) == "local", "1 s here against 3.2 s at b"
    assert found.evidence.hedge("local", 0.1, only_local=False) == "a"
    workers.append(prefill("c", queue=(PrefillTask(0, 600),)))
    busy = rule("remote-jsq").decide(TASK, decode=decode(queue=QUEUE * 3), prefill=workers)
    assert busy.evidence is not None
    assert busy.evidence.hedge("a", 0.5, only_local=False) == "c"
    assert busy.evidence.hedge("a", 0.5, only_local=True) is None, "there is nobody else to give its history to"


def test_the_price_of_a_stall_follows_the_slos_reading_where_weft_decides() -> None:
    """Sessions that missed a largest-gap SLO lose nothing more; other policies have the default reading, the mean."""
    here = decode(gaps=2)
    largest, default = (decide(routing, [], here) for routing in (rule("weft", itl_statistic=2), rule("remote-jsq")))
    assert largest.alternatives()[0].itl_cost == 0.0
    assert default.alternatives()[0].itl_cost > 0.1


def test_a_link_is_as_fast_as_what_it_moves() -> None:
    """100 bytes a token at 0.1 ms a token back are a million bytes a second."""
    engine = EngineEstimate(PROFILE, 1, None)
    assert WorkerKind(engine, TransferCost(0.1, 1e-3), TransferCost(0.1, 1e-4), 100).link_rate == pytest.approx(1e6)
    assert WorkerKind(engine, TransferCost(0.1, 1e-3), TransferCost(0.1, 0.0), 100).link_rate == math.inf


def test_a_way_that_the_profile_does_not_know_is_no_prediction() -> None:
    """A profile with transfers from degree 1 to 2 alone: the KV can be read there, and its way back is not known."""
    one_way = replace(PROFILE, transfers={key: cost for key, cost in PROFILE.transfers.items() if key[:2] != (2, 1)})
    routing = Routing("remote-jsq", mode="ia", overrides={}, profile=one_way, slo=SLO)
    there = [prefill("a", degree=2), prefill("b", degree=1)]
    assert decide(routing, there[:1], decode()).short == ("a", "profile-incomplete")
    assert math.isnan(decide(routing, there[:1], decode()).ttft_s)
    assert decide(rule("remote-jsq"), there[:1], decode()).short == ("a", "shortest-finish")


def test_bound_sessions_take_room_and_count_as_load() -> None:
    workers = Candidates(
        BindingView(name, used, capacity, 0, 0.0) for name, used, capacity in (("a", 100, 1000), ("b", 300, 4000))
    )
    assert workers.emptiest() == 1, "7.5 % against 10 %"
    workers.place(1, 200)
    assert (workers.free[1], workers.sessions[1], workers.load[1]) == (3500.0, 1.0, 1.0)
    assert workers.emptiest() == 0, "12.5 % against 10 %"
    workers.place(1, -200, sessions=-1.0)
    assert (workers.free[1], workers.sessions[1], workers.load[1]) == (3700.0, 0.0, 0.0)
    workers.place(1, 100)
    assert workers.emptiest() == 0, "of equal shares the one with fewer sessions"


views_ = st.builds(
    PrefillWorkerView, st.sampled_from(["a", "b", "c"]), st.sampled_from([1, 2, 8]), st.floats(0, 4), st.integers(0, 9),
    st.one_of(st.none(), st.floats(0, 4)), st.floats(0, 1), st.floats(0, 9), st.sampled_from(["", "fast"]),
)  # fmt: skip


@given(
    st.sampled_from(sorted(POLICIES)), st.sampled_from(sorted(MODES)),
    st.lists(st.lists(views_, max_size=4), max_size=5), st.booleans(),
)  # fmt: skip
def test_what_is_kept_between_decisions_changes_none(
    policy: str, mode: str, rounds: list[list[PrefillWorkerView]], sliceable: bool
) -> None:
    fast = replace(PROFILE, gpu="fast")

    def fresh() -> Routing:
        return Routing(
            policy, mode=mode, overrides={}, profile=PROFILE, slo=SLO, pools={"fast": fast}, slicing=Slicing()
        )

    kept = fresh()
    known = Circumstances(later=True, cached={"a": 3}, sliceable=sliceable)
    before: tuple[PrefillWorkerView, ...] = ()
    for views in rounds:
        # every other view is the object of the last time, as long as nothing changed
        mixed = tuple(before[i] if i < len(before) and i % 2 else view for i, view in enumerate(views))
        order = range(len(mixed))
        mine, theirs = (
            one.decide(TASK, decode=decode(gaps=2), prefill=mixed, order=order, now=9.0, known=known)
            for one in (kept, fresh())
        )
        assert (mine.short, mine.chunked) == (theirs.short, theirs.chunked)
        assert mine.ttft_s == theirs.ttft_s or math.isnan(mine.ttft_s)
        assert mine.costs == theirs.costs
        before = mixed


def test_a_worker_of_a_degree_without_figures_is_passed_over() -> None:
    views = [PrefillWorkerView("b", 8, 0.0, 0, None), PrefillWorkerView("a", 1, 0.0, 0, None)]
    assert rule("remote-jsq").decide(TASK, decode=decode(), prefill=views).short == ("b", "profile-incomplete")
    assert rule("weft", mode="remote-jsq").decide(TASK, decode=decode(), prefill=views).remote == "a"


def test_an_engine_takes_what_its_profile_says() -> None:
    engine = EngineEstimate(PROFILE, 1, None)
    assert engine.step(4, 100) == PROFILE.t_dec(batch=4, context=100, degree=1)
    assert engine.step(0, 9000) == PROFILE.t_dec(batch=1, context=9000, degree=1)
    assert engine.prefill(7, 5) == PROFILE.t_pre(history=7, increment=5, degree=1)
    assert engine.chunked(4, 100, 7, 5, 0.05) == math.inf, "it has no slices"
    assert engine.chunked_queue(4, 100, 7, 700, 0.05) == math.inf


def test_an_engine_of_a_degree_without_figures_takes_an_unknown_time() -> None:
    engine = EngineEstimate(PROFILE, 8, Slicing())
    assert all(math.isnan(seconds) for seconds in (engine.prefill(7, 5), engine.step(4, 100)))
    assert math.isnan(engine.chunked(4, 100, 7, 5, 0.05))
    assert math.isnan(engine.chunked_queue(4, 100, 7, 700, 0.05))
    assert engine.chunked_queue(4, 100, 0, 0, 0.05) == 0.0, "an empty queue takes no time on any engine"


def test_a_history_that_cannot_be_read_is_computed_anew_elsewhere_and_only_there() -> None:
    known = Circumstances(readable=False)
    workers = [prefill("p")]
    there, back = 3.0, 0.1 + 0.1  # all 3,000 tokens at 1 ms each; the decode worker has all but the increment
    by_sum = rule("remote-jsq").decide(TASK, decode=decode(), prefill=workers, known=known)
    assert by_sum.costs == pytest.approx({"p": there + back})
    for mode in ("ia", "whole-or-chunked"):
        found = rule("weft", mode=mode).decide(TASK, decode=decode(gaps=3), prefill=workers, known=known)
        told = {option.option: option.ttft_s for option in found.alternatives()}
        assert told == pytest.approx({"local": 1.0, "p": there + back})
        assert found.ttft_s == told[found.remote or "local"]


def test_a_local_prefill_waits_for_a_place_in_a_full_batch() -> None:
    # A step of 4 sequences is 14 ms: of answers of 100 tokens one ends every 0.35 s.
    known = Circumstances(answer=100.0)

    def finish(places: float, *, batch: int = 4, queue: tuple[PrefillTask, ...] = (), answer: float = 100.0) -> float:
        here = replace(decode(gaps=batch, queue=queue), places=places)
        evidence = replace(known, answer=answer)
        return rule("weft").decide(TASK, decode=here, prefill=[], order=[], known=evidence).ttft_s

    free = finish(math.inf)
    assert finish(5) == pytest.approx(free), "the last place is free"
    assert finish(4) == pytest.approx(free + 0.35)
    assert finish(3) == pytest.approx(free + 2 * 100 * 0.014 / 3), "one of the four waits already"
    behind = (PrefillTask(0, 500),)
    assert finish(4, queue=behind) == pytest.approx(finish(math.inf, queue=behind) + 2 * 0.35)
    assert finish(4, answer=math.nan) == pytest.approx(finish(math.inf, answer=math.nan)), "nobody knows when one ends"


def test_a_full_batch_sends_a_prefill_elsewhere() -> None:
    # Here it takes 1 s, there 1.5 s; one of the three that run ends every 0.6 s, and five others wait for places.
    known = Circumstances(answer=100.0)
    here = decode(gaps=0)
    full = replace(here, batch=8, places=3)
    for view, remote in ((replace(here, batch=2, places=3), None), (full, "p")):
        found = rule("weft").decide(TASK, decode=view, prefill=[prefill("p")], order=[0], known=known)
        assert found.remote == remote
