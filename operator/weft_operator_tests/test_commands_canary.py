"""``weft rollout promote`` and ``abort``, and how ``weft status`` and ``weft rollout status`` show a canary."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from weft_operator.commands.rollout import rollout
from weft_operator.commands.status import status
from weft_operator_tests.served import Served, call, refusal, serving

TRIAL = {
    "plan": "P2x4 D4x2",
    "hash": "191a75f62029",
    "state": "Running",
    "percent": 10,
    "until": "2026-01-01T00:10:00Z",
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with serving(monkeypatch) as found:
        yield found


def _trying(server: Served, **more: Any) -> None:
    server.service["status"]["canary"] = {**TRIAL, **more}
    server.publish()


@pytest.mark.parametrize("word", ["promote", "abort"])
def test_a_person_ends_the_canary_of_the_plan_that_is_shown(server: Served, word: str) -> None:
    assert "has no canary" in refusal(call(rollout, word, "demo"))
    _trying(server, state="Failed")
    assert "has no canary" in refusal(call(rollout, word, "demo"))
    assert not server.patched()
    _trying(server)
    result = call(rollout, word, "demo", "-o", "json")
    assert json.loads(result.stdout)["requested"] == word
    assert server.patched()[0][1]["metadata"]["annotations"] == {"weft.dev/canary": f"{word} 191a75f62029"}


def test_a_canary_is_shown(server: Served) -> None:
    _trying(server)
    shown = " ".join(call(status, "demo").output.split())
    assert "10 % of new sessions go to P2x4 D4x2, analyzed at 2026-01-01T00:10:00Z (running)" in shown
    assert "weft rollout promote demo" in shown
    body = json.loads(call(rollout, "status", "demo", "--timeout", "0", "-o", "json").output)
    assert body["canary"]["percent"] == 10
    _trying(server, state="RolledBack", message="it did worse")
    assert "(rolled back: it did worse)" in " ".join(call(status, "demo").output.split())
