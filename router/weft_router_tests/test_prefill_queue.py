"""The prefill queue: bounded concurrency, an engine that is kept fed, Algorithm 2 at its head, nothing lost."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_core.policies.registry import ORDERS
from weft_core.policies.snapshot import PrefillTask
from weft_core.profile_json import profile_from_json
from weft_router.errors import UnavailableError
from weft_router.telemetry.session_latency import SessionLatency
from weft_router.workers.batch import DecodeBatch
from weft_router.workers.engine_slots import LEAD_S, LEAD_SHARE
from weft_router.workers.prefill_queue import PrefillQueue, QueueRule, QueueSlot
from weft_router_tests.stack import PROFILE

STEPS = st.tuples(st.sampled_from(["add", "finish", "cancel"]), st.integers(0, 20))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def queue(
    clock: Callable[[], float],
    *,
    concurrency: int = 1,
    order: str = "ampd-window",
    window: int = 3,
    cap: int = 16,
    ttft_slo: float = 1.0,
    limit: int = 100,
    shares: dict[str, float] | None = None,
    batch: DecodeBatch | None = None,
) -> PrefillQueue:
    return PrefillQueue(
        profile=profile_from_json(PROFILE), degree=1, concurrency=concurrency, limit=limit,
        rule=QueueRule(order, window=window, cap=cap, shares=shares), ttft_slo=ttft_slo,
        batch=batch, clock=clock,
    )  # fmt: skip


class Caller:
    """Tasks that wait in a queue and note the order in which they ran."""

    def __init__(self, held: PrefillQueue) -> None:
        self.queue = held
        self.order: list[str] = []
        self.slots: dict[str, QueueSlot] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def add(self, name: str, increment: int, *, read: int = 0, **known: Any) -> None:
        task = PrefillTask(read, increment, read)
        self.tasks[name] = asyncio.get_running_loop().create_task(self._wait(name, task, known))
        await settle()

    async def run_all(self, first: str) -> None:
        """Let everybody run, one after the other."""
        last = first
        while self.slots:
            await self.finish(last)
            last = self.order[-1]

    async def _wait(self, name: str, task: PrefillTask, known: dict[str, Any]) -> None:
        slot = await self.queue.acquire(name, task, **known)
        self.order.append(name)
        self.slots[name] = slot

    async def finish(self, name: str) -> None:
        self.slots.pop(name).release()
        await settle()

    async def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("order", ["ampd-window", "moore-hodgson"])
async def test_an_urgent_task_passes_one_that_is_late_anyway(order: str) -> None:
    clock = Clock()
    principal = Caller(queue(clock, order=order, ttft_slo=0.5))
    await principal.add("running", 1000)
    await principal.add("long", 9000)
    await principal.add("short", 1000)
    await principal.finish("running")
    assert principal.order == ["running", "short"]
    await principal.finish("short")
    assert principal.order == ["running", "short", "long"]
    await principal.close()


@pytest.mark.parametrize(("order", "window"), [("ampd-window", 1), ("fcfs", 3), ("edf", 3)])
async def test_the_order_of_arrival_is_kept(order: str, window: int) -> None:
    principal = Caller(queue(Clock(), order=order, window=window, ttft_slo=0.5))
    for name, increment in (("a", 1000), ("b", 9000), ("c", 1000)):
        await principal.add(name, increment)
    for name in ("a", "b", "c"):
        await principal.finish(name)
    assert principal.order == ["a", "b", "c"]


async def test_no_task_is_postponed_more_often_than_the_window_allows() -> None:
    principal = Caller(queue(Clock(), window=2, ttft_slo=0.5))
    await principal.add("running", 1000)
    await principal.add("long", 9000)
    for i in range(6):
        await principal.add(f"s{i}", 1000)
    last = "running"
    for _ in range(7):
        await principal.finish(last)
        last = principal.order[-1]
    assert principal.order.index("long") == 3
    assert sorted(principal.order) == sorted(["running", "long", *(f"s{i}" for i in range(6))])


async def test_moore_hodgson_looks_at_the_whole_queue_and_lets_nobody_starve() -> None:
    principal = Caller(queue(Clock(), order="moore-hodgson", cap=2, ttft_slo=0.5))
    await principal.add("running", 1000)
    for name in ("long", "longer"):
        await principal.add(name, 9000)
    for i in range(6):
        await principal.add(f"s{i}", 1000)
    last = "running"
    for _ in range(8):
        await principal.finish(last)
        last = principal.order[-1]
    assert principal.order == ["running", "s0", "s1", "long", "s2", "s3", "longer", "s4", "s5"]


async def test_the_predicted_seconds_of_all_tasks_are_told() -> None:
    held = queue(Clock())
    principal = Caller(held)
    assert held.seconds == 0.0
    for name, increment in (("a", 1000), ("b", 2000), ("c", 500)):
        await principal.add(name, increment)
    assert held.seconds == pytest.approx(sum(held.predict(PrefillTask(0, n)) for n in (1000, 2000, 500)))
    await principal.finish("a")
    assert held.seconds == pytest.approx(sum(held.predict(PrefillTask(0, n)) for n in (2000, 500)))
    await principal.close()


async def test_a_full_queue_refuses_and_says_so_to_the_hop_before() -> None:
    principal = Caller(queue(Clock(), limit=2))
    for name in ("a", "b", "c"):
        await principal.add(name, 1000)
    with pytest.raises(UnavailableError) as refusal:
        await principal.queue.acquire("d", PrefillTask(0, 1))
    assert refusal.value.retryable
    assert [entry.id for entry in principal.queue.entries()] == ["a", "b", "c"]
    assert (len(principal.queue), principal.queue.waiting) == (3, 2)
    await principal.close()


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["add", "finish", "cancel"]), st.integers(0, 20)), max_size=40),
    st.integers(1, 3),
    st.sampled_from(sorted(ORDERS)),
)
def test_whoever_comes_and_goes_places_are_neither_lost_nor_doubled(
    steps: list[tuple[str, int]], places: int, order: str
) -> None:
    async def run() -> None:
        principal = Caller(queue(Clock(), order=order, concurrency=places))
        for number, (step, pick) in enumerate(steps):
            running = list(principal.slots)
            waiting = [name for name, task in principal.tasks.items() if not task.done()]
            if step == "add":
                await principal.add(f"t{number}", 100 * pick + 1)
            elif step == "finish" and running:
                await principal.finish(running[pick % len(running)])
            elif step == "cancel" and waiting:
                principal.tasks[waiting[pick % len(waiting)]].cancel()
                await settle()
            waiting = [name for name, task in principal.tasks.items() if not task.done()]
            assert len(principal.slots) <= 2 * places
            assert len(principal.queue) == len(principal.slots) + len(waiting)
            assert not waiting or len(principal.slots) >= places
        for slot in principal.slots.values():
            slot.release()
            slot.release()
        await principal.close()
        await settle()
        assert len(principal.queue) == 0

    asyncio.run(run())


async def test_the_next_task_goes_to_the_engine_shortly_before_its_turn() -> None:
    clock = Clock()
    principal = Caller(queue(clock, order="fcfs"))
    for name in ("a", "b", "c"):
        await principal.add(name, 4000)
    seconds = principal.queue.predict(PrefillTask(0, 4000))
    clock.now = seconds * (1 - LEAD_SHARE) - 0.001
    await principal.add("d", 1)
    assert principal.order == ["a"]
    clock.now += 0.002
    await principal.add("e", 1)
    assert principal.order == ["a", "b"]
    clock.now = 2 * seconds  # the engine is late with a: it has enough to do
    await principal.add("f", 1)
    assert principal.order == ["a", "b"]
    await principal.finish("a")
    assert principal.order == ["a", "b"]
    assert principal.slots["b"].began == clock.now
    assert principal.slots["b"].granted < clock.now
    await principal.close()


async def test_what_prefills_took_corrects_what_is_predicted_for_the_next() -> None:
    clock = Clock()
    principal = Caller(queue(clock, order="fcfs"))
    task = PrefillTask(0, 4000)
    seconds = principal.queue.predict(task)
    for name in ("a", "b", "c", "d", "e"):
        assert principal.queue.predict(task) == seconds
        await principal.add(name, 4000)
        clock.now += 2 * seconds
        principal.slots[name].observe(clock.now)
        await principal.finish(name)
    assert principal.queue.slowdown == pytest.approx(2.0, rel=0.02)
    assert principal.queue.predict(task) == pytest.approx(2 * seconds, rel=0.02)
    await principal.add("f", 4000)
    assert principal.queue.seconds == pytest.approx(2 * seconds, rel=0.02)
    clock.now += 60
    assert principal.queue.predict(task) == seconds
    await principal.close()


async def test_a_prefill_beside_a_batch_is_not_slower_for_what_it_shares_with_it() -> None:
    clock, batch, costs = Clock(), DecodeBatch(), profile_from_json(PROFILE)
    for _ in range(16):
        batch.enter(SessionLatency(), 1000)
    running = costs.t_dec(batch=16, context=16_000, degree=1)
    mixed = costs.t_step(batch=16, context=16_000, chunk=200, chunk_history=0, degree=1)

    async def slowdown(speed: float, *left: float) -> float:
        """Return what prefills show that are sent when a share of the running step is left."""
        principal = Caller(queue(clock, order="fcfs", batch=batch))
        for number, share in enumerate(left):
            await principal.add(str(number), 200)
            clock.now += speed * (share * running + mixed)
            principal.slots[str(number)].observe(clock.now)
            await principal.finish(str(number))
        await principal.close()
        return principal.queue.slowdown

    shares = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert await slowdown(1.0, *shares) == pytest.approx(1.0)
    assert await slowdown(1.0, *[1.0] * 10) == pytest.approx(1.0)  # each follows another one, at the end of a step
    assert await slowdown(3.0, *shares) == pytest.approx(3.0, rel=0.15)


async def test_slices_say_nothing_of_whole_prefills() -> None:
    clock = Clock()
    principal = Caller(queue(clock, order="fcfs"))
    for name in ("a", "b", "c", "d", "e"):
        await principal.add(name, 4000)
        principal.slots[name].advance(1000)
        clock.now += 100.0
        principal.slots[name].observe(clock.now)
        await principal.finish(name)
    assert principal.queue.slowdown == 1.0


async def test_a_task_with_history_to_read_goes_to_the_engine_before_the_turn_of_the_one_before_it_begins() -> None:
    clock = Clock()
    caller = Caller(queue(clock, order="fcfs"))
    for name, read in (("a", 0), ("b", 0), ("c", 500), ("d", 500)):  # 0.21 s of computing each
        await caller.add(name, 2000, read=read)
    assert caller.order == ["a"]
    clock.now = 0.21 - max(LEAD_S, LEAD_SHARE * 0.21) + 0.001
    caller.queue._admit()
    await settle()
    assert caller.order == ["a", "b", "c"], "c is there when the turn of b begins"
    assert caller.slots["c"].until_first() == pytest.approx(3 * 0.21 - clock.now)
    clock.now = 0.25
    await caller.finish("a")
    assert caller.order == ["a", "b", "c"], "d goes there shortly before b should be done"
    clock.now = 0.42
    caller.queue._admit()
    await settle()
    assert caller.order == ["a", "b", "c", "d"]
    c, d = caller.slots["c"], caller.slots["d"]
    clock.now = 0.46
    await caller.finish("b")
    assert c.read_ahead_s == pytest.approx(0.46 - 0.25), "all the time that b took"
    clock.now = 0.7
    await caller.finish("c")
    assert d.read_ahead_s == pytest.approx(0.7 - 0.46)
    await caller.close()


async def test_a_task_without_history_to_read_is_not_taken_early_nor_passed_over() -> None:
    clock = Clock()
    caller = Caller(queue(clock, order="moore-hodgson"))
    for name, read in (("a", 0), ("b", 0), ("c", 0), ("d", 500)):
        await caller.add(name, 2000, read=read, ttft_slo=9.0 if name == "d" else 3.0)
    clock.now = 0.2
    before = list(caller.queue._postponed)
    caller.queue._admit()
    await settle()
    assert caller.order == ["a", "b"], "c is next, and it gains nothing by an earlier place in the engine"
    assert caller.queue._postponed == before[1:]
    await caller.close()


async def test_a_timer_hands_the_next_task_over_when_nothing_else_happens() -> None:
    principal = Caller(queue(monotonic, order="fcfs"))
    for name in ("a", "b"):
        await principal.add(name, 1000)
    assert principal.order == ["a"]
    seconds = principal.queue.predict(PrefillTask(0, 1000))
    await asyncio.wait_for(principal.tasks["b"], timeout=60)
    waited = monotonic() - principal.slots["a"].granted
    assert seconds - max(LEAD_S, LEAD_SHARE * seconds) <= waited
    assert principal.slots["b"].until_first() > seconds  # b, and what is left of a at least
    await principal.close()


async def test_a_task_that_overtakes_another_in_the_engine_is_counted_once() -> None:
    clock = Clock()
    principal = Caller(queue(clock, order="fcfs"))
    for name in ("a", "b", "c"):
        await principal.add(name, 1)  # so short that the next may go at once
    assert principal.order == ["a", "b"]
    clock.now = 0.1
    assert principal.slots["b"].began == 0.0
    await principal.finish("b")
    assert principal.order == ["a", "b", "c"]
    await principal.finish("a")
    await principal.finish("c")
    assert len(principal.queue) == 0
    await principal.close()


async def test_a_caller_that_was_cancelled_a_moment_ago_gets_no_place() -> None:
    principal = Caller(queue(Clock()))
    for name in ("a", "b", "c"):
        await principal.add(name, 1000)
    principal.tasks["b"].cancel()
    await principal.finish("a")
    assert principal.order == ["a", "c"]
    assert len(principal.queue) == 1
    await principal.finish("c")
    assert len(principal.queue) == 0


async def test_a_task_brings_its_own_deadline_and_what_it_waited() -> None:
    clock = Clock()
    clock.now = 10.0
    principal = Caller(queue(clock, order="edf", ttft_slo=5.0))
    await principal.add("running", 1000)
    await principal.add("plain", 1000)
    await principal.add("strict", 1000, ttft_slo=1.0)
    await principal.add("old", 1000, waited_s=4.5)
    await principal.run_all("running")
    assert principal.order == ["running", "old", "strict", "plain"]


async def test_a_session_that_missed_already_makes_way() -> None:
    principal = Caller(queue(Clock(), order="moore-hodgson", ttft_slo=0.9))
    await principal.add("running", 1000)
    await principal.add("lost", 1000, lost=True)
    await principal.add("saved", 1000)
    await principal.run_all("running")
    assert principal.order == ["running", "saved", "lost"]


async def test_the_higher_class_goes_first_and_the_lower_does_not_starve() -> None:
    principal = Caller(queue(Clock(), order="fcfs", cap=2))
    await principal.add("running", 1000)
    await principal.add("low", 1000)
    for i in range(4):
        await principal.add(f"high{i}", 1000, priority=1)
    await principal.run_all("running")
    assert principal.order == ["running", "high0", "high1", "low", "high2", "high3"]


async def test_tenants_take_turns_by_their_weights() -> None:
    principal = Caller(queue(Clock(), order="fcfs", shares={"big": 2.0}))
    await principal.add("running", 1000, tenant="flood")
    for i in range(6):
        await principal.add(f"flood{i}", 1000, tenant="flood")
    for i in range(4):
        await principal.add(f"big{i}", 1000, tenant="big")
    await principal.run_all("running")
    turns = "".join(name[0] for name in principal.order)
    assert turns == "rbbfbbfffff"


async def test_another_rule_takes_over_and_nobody_is_lost() -> None:
    clock = Clock()
    principal = Caller(queue(clock, order="edf", ttft_slo=9.0))
    await principal.add("running", 1000)
    await principal.add("late", 1000)
    clock.now = 0.01
    await principal.add("soon", 1000, ttft_slo=1.0)
    principal.queue.reload(QueueRule("fcfs"))
    await principal.add("last", 1000, ttft_slo=0.1)
    await principal.finish("running")
    assert principal.order == ["running", "late"]
    principal.queue.reload(QueueRule("moore-hodgson"))
    await principal.run_all("late")
    assert principal.order == ["running", "late", "soon", "last"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "finish", "cancel", "slice", "use"]), st.integers(0, 20), st.sampled_from("abc")
        ),
        max_size=40,
    ),
    st.sampled_from(sorted(ORDERS)),
    st.booleans(),
)
def test_tokens_and_work_are_those_of_who_is_there(steps: list[tuple[str, int, str]], order: str, shared: bool) -> None:
    async def run() -> None:
        held = queue(Clock(), order=order, shares={"a": 2.0} if shared else None)
        principal = Caller(held)
        lengths: dict[str, int] = {}
        for number, (step, pick, tenant) in enumerate(steps):
            running = list(principal.slots)
            waiting = [name for name, task in principal.tasks.items() if not task.done()]
            if step == "add":
                lengths[f"t{number}"] = 100 * pick + 1
                await principal.add(
                    f"t{number}", 100 * pick + 1, tenant=tenant, priority=pick % 3, ttft_slo=0.1 * pick + 0.1
                )
            elif step == "finish" and running:
                name = running[pick % len(running)]
                del lengths[name]
                await principal.finish(name)
            elif step == "cancel" and waiting:
                name = waiting[pick % len(waiting)]
                del lengths[name]
                principal.tasks[name].cancel()
                await settle()
            elif step == "slice" and running:
                name = running[pick % len(running)]
                taken = min(lengths[name], 7 * pick)
                principal.slots[name].advance(7 * pick)
                lengths[name] -= taken
            elif step == "use":
                held.reload(QueueRule(sorted(ORDERS)[pick % len(ORDERS)]))
            assert held.tokens == pytest.approx(sum(lengths.values()))
            assert len(held) == len(lengths)
            assert held.work >= -1e-6
        await principal.close()
        for slot in principal.slots.values():
            slot.release()
        assert (held.tokens, held.work, len(held)) == (0.0, 0.0, 0)

    asyncio.run(run())


class Delay:
    """A rule that delays every prefill while ``waits``, and remembers what it was asked."""

    def __init__(self) -> None:
        self.waits = True
        self.looks: list[tuple[int, float, float]] = []
        self._asked = asyncio.Event()

    def __call__(self, task: PrefillTask, seconds: float, running_s: float, urgency: float) -> bool:
        assert seconds > 0
        self.looks.append((task.increment, running_s, urgency))
        self._asked.set()
        return self.waits

    async def asked(self, times: int) -> None:
        """Wait until it was asked so often again."""
        for _ in range(times):
            self._asked.clear()
            await asyncio.wait_for(self._asked.wait(), 5)


@pytest.mark.parametrize("order", ["moore-hodgson", "fcfs", "ampd-window"])
async def test_a_delayed_prefill_goes_to_the_engine_once_nothing_speaks_against_it(order: str) -> None:
    clock, delay = Clock(), Delay()
    principal = Caller(queue(clock, order=order, ttft_slo=2.0))
    principal.queue.delays = delay
    await principal.add("a", 1000, waited_s=0.25)
    assert (principal.order, principal.queue.waiting) == ([], 1)
    assert delay.looks[0] == pytest.approx((1000, 0.0, (0.25 + 0.11) / 2.0))
    clock.now = 0.5
    await delay.asked(2)
    assert principal.order == []
    assert delay.looks[-1] == pytest.approx((1000, 0.0, (0.75 + 0.11) / 2.0))
    delay.waits = False
    await asyncio.wait_for(principal.tasks["a"], 5)
    assert principal.slots["a"].delayed_s == 0.5
    await principal.finish("a")
    await principal.add("b", 1000)
    assert principal.slots["b"].delayed_s == 0.0
    await principal.close()


async def test_a_look_at_a_delayed_prefill_postpones_nobody() -> None:
    delay = Delay()
    principal = Caller(queue(Clock(), order="moore-hodgson", cap=2, ttft_slo=0.5))
    principal.queue.delays = delay
    await principal.add("long", 9000)  # late whatever happens
    await principal.add("short", 1000)
    await delay.asked(8)
    assert delay.looks[-1][0] == 1000, "were the long one passed over at each look, it would be first by now"
    delay.waits = False
    await asyncio.wait_for(principal.tasks["short"], 5)
    assert principal.order == ["short"]
    await principal.close()


async def test_who_leaves_while_it_is_delayed_leaves_nothing() -> None:
    principal = Caller(queue(Clock()))
    principal.queue.delays = Delay()
    await principal.add("a", 1000)
    await principal.close()
    await settle()
    assert (len(principal.queue), principal.queue.tokens, principal.queue.work) == (0, 0.0, 0.0)


async def test_the_most_urgent_of_the_queue_and_what_runs_count() -> None:
    clock, delay = Clock(), Delay()
    delay.waits = False
    principal = Caller(queue(clock, order="fcfs"))
    principal.queue.delays = delay
    await principal.add("running", 2000, ttft_slo=60.0)  # 0.21 s
    assert delay.looks.pop() == pytest.approx((2000, 0.0, 0.21 / 60))
    delay.waits = True
    clock.now = 0.2
    await principal.add("patient", 9000, ttft_slo=60.0)  # 0.91 s
    assert delay.looks.pop() == pytest.approx((9000, 0.21, (0.01 + 0.91) / 60))
    await principal.add("urgent", 1000, ttft_slo=2.0)  # 0.11 s, behind the other
    assert delay.looks.pop() == pytest.approx((9000, 0.21, (0.01 + 0.91 + 0.11) / 2))
    await principal.close()


async def test_a_prefill_that_may_not_be_delayed_is_not() -> None:
    principal = Caller(queue(Clock()))
    principal.queue.delays = Delay()
    await principal.add("resumed", 1000, immediate=True)
    assert principal.order == ["resumed"]
    await principal.close()


async def test_only_prefills_of_other_workers_are_sent_away() -> None:
    """A worker that ceases to prefill for others goes on with its own."""
    caller = Caller(queue(Clock()))
    await caller.add("running", 100, remote=True)
    await caller.add("own", 100)
    await caller.add("theirs", 100, remote=True)
    await caller.add("theirs, too", 100, remote=True)

    caller.queue.reject_remote("not here")

    await settle()
    for name in ("theirs", "theirs, too"):
        refused = caller.tasks[name].exception()
        assert isinstance(refused, UnavailableError)
        assert refused.retryable
    assert (len(caller.queue), caller.queue.tokens) == (2, 200)
    await caller.run_all("running")
    assert caller.order == ["running", "own"]
    assert (len(caller.queue), caller.queue.tokens) == (0, 0)


async def test_a_client_that_leaves_as_its_prefill_is_sent_away_is_cancelled() -> None:
    caller = Caller(queue(Clock()))
    for name in ("running", "own"):
        await caller.add(name, 100)
    await caller.add("theirs", 100, remote=True)

    caller.queue.reject_remote("not here")
    caller.tasks["theirs"].cancel()

    await settle()
    assert caller.tasks["theirs"].cancelled()
    await caller.run_all("running")
    assert (len(caller.queue), caller.queue.tokens) == (0, 0)
