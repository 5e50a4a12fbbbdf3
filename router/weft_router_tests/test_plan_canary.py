"""A share of new sessions tries a new plan: the same ones everywhere, and no other session moves for it."""

import json
from typing import Any

import pytest

from weft_core.heartbeat import WorkerRecord
from weft_router.config import CanaryConfig, live
from weft_router.routing.canary import Canary
from weft_router_tests.stack import Stack, router_json, until

SESSIONS = [f"session-{number}" for number in range(10_000)]
NEW = {"degree": 1, "revision": "r2"}


def canary(percent: float, *, salt: str = "plan", prefill: bool = True) -> dict[str, Any]:
    groups = [{"role": "decode", **NEW}, *([{"role": "prefill", **NEW}] if prefill else [])]
    return {"percent": percent, "salt": salt, "groups": groups}


def of(percent: float, **more: Any) -> Canary:
    return Canary(CanaryConfig.model_validate(canary(percent, **more)))


def record(name: str, revision: str = "r1") -> WorkerRecord:
    return WorkerRecord(name, "prefill" if name[0] == "p" else "decode", "http://x", 1, 1000, revision=revision)


DECODE = [record("d0"), record("d1"), record("d2", "r2")]


@pytest.mark.parametrize("percent", [1, 10, 37.5, 50])
def test_the_share_of_new_sessions_is_as_asked(percent: float) -> None:
    taken = sum(of(percent).takes(session) for session in SESSIONS)
    assert abs(taken / len(SESSIONS) - percent / 100) < 0.015


def test_two_coordinators_choose_the_same_sessions_and_another_plan_is_tried_by_others() -> None:
    mine, yours, next_ = ([one for one in SESSIONS if of(10, salt=salt).takes(one)] for salt in ("a", "a", "b"))
    assert mine == yours
    assert len(set(mine) & set(next_)) < len(mine) / 3


def test_a_larger_share_takes_the_same_sessions_and_more() -> None:
    assert {one for one in SESSIONS if of(10).takes(one)} < {one for one in SESSIONS if of(20).takes(one)}


def _chosen(found: Canary, session: str, **more: Any) -> set[str]:
    given = {"before": None, "known": False, **more}
    return {one.worker for one in found.decode_for(session, DECODE, **given)}


def test_each_side_has_its_own_workers() -> None:
    assert _chosen(of(100), "s") == {"d2"}
    assert _chosen(of(0), "s") == {"d0", "d1"}
    assert _chosen(Canary(None), "s") == {"d0", "d1", "d2"}


def test_sessions_that_are_there_stay_on_their_side() -> None:
    assert _chosen(of(100), "s", known=True) == {"d0", "d1"}, "bound to a worker that is gone"
    assert _chosen(of(100), "s", known=True, before=DECODE[0]) == {"d0", "d1"}
    assert _chosen(of(0), "s", known=True, before=DECODE[2]) == {"d2"}


def test_a_side_without_workers_is_served_by_the_other() -> None:
    assert _chosen(of(100), "s", avoid={"d2"}) == {"d0", "d1", "d2"}
    alone = of(0).decode_for("s", DECODE[2:], before=None, known=False)
    assert [one.worker for one in alone] == ["d2"]


def test_prefills_stay_on_their_side_where_both_have_workers_for_them() -> None:
    prefill = [record("p0"), record("p1", "r2")]
    assert [one.worker for one in of(10).prefill_for(prefill, mine=True)] == ["p1"]
    assert [one.worker for one in of(10).prefill_for(prefill, mine=False)] == ["p0"]
    assert len(of(10, prefill=False).prefill_for(prefill, mine=True)) == 2
    assert len(Canary(None).prefill_for(prefill, mine=False)) == 2


# Through real processes.


def ask(number: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"question {number} " + "word " * 40}]


def _tell(stack: Stack, given: dict[str, Any] | None) -> None:
    """Give every process a canary, or none, as a mounted ConfigMap changes: by renaming."""
    for running in stack.processes.values():
        path = running.settings.config_file
        body = json.loads(path.read_text())
        body["routing"] = {**body["routing"], "canary": given}
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(body))
        fresh.rename(path)


async def _told(stack: Stack, given: dict[str, Any] | None) -> None:
    _tell(stack, given)
    wanted = None if given is None else CanaryConfig.model_validate(given)

    async def taken_over() -> bool:
        fronts: list[Any] = [stack.processes[name].app for name in ("c0", "c1")]  # no metric tells of it
        decodings = [stack.decoding(name) for name in ("d0", "d1", "d2")]
        found = [app._front.placer._canary._config for app in fronts] + [
            one.prefill_workers._canary._config for one in decodings
        ]
        return all(one == wanted for one in found)

    await until(taken_over)


async def _served(stack: Stack, session: str, number: int, *, front: str) -> str:
    """Serve a round of a session; return the decode worker that did it."""
    before = {name: len(engine.seen) for name, engine in stack.engines.items() if name[0] == "d"}
    answer = await stack.chat(ask(number), session=session, front=stack.processes[front].url)
    assert answer.status == 200, answer.raw
    after = {name: len(stack.engines[name].seen) for name in before}
    (worker,) = [name for name in before if after[name] > before[name]]
    return worker


@pytest.mark.component
async def test_new_sessions_are_shared_as_told_and_old_ones_stay(
    sidecars: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "PERIOD_S", 0.02)
    stack = await sidecars.up(decode=2, prefill=1, coordinators=2)
    old = {f"old-{number}": await _served(stack, f"old-{number}", number, front="c0") for number in range(6)}
    stack.config = {**router_json(), "planRevision": "r2"}
    await stack.worker("prefill", "p1")
    await stack.worker("decode", "d2")
    stack.config = router_json()
    await stack.settle(decode=3, prefill=2)
    told = canary(30)
    await _told(stack, told)
    tried = 0
    for number in range(40):
        session = f"new-{number}"
        worker = await _served(stack, session, number, front=f"c{number % 2}")
        again = await _served(stack, session, number, front=f"c{(number + 1) % 2}")
        assert again == worker, "the other coordinator agrees, and a session stays"
        tried += worker == "d2"
    assert 3 <= tried <= 22, tried
    for session, worker in old.items():
        assert await _served(stack, session, 1, front="c1") == worker
    p0, p1 = len(stack.engines["p0"].seen), len(stack.engines["p1"].seen)
    assert p0 > p1 > 0, "each side prefills for itself"
    await _told(stack, {**told, "percent": 0})
    assert {await _served(stack, f"later-{number}", number, front="c0") for number in range(8)} <= {"d0", "d1"}
    await _told(stack, None)
    assert "d2" in {await _served(stack, f"last-{number}", number, front="c0") for number in range(12)}


@pytest.mark.component
async def test_a_session_of_a_lost_canary_is_served_by_the_old_workers(
    sidecars: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "PERIOD_S", 0.02)
    stack = await sidecars.up(decode=2, prefill=1, coordinators=2)
    stack.config = {**router_json(), "planRevision": "r2"}
    await stack.worker("decode", "d2")
    stack.config = router_json()
    await stack.settle(decode=3, prefill=1)
    await _told(stack, canary(100, prefill=False))
    assert await _served(stack, "mine", 0, front="c0") == "d2"
    await stack.kill("d2")
    assert (await stack.chat(ask(1), session="mine")).status == 200
    assert (await stack.chat(ask(2), session="fresh")).status == 200


def test_workers_with_both_roles_are_on_one_side_as_others_are() -> None:
    """Each side prefills for itself; a group with the role both is decode and prefill workers of its side."""
    both = [WorkerRecord(f"b{i}", "both", "http://x", 1, 1000, revision=f"r{1 + i // 2}") for i in range(4)]
    groups = [{"role": "both", **NEW}]
    found = Canary(CanaryConfig.model_validate({"percent": 100, "groups": groups}))
    assert [one.worker for one in found.decode_for("s", both, before=None, known=False)] == ["b2", "b3"]
    assert [one.worker for one in found.prefill_for(both, mine=True)] == ["b2", "b3"]
    assert [one.worker for one in found.prefill_for(both, mine=False)] == ["b0", "b1"]


def test_a_canary_without_another_prefill_worker_uses_those_of_the_plan() -> None:
    """A canary of one worker with both roles: it is no prefill worker of its own."""
    others = [record("p0"), record("p1")]
    canary = Canary(CanaryConfig.model_validate({"percent": 10, "groups": [{"role": "both", **NEW}]}))
    assert canary.prefill_for(others, mine=True) == others
