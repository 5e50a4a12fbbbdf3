"""The Lease: taken, renewed, lost and given back, by clocks that the test moves."""

import asyncio
import copy
import threading
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from weft_operator.api.objects import Manifest, ObjectKey
from weft_operator.errors import ApiError, ConflictError, NotFoundError, NotLeaderError, TransientError
from weft_operator.kube.leader_election.elector import LeaderElector
from weft_operator.kube.leader_election.lease_record import (
    LeaseTiming,
    ObservedLease,
    acquired,
    may_acquire,
    observe_lease,
)
from weft_operator.kube.leader_election.lease_term import LeaseTerm
from weft_operator.settings import SettingsError, settings_from_env

KEY = ObjectKey("coordination.k8s.io/v1", "Lease", "weft-system", "weft-operator")
TIMING = LeaseTiming(duration=15, deadline=10, retry=0.001)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Leases:
    """One Lease with optimistic locking, and trouble when asked for."""

    def __init__(self) -> None:
        self.lease: Manifest | None = None
        self.version = 0
        self.trouble: Callable[[str], ApiError | None] = lambda _method: None
        self.lost_answers = 0
        self._lock = threading.Lock()

    def get(self, _key: ObjectKey) -> Manifest:
        self._ask("GET")
        if self.lease is None:
            raise NotFoundError("no such Lease", status=404)
        return copy.deepcopy(self.lease)

    def create(self, manifest: Manifest) -> Manifest:
        self._ask("POST")
        with self._lock:
            if self.lease is not None:
                raise ConflictError("exists", status=409)
            return self._store(manifest)

    def replace(self, manifest: Manifest) -> Manifest:
        self._ask("PUT")
        with self._lock:
            if self.lease is None:
                raise NotFoundError("gone", status=404)
            if manifest["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
                raise ConflictError("modified", status=409)
            return self._store(manifest)

    @property
    def holder(self) -> str:
        assert self.lease is not None
        return str(self.lease["spec"]["holderIdentity"])

    def _store(self, manifest: Manifest) -> Manifest:
        self.version += 1
        self.lease = copy.deepcopy(manifest)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        if self.lost_answers:
            self.lost_answers -= 1
            raise TransientError("no answer")
        return copy.deepcopy(self.lease)

    def _ask(self, method: str) -> None:
        error = self.trouble(method)
        if error is not None:
            raise error


def elector(leases: Leases, me: str, clock: Clock) -> LeaderElector:
    return LeaderElector(leases, key=("weft-system", "weft-operator"), me=me, timing=TIMING, clock=clock)


def over(term: LeaseTerm) -> bool:
    return not term.holds


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.002)


async def test_one_of_two_leads_and_the_other_takes_over_when_renewals_stay_away() -> None:
    leases, clock = Leases(), Clock()
    a, b = elector(leases, "a", clock), elector(leases, "b", clock)
    term = await a.campaign()
    waiting = asyncio.create_task(b.campaign())
    await until(lambda: b.leader == "a")
    clock.now += 9.9
    assert term.holds
    clock.now += 0.2
    assert over(term), "a leader that could not renew for 10 s writes no more"
    await asyncio.sleep(0.02)
    assert not waiting.done(), "the other waits 15 s of its own clock"
    clock.now += 5
    assert (await waiting).holds
    assert leases.holder == "b"
    assert over(term)
    assert leases.lease is not None
    assert leases.lease["spec"]["leaseTransitions"] == 1


async def test_a_lease_that_is_renewed_is_never_taken() -> None:
    leases, clock = Leases(), Clock()
    a, b = elector(leases, "a", clock), elector(leases, "b", clock)
    term = await a.campaign()
    holding, waiting = asyncio.create_task(a.renew_until_lost(term)), asyncio.create_task(b.campaign())
    for _ in range(20):
        version = leases.version
        clock.now += 8
        await until(lambda before=version: leases.version > before + 1)  # type: ignore[misc]
        assert term.holds
    assert leases.holder == "a"
    for task in (holding, waiting):
        task.cancel()
    await asyncio.gather(holding, waiting, return_exceptions=True)


async def test_a_lease_given_back_is_free_at_once() -> None:
    leases, clock = Leases(), Clock()
    a, b = elector(leases, "a", clock), elector(leases, "b", clock)
    term = await a.campaign()
    waiting = asyncio.create_task(b.campaign())
    await until(lambda: b.leader == "a")
    term.end()
    await a.release()
    await waiting
    assert leases.holder == "b"
    assert clock.now == 100.0
    await a.release()
    assert leases.holder == "b", "what is another's is not given back"


async def test_a_renewal_on_its_way_does_not_keep_the_lease() -> None:
    leases, clock = Leases(), Clock()
    a = elector(leases, "a", clock)
    term = await a.campaign()
    asked, go_on = threading.Event(), threading.Event()

    def hold_up(method: str) -> None:
        if method == "PUT" and not asked.is_set():
            asked.set()
            go_on.wait(20)

    leases.trouble = hold_up
    holding = asyncio.create_task(a.renew_until_lost(term))
    await until(asked.is_set)
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    giving = asyncio.create_task(a.release())
    await asyncio.sleep(0.02)
    go_on.set()
    await giving
    assert leases.holder == ""
    assert not await asyncio.to_thread(a._attempt), "a renewal that comes even later takes nothing"
    assert leases.holder == ""


async def test_a_lease_is_given_back_although_the_answer_to_a_renewal_got_lost() -> None:
    leases, clock = Leases(), Clock()
    a = elector(leases, "a", clock)
    await a.campaign()
    seen = ObservedLease(leases.get(KEY), since=0)
    leases.replace(acquired(KEY, seen, "a", at=NOW, timing=TIMING))
    await a.release()
    assert leases.holder == ""


async def test_a_process_of_the_same_name_takes_its_lease_at_once() -> None:
    leases, clock = Leases(), Clock()
    await elector(leases, "a", clock).campaign()
    assert (await elector(leases, "a", clock).campaign()).holds


async def test_a_term_ends_when_the_lease_is_anothers() -> None:
    leases, clock = Leases(), Clock()
    a = elector(leases, "a", clock)
    term = await a.campaign()
    seen = ObservedLease(leases.get(KEY), since=0)
    leases.replace(acquired(KEY, seen, "b", at=NOW, timing=TIMING))
    await asyncio.wait_for(a.renew_until_lost(term), 20)
    assert not term.holds
    assert a.leader == "b"


@pytest.mark.parametrize("status", [0, 403, 429, 500])
async def test_trouble_shorter_than_the_deadline_costs_nothing_and_is_reported(status: int) -> None:
    leases, clock = Leases(), Clock()
    a = elector(leases, "a", clock)
    term = await a.campaign()
    holding = asyncio.create_task(a.renew_until_lost(term))
    leases.trouble = lambda method: TransientError(f"{method} leases: {status}", status=status)
    await until(lambda: str(status) in a.last_error)
    clock.now += 9
    leases.trouble = lambda _method: None
    version = leases.version
    await until(lambda: leases.version > version + 2)  # the answer to the second write has come before the third
    clock.now += 9
    assert term.holds
    assert a.last_error == ""
    leases.trouble = lambda method: TransientError(f"{method} leases: {status}", status=status)
    clock.now += 10.1
    await asyncio.wait_for(holding, 20)
    leases.trouble = lambda _method: None
    assert (await a.campaign()).holds, "nobody else took it"
    with pytest.raises(NotLeaderError):
        term.check()
    assert a.terms == 2


async def test_a_renewal_whose_answer_got_lost_is_made_again() -> None:
    leases, clock = Leases(), Clock()
    a = elector(leases, "a", clock)
    term = await a.campaign()
    leases.lost_answers = 1
    holding = asyncio.create_task(a.renew_until_lost(term))
    await until(lambda: leases.version >= 4)
    assert term.holds
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)


async def test_of_many_that_begin_at_once_one_leads() -> None:
    leases, clock = Leases(), Clock()
    tasks = [asyncio.create_task(elector(leases, f"r{number}", clock).campaign()) for number in range(8)]
    done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0.05)
    assert len(done) == 1
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def test_a_term_that_is_over_never_comes_back() -> None:
    clock = Clock()
    term = LeaseTerm(110, clock=clock)
    term.check()
    clock.now = 110
    with pytest.raises(NotLeaderError, match="nothing is written"):
        term.extend(200)
    clock.now = 100  # not even where the clock goes back
    with pytest.raises(NotLeaderError):
        term.check()
    ended = LeaseTerm(110, clock=clock)
    ended.end()
    assert not ended.holds


def test_time_counts_from_the_first_read_of_a_version() -> None:
    lease: Manifest = {
        "metadata": {"resourceVersion": "1"},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 30},
    }
    first = observe_lease(lease, None, now=0)
    again = observe_lease(lease, first, now=14)
    assert again.since == 0
    assert not may_acquire(again, "b", now=29, timing=TIMING), "the holder promised 30 s"
    assert may_acquire(again, "b", now=30, timing=TIMING)
    newer = observe_lease({**lease, "metadata": {"resourceVersion": "2"}}, again, now=29)
    assert not may_acquire(newer, "b", now=58, timing=TIMING)
    assert may_acquire(newer, "a", now=29, timing=TIMING)
    short = observe_lease(
        {"metadata": {"resourceVersion": "3"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 1}}, None, now=0
    )
    assert not may_acquire(short, "b", now=14, timing=TIMING), "never sooner than a leader may still write"


def test_the_lease_is_named_with_its_namespace() -> None:
    env = {"WEFT_ROUTER_IMAGE": "router:1", "POD_NAME": "weft-operator-1", "WEFT_OPERATOR_LEASE": "weft-system/weft"}
    found = settings_from_env(env)
    assert (found.lease, found.identity, found.lease_seconds) == ("weft-system/weft", "weft-operator-1", 15.0)
    assert settings_from_env({"WEFT_ROUTER_IMAGE": "router:1"}).lease == "", "without one, an operator works alone"
    for wrong in ("weft", "/weft", "weft-system/", "Weft/weft", "a/b/c"):
        with pytest.raises(SettingsError, match="WEFT_OPERATOR_LEASE"):
            settings_from_env({**env, "WEFT_OPERATOR_LEASE": wrong})
    half = LeaseTiming.of(7.5)
    assert (half.duration, half.deadline, half.retry) == (7.5, 5.0, 1.0)
