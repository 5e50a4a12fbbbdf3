"""Sessions whose KV is in a tier below the GPUs: mock engines, sidecars and a coordinator as processes on loopback."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from weft_e2e.stack import Stack, StackConfig, StackWorker, running
from weft_e2e.waiting import until
from weft_mock.tokenizer import filler
from weft_mock_tests.engines import profile

pytestmark = pytest.mark.component

CAPACITY = 8192
TIER = "cpu:64Mi:25e6"
"""Half a million tokens of the profile's 100 bytes; 250,000 a second."""
PROMPT = 1500
Messages = list[dict[str, str]]


def wait(condition: Callable[[], bool], what: str) -> None:
    until(condition, what=what, timeout_s=30.0, every_s=0.2)


class Session:
    """A conversation with the service."""

    def __init__(self, stack: Stack, name: str, seed: int, tokens: int = PROMPT) -> None:
        self.stack = stack
        self.name = name
        self.messages: Messages = []
        self.question = filler(tokens, seed)
        self.worker = ""

    def ask(self, question: str = "") -> str:
        """Ask the next question; return the worker that answered."""
        self.messages.append({"role": "user", "content": question or self.question})
        body = {"model": self.stack.config.profile.model, "messages": self.messages, "max_tokens": 40, "stream": True}
        text = ""
        with httpx.stream(
            "POST", f"{self.stack.target.url}/v1/chat/completions", json=body, timeout=30.0,
            headers={"X-Session-Id": self.name},
        ) as reply:  # fmt: skip
            assert reply.status_code == 200, reply.read()
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    text += httpx.Response(200, text=line[6:]).json()["choices"][0]["delta"].get("content") or ""
            self.worker = reply.headers["x-weft-worker"]
        self.messages.append({"role": "assistant", "content": text})
        return self.worker

    def row(self) -> Any:
        """Return what its worker's sidecar says of it: the session with as many rounds and the longest prompt."""
        rounds = len(self.messages) // 2
        rows = self.stack.debug(self.worker, "/debug/sessions?sort=idle")["sessions"]
        return next(row for row in rows if row["rounds"] == rounds)


def last_of(stack: Stack, worker: str) -> Any:
    """Return the engine's record of the request that it served last."""
    recent: Any = stack.ledger(worker)["recent"]
    return recent[-1]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    config = StackConfig(
        profile=profile(kv_capacity=CAPACITY), workers=(StackWorker("d-0", "decode", 1),), policy="colocated",
        max_model_len=4096, bidirectional=False, kv_events=True, kv_tiers=(TIER,),
    )  # fmt: skip
    with running(config, tmp_path_factory.mktemp("kv-tiers")) as stack:
        yield stack


def test_each_session_has_exact_counts_of_its_tokens_by_tier(alone: Stack) -> None:
    """The next round reads what the counts say from the GPU's memory and from the tier, and computes the rest."""
    session = Session(alone, "exact", 1)
    session.ask()
    wait(lambda: session.row()["kv"] is not None, "events to be trusted")
    row = session.row()
    whole = row["tokens"] // 16 * 16
    assert row["kv"] == {"gpu": whole, "cpu": 0, "disk": 0, "remote": 0, "none": row["tokens"] - whole}
    session.ask("and now?")
    for number in range(3):
        Session(alone, f"other {number}", 10 + number, tokens=2200).ask()

    wait(lambda: 0 < session.row()["kv"]["cpu"], "others to push it out of the GPU's memory")
    row = session.row()
    kv, whole = row["kv"], row["tokens"] // 16 * 16
    assert kv["gpu"] + kv["cpu"] == whole
    assert kv["none"] == row["tokens"] - whole
    session.ask("again?")
    record = last_of(alone, "d-0")
    assert (record["cached"], record["loaded"]) == (kv["gpu"], kv["cpu"])
