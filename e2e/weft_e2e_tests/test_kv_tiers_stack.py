"""Sessions whose KV is in a tier below the GPUs: mock engines, sidecars and a coordinator as processes on loopback."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from weft_core.kv_tiers import tier_from_text
from weft_e2e.metrics import parse
from weft_e2e.stack import HOST, TOKEN, Stack, StackConfig, StackWorker, running
from weft_e2e.waiting import until
from weft_mock.model import answer
from weft_mock.tokenizer import chat_ids, decode, filler
from weft_mock_tests.engines import profile
from weft_router.ask import ask

pytestmark = pytest.mark.component

CAPACITY = 8192
TIER = tier_from_text("cpu:64Mi:25e6")
"""Half a million tokens of the profile's 100 bytes; 250,000 a second."""
PROMPT, LONG = 1500, 3000
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
        self.worker = self.reason = self.prefiller = ""

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
            self.worker, self.reason = reply.headers["x-weft-worker"], reply.headers["x-weft-reason"]
            self.prefiller = reply.headers.get("x-weft-prefill-worker", "")
        self.messages.append({"role": "assistant", "content": text})
        return self.worker

    def row(self) -> Any:
        """Return what its worker's sidecar says of it: the session with as many rounds and the longest prompt."""
        rounds = len(self.messages) // 2
        rows = self.stack.debug(self.worker, "/debug/sessions?sort=idle")["sessions"]
        return next(row for row in rows if row["rounds"] == rounds)

    @property
    def in_tier(self) -> int:
        """Return how many of its tokens are in CPU memory and not in the GPU's."""
        kv = self.row()["kv"]
        return 0 if kv is None else kv["cpu"]


def predictions(stack: Stack) -> dict[str, float]:
    samples = parse(stack.metrics_pages()["d-0"]).samples
    return {
        dict(labels)["outcome"]: count
        for (name, labels), count in samples.items()
        if name == "weft_router_kv_predictions_total"
    }


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

    wait(lambda: session.in_tier > 0, "others to push it out of the GPU's memory")
    row = session.row()
    kv, whole = row["kv"], row["tokens"] // 16 * 16
    assert kv["gpu"] + kv["cpu"] == whole
    assert kv["none"] == row["tokens"] - whole
    session.ask("again?")
    record = last_of(alone, "d-0")
    assert (record["cached"], record["loaded"]) == (kv["gpu"], kv["cpu"])
    wait(lambda: predictions(alone).get("within-block", 0) > 1, "what was expected to be held against that")
    assert predictions(alone).keys() == {"within-block"}


@pytest.mark.parametrize(
    ("faults", "stores", "loads"),
    [
        ({}, True, True),
        ({"full_tiers": True}, False, False),
        ({"fail_loads": True}, True, False),
        ({"slow_loads": 20}, True, True),
    ],
    ids=["well", "full", "unreadable", "slow"],
)
def test_answers_are_the_same_whatever_a_tier_does(
    alone: Stack, faults: dict[str, object], stores: bool, loads: bool
) -> None:
    """Each answer has the tokens of an engine that computes the whole prompt; what is not read is computed."""
    kind = "-".join(faults) or "well"
    session = Session(alone, f"tokens {kind}", 1000 + sum(kind.encode()))
    alone.fault("d-0", faults)
    try:
        session.ask()
        session.ask("and now?")
        wait(lambda: session.row()["kv"] is not None, "events to be trusted")
        for number in range(4):
            Session(alone, f"other {kind} {number}", 2000 + 10 * number + len(kind), tokens=2200).ask()
        wait(lambda: session.row()["kv"]["gpu"] == 0, "others to push it out of the GPU's memory")
        assert session.in_tier == (session.row()["tokens"] // 16 * 16 if stores else 0)
        session.ask("again?")
    finally:
        alone.fault("d-0", {})
    record = last_of(alone, "d-0")
    assert (record["loaded"] > PROMPT - 200) == loads
    assert record["computed"] + record["cached"] + record["loaded"] == record["prompt"]
    for at in (1, 3, 5):
        expected = decode(answer(chat_ids(session.messages[:at]), 40))
        assert session.messages[at]["content"] == expected


def pinned(stack: Stack, worker: str) -> int:
    blocks: Any = stack.ledger(worker)["blocks"]
    return int(blocks["pinned"])


def push_out(stack: Stack, session: Session) -> None:
    """Send other prompts to the engine of a session until its KV is in the tier alone; no handle keeps it."""
    wait(lambda: pinned(stack, session.worker) == 0, "its handle to end")
    url = f"http://{HOST}:{stack.engine_ports[session.worker]}/v1/chat/completions"
    for seed in range(4):
        messages = [{"role": "user", "content": filler(2500, 100 + seed)}]
        body = {"model": stack.config.profile.model, "messages": messages, "max_tokens": 2}
        httpx.post(url, json=body, timeout=30.0).raise_for_status()
    wait(lambda: session.in_tier > LONG - 200, "its KV to be in the tier alone")


@pytest.fixture(scope="module")
def movable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two decode workers and a prefill worker, whose roles may change; handles end at once, all prefills are local."""
    workers = (StackWorker("d-0", "decode", 1), StackWorker("d-1", "decode", 1), StackWorker("p-0", "prefill", 1))
    config = StackConfig(
        profile=profile(kv_capacity=CAPACITY), workers=workers, policy="always-local", max_model_len=4096,
        handle_ttl_s=1.0, kv_lease_s=5.0, kv_events=True, kv_tiers=(TIER,), movable=True,
    )  # fmt: skip
    with running(config, tmp_path_factory.mktemp("kv-moves")) as stack:
        yield stack


def leaves(stack: Stack, worker: str) -> bool:
    return not any(
        record.worker == worker and record.role == "decode" and not record.draining for record in stack.records()
    )


def other_of(worker: str) -> str:
    return "d-1" if worker == "d-0" else "d-0"


def check_moved_by_kv(stack: Stack, session: Session, left: str) -> None:
    """Check that the worker that a session left loaded the history, and that the new one read all KV from it."""
    assert session.ask("and now?") == other_of(left)
    assert session.reason == "moved"
    there, here = last_of(stack, left), last_of(stack, session.worker)
    assert (there["form"], here["form"]) == ("export", "import")
    assert there["loaded"] > LONG - 200
    assert there["computed"] < 200, "the new tokens, and a few blocks"
    assert (here["read"], here["computed"]) == (here["prompt"] - 1, 1), "it computes the last token, as always"


def test_a_session_in_a_tier_moves_by_kv_when_its_worker_takes_another_role(movable: Stack) -> None:
    session = Session(movable, "role", 1, tokens=LONG)
    left = session.ask()
    wait(lambda: session.row()["kv"] is not None, "events to be trusted")
    push_out(movable, session)
    movable.assign(left, "prefill")
    wait(lambda: leaves(movable, left), "the worker to hand its sessions over")
    check_moved_by_kv(movable, session, left)
    movable.assign(left, "decode")
    movable.wait_known()


def test_a_session_in_a_tier_moves_by_kv_when_its_worker_drains(movable: Stack) -> None:
    session = Session(movable, "drain", 2, tokens=LONG)
    left = session.ask()
    wait(lambda: session.row()["kv"] is not None, "events to be trusted")
    push_out(movable, session)
    url = f"http://{HOST}:{movable.router_ports[left]}"
    assert ask(f"{url}/drain", token=TOKEN.encode(), method="POST")[0] == 200
    wait(lambda: leaves(movable, left), "the worker to drain")
    check_moved_by_kv(movable, session, left)
    status, said = ask(f"{url}/engine/prestop", token=TOKEN.encode(), timeout_s=20.0)
    assert (status, said) == (200, b"drained\n"), "nothing is left once the KV was read"


def prefilled_by(worker: str, stack: Stack) -> Session:
    """Return a session whose prompt went to a prefill worker that an idle service would not choose first."""
    with ThreadPoolExecutor(2) as clients:
        for number in range(0, 40, 2):
            sessions = [Session(stack, f"s{number + i}", number + i, tokens=LONG) for i in range(2)]
            list(clients.map(Session.ask, sessions))
            for session in sessions:
                if session.prefiller == worker:
                    return session
    raise AssertionError(f"no session went to {worker}")


@pytest.mark.parametrize("lost", [("engine",), ("engine", "router")], ids=["engine", "pod"])
def test_a_session_whose_worker_died_is_prefilled_where_its_prompt_is_cached(
    tmp_path: Path, lost: tuple[str, ...]
) -> None:
    """The sidecar of a dead engine knows where that was; the coordinator does, too, where the sidecar died with it."""
    workers = (
        *(StackWorker(name, "decode", 1) for name in ("d-0", "d-1")),
        *(StackWorker(name, "prefill", 1) for name in ("p-0", "p-1")),
    )
    config = StackConfig(
        profile=profile(kv_capacity=20 * LONG), workers=workers, policy="remote-jsq", max_model_len=4096
    )  # fmt: skip
    with running(config, tmp_path) as stack:
        session = prefilled_by("p-1", stack)
        left = session.worker
        for part in lost:
            stack.kill(f"{left}/{part}")
        assert session.ask("and now?") == other_of(left)
        assert session.prefiller == "p-1"
        assert last_of(stack, "p-1")["cached"] > LONG - 200
