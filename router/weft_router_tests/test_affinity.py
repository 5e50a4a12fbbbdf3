"""A new session goes where its prompt is cached, when the service's binding asks for that."""

from typing import Any

from weft_router.api.inference import Inference, check
from weft_router.config import LimitsConfig, ModelConfig
from weft_router.rounds.affinity import Affinity
from weft_router.state.store import WorkerRecord

MODEL = ModelConfig.model_validate({"name": "m", "maxModelLen": 100_000})
LIMITS = LimitsConfig.model_validate({})
SYSTEM = {"role": "system", "content": "s" * 4000}
RECORDS = [WorkerRecord(name, "decode", "http://x", 1, 100_000, incarnation="1") for name in ("d0", "d1", "d2")]


def chat(question: str) -> Inference:
    body: dict[str, Any] = {"model": "m", "messages": [SYSTEM, {"role": "user", "content": question}]}
    return check("/v1/chat/completions", body, model=MODEL, limits=LIMITS)


def text(prompt: str | list[int]) -> Inference:
    return check("/v1/completions", {"model": "m", "prompt": prompt}, model=MODEL, limits=LIMITS)


def place(affinity: Affinity, inference: Inference, *, tenant: str = "", note: bool = True) -> str | None:
    worker = affinity.choose(RECORDS, inference, None, tenant=tenant, ratio=4.0, need=100)
    if note and worker is not None and affinity.reads_prompts:
        affinity.note(worker, inference, None, tenant=tenant, ratio=4.0)
    return worker


def test_sessions_with_the_same_beginning_share_a_worker() -> None:
    affinity = Affinity("prefix-aware", ttl_s=600)
    assert affinity.reads_prompts
    affinity.note("d1", chat("hello"), None, tenant="", ratio=4.0)
    assert place(affinity, chat("something else")) == "d1"
    assert place(affinity, chat("something else"), tenant="acme", note=False) == "d0", "caches of tenants are apart"
    assert place(affinity, text("no such beginning" * 100)) != "d1"
    affinity.tidy(RECORDS)
    assert place(affinity, chat("again"), note=False) == "d1"
    restarted = [RECORDS[0], WorkerRecord("d1", "decode", "http://x", 1, 100_000, incarnation="2"), RECORDS[2]]
    affinity.tidy(restarted)
    assert place(affinity, chat("and again"), note=False) == "d0"


def test_plain_prompts_and_token_ids_count_by_blocks() -> None:
    affinity = Affinity("prefix-aware", ttl_s=600)
    affinity.note("d2", text("a" * 4000), None, tenant="", ratio=4.0)
    assert place(affinity, text("a" * 3000 + "b" * 3000), note=False) == "d2"
    affinity.note("d1", text(list(range(2000))), None, tenant="", ratio=4.0)
    assert place(affinity, text([*range(1500), 7]), note=False) == "d1"


def test_other_bindings_do_not_look_at_prompts() -> None:
    affinity = Affinity("round-robin", ttl_s=600)
    assert not affinity.reads_prompts
    assert [place(affinity, chat("x")) for _ in range(4)] == ["d0", "d1", "d2", "d0"]
    affinity.use("kv-aware")
    assert affinity.reads_prompts
