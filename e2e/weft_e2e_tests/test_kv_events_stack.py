"""Bindings by what engines really have cached: mock engines, sidecars and a coordinator as processes on loopback."""

from collections.abc import Callable, Iterator

import httpx
import pytest

from weft_core.heartbeat import WorkerRecord
from weft_core.keys import derive
from weft_core.prefix_sketch import covered, link_digest
from weft_e2e.metrics import parse
from weft_e2e.stack import HOST, TOKEN, Stack, StackConfig, StackWorker, running
from weft_e2e.waiting import until
from weft_mock.tokenizer import filler
from weft_mock_tests.engines import profile
from weft_router.auth.principal import NO_KEYS_TENANT
from weft_router.config import LimitsConfig, ModelConfig
from weft_router.openai import digest
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import check_request
from weft_router.routing.prompt_chain import prompt_chain

pytestmark = pytest.mark.component

CAPACITY = 8192
SYSTEM = filler(1500, 7)
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    workers = (StackWorker("d-0", "decode", 1), StackWorker("d-1", "decode", 1))
    config = StackConfig(
        profile=profile(kv_capacity=CAPACITY), workers=workers, policy="colocated", binding="prefix-aware",
        max_model_len=4096, bidirectional=False, kv_events=True,
    )  # fmt: skip
    # Digests of long texts are keyed by the service's token.
    with pytest.MonkeyPatch.context() as patch, running(config, tmp_path_factory.mktemp("kv-events")) as found:
        patch.setattr(digest._Key, "value", digest._Key.value)
        digest.use_key(derive(TOKEN.encode(), "transcripts"))
        yield found


def body(stack: Stack, question: str, system: str = SYSTEM) -> dict[str, object]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return {"model": stack.config.profile.model, "messages": messages, "max_tokens": 40, "stream": False}


def ask(stack: Stack, question: str, system: str = SYSTEM) -> str:
    """Send the first round of a new session; return its worker."""
    reply = httpx.post(f"{stack.target.url}{PATH}", json=body(stack, question, system), timeout=30.0)
    assert reply.status_code == 200, reply.text
    return reply.headers["x-weft-worker"]


def announced(stack: Stack, worker: str, system: str = SYSTEM) -> int | None:
    """Return how many links of a prompt a worker's heartbeat has: what comes before the messages, and the system's."""
    limits = RequestLimits(
        ModelConfig.model_validate({"name": stack.config.profile.model, "maxModelLen": 4096}),
        LimitsConfig.model_validate({}),
    )
    chain, _ = prompt_chain(check_request(PATH, body(stack, "?", system), limits), None, 4.0)
    record = record_of(stack, worker)
    if record is None or record.kv_prefixes is None:
        return None
    return covered(record.kv_prefixes, [link_digest(NO_KEYS_TENANT, link) for link in chain[:2]])


def record_of(stack: Stack, worker: str) -> WorkerRecord | None:
    return next((record for record in stack.records() if record.worker == worker), None)


def whole(stack: Stack, worker: str) -> bool:
    """Return whether a sidecar knows as many blocks as its engine has cached."""
    page = parse(stack.metrics_pages()[worker]).samples
    blocks = stack.ledger(worker)["blocks"]
    assert isinstance(blocks, dict)
    return page["weft_router_kv_events_blocks", frozenset({("tier", "gpu")})] == float(blocks["cached"])


def wait(condition: Callable[[], bool], what: str) -> None:
    until(condition, what=what, timeout_s=30.0, every_s=0.2)


def sources(stack: Stack) -> dict[str, float]:
    samples = parse(stack.metrics_pages()["coordinator"]).samples
    found = {dict(labels)["source"]: n for (name, labels), n in samples.items() if name == "weft_router_prefix_sources"}
    return dict(found)


def test_sessions_go_where_engines_have_their_prefix_cached(stack: Stack) -> None:
    """A coordinator that has sent nothing knows it, and one that has sent it knows when it is gone."""
    assert sources(stack) == {"events": 0, "estimate": 2}
    holder = ask(stack, "first")
    other = ask(stack, "second", filler(1500, 8))
    assert {holder, other} == {"d-0", "d-1"}
    wait(lambda: announced(stack, holder) == 2, "the system prompt to be announced")
    wait(lambda: announced(stack, other) is not None, "events of the other worker to be trusted")
    assert announced(stack, other) != 2

    stack.kill("coordinator")
    stack.restart("coordinator")
    stack.wait_known()
    wait(lambda: sources(stack) == {"events": 2, "estimate": 0}, "the coordinator to go by events")
    for number in range(4):
        assert ask(stack, f"third {number}") == holder

    with httpx.Client(timeout=30.0) as http:  # what others send to the engine pushes it out
        for seed in range(100, 104):
            sent = body(stack, filler(2500, seed), "x")
            url = f"http://{HOST}:{stack.engine_ports[holder]}{PATH}"
            assert http.post(url, json=sent).status_code == 200
    wait(lambda: (announced(stack, holder) or 0) < 2, "the system prompt to be gone")
    wait(lambda: whole(stack, holder), "the index to say what the engine has")


def test_a_sidecar_that_starts_again_learns_what_its_engine_has(stack: Stack) -> None:
    system = filler(1500, 9)
    holder = ask(stack, "before", system)
    wait(lambda: announced(stack, holder, system) == 2, "the system prompt to be announced")
    stack.kill(f"{holder}/router")
    stack.restart(f"{holder}/router")
    stack.wait_known()
    assert announced(stack, holder, system) is None, "it has served nothing that events could be held against"
    url = f"http://{HOST}:{stack.engine_ports[holder]}{PATH}"
    httpx.post(url, json=body(stack, "an event", system), timeout=30.0).raise_for_status()
    wait(lambda: whole(stack, holder), "all earlier batches to be replayed")


def test_an_engine_that_starts_again_has_nothing(stack: Stack) -> None:
    system = filler(1500, 10)
    holder = ask(stack, "before", system)
    wait(lambda: announced(stack, holder, system) == 2, "the system prompt to be announced")
    stack.kill(f"{holder}/engine")
    wait(lambda: announced(stack, holder, system) is None, "the sidecar to forget")
    stack.restart(f"{holder}/engine")
    stack.wait_known()
    for number in range(4):
        ask(stack, f"after {number}", filler(400, 20 + number))
    wait(lambda: whole(stack, holder), "events of the new engine")
    assert [(record.worker, record.kv_tier_faults) for record in stack.records() if record.kv_tier_faults] == []
    assert (announced(stack, holder, system) or 0) < 2
