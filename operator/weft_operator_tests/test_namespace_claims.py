"""Which of several operators looks after a namespace: claimed, renewed, left to another one and taken over."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from weft_operator.errors import ApiError, ForbiddenError, TransientError
from weft_operator.kube.leader_election.namespace_claims import CLAIM, NamespaceClaims, claim_name
from weft_operator_tests.samples import KEY, SETTINGS
from weft_operator_tests.test_leader_election import Clock, Leases
from weft_operator_tests.valid import service
from weft_operator_tests.world import World

WIDE, NARROW = "weft-system/weft-operator", "team-a/weft-operator"


def claims(leases: Leases, me: str, clock: Clock, instance: str = "") -> NamespaceClaims:
    return NamespaceClaims(leases, me=me, instance=instance, clock=clock)


class Renewals:
    """Lets ``keep`` renew once for each call of ``once``."""

    def __init__(self, kept: NamespaceClaims) -> None:
        self._go = asyncio.Semaphore(0)
        self._done = asyncio.Semaphore(0)
        self._began = False
        self.task = asyncio.create_task(kept.renew_forever(self._sleep))

    async def _sleep(self, _seconds: float) -> None:
        if self._began:
            self._done.release()
        self._began = True
        await self._go.acquire()

    async def once(self) -> None:
        self._go.release()
        await asyncio.wait_for(self._done.acquire(), 10)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_the_first_operator_has_a_namespace_and_the_second_is_reported_whose_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    leases, clock = Leases(), Clock()
    first, second = claims(leases, WIDE, clock), claims(leases, NARROW, clock)
    assert await first.other_operator("team-a") == ""
    with caplog.at_level(logging.ERROR):
        assert await second.other_operator("team-a") == WIDE
        clock.now += CLAIM.retry
        assert await second.other_operator("team-a") == WIDE
    assert (first.contested, second.contested) == (0, 1)
    told = [record for record in caplog.records if record.message == "namespace_of_another_operator"]
    assert len(told) == 1, "once, not at every look"
    assert (told[0].__dict__["operator"], told[0].__dict__["this_operator"]) == (WIDE, NARROW)
    assert "operator.instance" in told[0].__dict__["fix"]


async def test_another_replica_of_an_operator_goes_on_at_once() -> None:
    leases, clock = Leases(), Clock()
    assert await claims(leases, WIDE, clock).other_operator("team-a") == ""
    assert await claims(leases, WIDE, clock).other_operator("team-a") == ""


async def test_operators_of_different_instances_do_not_meet() -> None:
    assert claim_name("canary") != claim_name("")
    leases, clock = Leases(), Clock()
    assert await claims(leases, WIDE, clock, "canary").other_operator("team-a") == ""
    assert leases.lease is not None
    assert leases.lease["metadata"] == {
        "name": "weft-services-canary",
        "namespace": "team-a",
        "resourceVersion": "1",
    }


async def test_what_is_renewed_is_kept_and_what_is_not_is_taken_over() -> None:
    leases, clock = Leases(), Clock()
    first, second = claims(leases, WIDE, clock), claims(leases, NARROW, clock)
    await first.other_operator("team-a")
    kept = Renewals(first)
    for _ in range(5):
        clock.now += CLAIM.retry
        await kept.once()
        assert await second.other_operator("team-a") == WIDE
    await kept.end()
    clock.now += CLAIM.duration - 1
    assert await second.other_operator("team-a") == WIDE, "it was renewed less than the promised time ago"
    clock.now += CLAIM.retry + 1
    assert await second.other_operator("team-a") == ""
    assert (leases.holder, second.contested) == (NARROW, 0)
    back = Renewals(first)
    await back.once()
    await back.end()
    assert await first.other_operator("team-a") == NARROW, (
        "an operator that stood still finds that it lost the namespace"
    )


async def test_one_observation_is_enough_for_many_passes() -> None:
    leases, clock = Leases(), Clock()
    asked: list[str] = []

    def count(method: str) -> None:
        asked.append(method)

    leases.trouble = count
    first = claims(leases, WIDE, clock)
    await asyncio.gather(*(first.other_operator("team-a") for _ in range(20)))
    assert asked == ["GET", "POST"]


def always(error: ApiError) -> Callable[[str], ApiError]:
    return lambda _method: error


async def test_an_operator_that_may_not_have_leases_works_as_before(caplog: pytest.LogCaptureFixture) -> None:
    leases, clock = Leases(), Clock()
    leases.trouble = always(ForbiddenError("no", status=403))
    first = claims(leases, WIDE, clock)
    with caplog.at_level(logging.WARNING):
        assert await first.other_operator("team-a") == ""
        kept = Renewals(first)
        await kept.once()
        await kept.end()
    assert [record.message for record in caplog.records] == ["namespace_not_claimed"]


async def test_trouble_of_the_api_server_is_no_leave_to_work_and_ends_no_renewals() -> None:
    leases, clock = Leases(), Clock()
    first = claims(leases, WIDE, clock)
    leases.trouble = always(TransientError("no answer"))
    with pytest.raises(TransientError):
        await first.other_operator("team-a")
    leases.trouble = lambda _method: None
    assert await first.other_operator("team-a") == ""
    kept = Renewals(first)
    leases.trouble = always(TransientError("no answer"))
    await kept.once()
    leases.trouble = lambda _method: None
    version = leases.version
    await kept.once()
    await kept.end()
    assert leases.version == version + 1
    leases.trouble = always(TransientError("no answer"))
    clock.now += CLAIM.deadline - 1
    assert await first.other_operator("team-a") == ""
    clock.now += 1
    with pytest.raises(TransientError):
        await first.other_operator("team-a")


async def test_a_service_of_another_operator_is_left_alone_and_says_whose_it_is() -> None:
    world = World(service())
    whose = WIDE

    async def other_operator(namespace: str) -> str:
        assert namespace == KEY.namespace
        return whose

    world.restart(replace(SETTINGS, lease=NARROW), other_operator=other_operator)
    for _ in range(3):
        outcome = await world.reconciler.reconcile(KEY)
        assert outcome.requeue_after == 30
    assert world.cluster.actions == []
    assert "status" not in world.cluster.service
    (event,) = world.cluster.events
    assert (event.type, event.reason) == ("Warning", "OtherOperator")
    assert WIDE in event.message
    assert NARROW in event.message
    assert "operator.instance" in event.message
    whose = ""
    await world.until_quiet()
    assert world.cluster.actions, "it is taken over once the other one is gone"


async def test_groups_of_another_operators_service_are_left_alone_too() -> None:
    world = World(service())
    await world.until_quiet()
    (group, *_) = world.cluster.groups()
    spoiled = [name for name in world.cluster.names("StatefulSet") if name.startswith("demo-")]
    world.cluster.objects.pop(next(key for key in world.cluster.objects if key.name == spoiled[0]))
    before = len(world.cluster.actions)

    async def other_operator(_namespace: str) -> str:
        return WIDE

    world.restart(replace(SETTINGS, lease=NARROW), other_operator=other_operator)
    for key in world.cluster.groups():
        outcome = await world.group_reconciler.reconcile(key)
        assert (outcome.gone, outcome.requeue_after) == (False, 30), "looked at again, for the other one may go"
    assert len(world.cluster.actions) == before
    world.restart()
    for key in world.cluster.groups():
        await world.group_reconciler.reconcile(key)
    assert len(world.cluster.actions) > before, "the lost worker would have been made again"
    assert group.namespace == KEY.namespace
