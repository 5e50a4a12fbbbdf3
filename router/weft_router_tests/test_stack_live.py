"""Policies, bindings and classes change while requests run: none fails, and the next ones follow the new rules."""

import asyncio
import json
from typing import Any

import pytest

from weft_router.config import live
from weft_router_tests.stack import Answer, Stack, router_json, until

pytestmark = pytest.mark.component


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PERIOD_S", 0.02)


def rewrite(stack: Stack, **sections: dict[str, Any]) -> None:
    """Give every process of the stack another configuration, as a mounted ConfigMap changes: by renaming."""
    for running in stack.processes.values():
        path = running.settings.config_file
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps({**router_json(), **sections}))
        fresh.rename(path)


def ask(number: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"question {number} " + "word " * 50}]


async def test_a_policy_is_switched_under_load_and_no_request_is_lost(stack: Stack) -> None:
    await stack.up(decode=2, prefill=1)
    answers: list[Answer] = []
    ends = asyncio.Event()

    async def client(name: int) -> None:
        number = 0
        while not ends.is_set():
            number += 1
            answers.append(await stack.chat(ask(number), session=f"s{name}-{number}", stream=bool(number % 2)))

    clients = [asyncio.create_task(client(i)) for i in range(4)]
    routes = {"remote-jsq": "remote", "always-local": "local", "always-remote": "remote"}
    for policy, route in routes.items():
        rewrite(stack, routing={**router_json()["routing"], "policy": policy})
        since = len(answers)

        async def followed(since: int = since, route: str = route) -> bool:
            latest = [answer.headers.get("X-Weft-Route") for answer in answers[since:]][-8:]
            return latest == [route] * 8

        await until(followed)
    ends.set()
    await asyncio.gather(*clients)
    failed = [answer.status for answer in answers if answer.status != 200 or not answer.text]
    assert not failed, f"{len(failed)} of {len(answers)} failed"


async def test_a_class_and_its_rules_come_and_go(stack: Stack) -> None:
    await stack.up(decode=1, prefill=1)
    gold = {"X-Weft-Class": "gold"}
    assert (await stack.chat(ask(0), headers=gold)).status == 400
    rules = {"policy": "always-local"}
    rewrite(
        stack,
        qos={"classes": {"gold": {"maxOutputTokens": 1}}},
        routing={**router_json()["routing"], "classes": {"gold": rules}},
    )

    async def local() -> bool:
        answer = await stack.chat(ask(1), headers=gold)
        return answer.headers.get("X-Weft-Route") == "local"

    await until(local)
    plain = await stack.chat(ask(2))
    assert plain.headers["X-Weft-Route"] == "remote"
    capped = await stack.chat(ask(3), headers=gold, max_tokens=8)
    assert capped.json["usage"]["completion_tokens"] == 1
    assert capped.headers["X-Weft-Output-Cap"] == "1"
    assert "X-Weft-Output-Cap" not in plain.headers
    rewrite(stack)

    async def unknown() -> bool:
        return (await stack.chat(ask(4), headers=gold)).status == 400

    await until(unknown)


async def test_a_classes_new_sessions_go_by_its_binding_from_a_reload_on(stack: Stack) -> None:
    """By KV in use d1 is everyone's choice; by turns every other session goes to d0."""
    routing = {**router_json()["routing"], "binding": "kv-headroom"}
    stack.config = {**router_json(routing=routing), "qos": {"classes": {"batch": {}}}}
    await stack.up(decode=2, prefill=0)
    stack.engines["d0"].kv_usage = 0.9

    async def known() -> bool:
        return any(r.worker == "d0" and r.kv_used for r in stack.registry("c0").ready("decode"))

    await until(known)
    sessions = iter(range(1000))

    async def placed(class_: str) -> list[str]:
        asked = [
            await stack.chat(ask(0), session=f"b{next(sessions)}", headers={"X-Weft-Class": class_}) for _ in "1234"
        ]
        return [answer.headers["X-Weft-Worker"] for answer in asked]

    assert set(await placed("batch")) == {"d1"}
    by_turns = {**routing, "classes": {"batch": {"binding": "round-robin"}}}
    rewrite(stack, qos={"classes": {"batch": {}}}, routing=by_turns)

    async def followed() -> bool:
        return set(await placed("batch")) == {"d0", "d1"}

    await until(followed)
    assert set(await placed("default")) == {"d1"}


async def test_a_broken_configuration_changes_nothing(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    await stack.up(decode=1, prefill=1)
    rewrite(stack, routing={"policy": "magic"})

    async def said() -> bool:
        refused = [record for record in caplog.records if record.message == "configuration_refused"]
        return len(refused) == len(stack.processes)

    await until(said)
    answer = await stack.chat(ask(0))
    assert (answer.status, answer.headers["X-Weft-Route"]) == (200, "remote")
