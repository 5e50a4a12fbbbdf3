"""A new session goes where its prompt is cached, when the service's binding asks for that."""

from typing import Any

from weft_core.heartbeat import WorkerRecord
from weft_core.prefix_sketch import link_digest, sketch_of
from weft_router.config import LimitsConfig, ModelConfig, RouterConfig
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import Inference, check_request
from weft_router.routing.prefix_placement import RECENT_S, PrefixAwarePlacement, bindings_of, hot_workers
from weft_router.routing.prompt_chain import prompt_chain
from weft_router_tests.stack import router_json

MODEL = ModelConfig.model_validate({"name": "m", "maxModelLen": 100_000})
LIMITS = LimitsConfig.model_validate({})
SYSTEM = {"role": "system", "content": "s" * 4000}
RECORDS = [WorkerRecord(name, "decode", "http://x", 1, 100_000, instance_id="1") for name in ("d0", "d1", "d2")]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def chat(question: str) -> Inference:
    body: dict[str, Any] = {"model": "m", "messages": [SYSTEM, {"role": "user", "content": question}]}
    return check_request("/v1/chat/completions", body, RequestLimits(MODEL, LIMITS))


def text(prompt: str | list[int]) -> Inference:
    return check_request("/v1/completions", {"model": "m", "prompt": prompt}, RequestLimits(MODEL, LIMITS))


def place(
    placement: PrefixAwarePlacement,
    inference: Inference,
    *,
    tenant: str = "",
    class_: str = "default",
    note: bool = True,
) -> str | None:
    worker = placement.choose(
        RECORDS, inference, None, tenant=tenant, chars_per_token=4.0, needed_kv=100, class_=class_
    )
    if note and worker is not None and placement.reads_prompts:
        placement.record_prompt(worker, inference, None, tenant=tenant, chars_per_token=4.0)
    return worker


def test_sessions_with_the_same_beginning_share_a_worker() -> None:
    placement = PrefixAwarePlacement({"default": "prefix-aware"}, ttl_s=600)
    assert placement.reads_prompts
    placement.record_prompt("d1", chat("hello"), None, tenant="", chars_per_token=4.0)
    assert place(placement, chat("something else")) == "d1"
    assert place(placement, chat("something else"), tenant="acme", note=False) == "d0", "caches of tenants are apart"
    assert place(placement, text("no such beginning" * 100)) != "d1"
    placement.update_workers(RECORDS)
    assert place(placement, chat("again"), note=False) == "d1"
    restarted = [RECORDS[0], WorkerRecord("d1", "decode", "http://x", 1, 100_000, instance_id="2"), RECORDS[2]]
    placement.update_workers(restarted)
    assert place(placement, chat("and again"), note=False) == "d0"


def test_plain_prompts_and_token_ids_count_by_blocks() -> None:
    placement = PrefixAwarePlacement({"default": "prefix-aware"}, ttl_s=600)
    placement.record_prompt("d2", text("a" * 4000), None, tenant="", chars_per_token=4.0)
    assert place(placement, text("a" * 3000 + "b" * 3000), note=False) == "d2"
    placement.record_prompt("d1", text(list(range(2000))), None, tenant="", chars_per_token=4.0)
    assert place(placement, text([*range(1500), 7]), note=False) == "d1"


def test_other_bindings_do_not_look_at_prompts() -> None:
    placement = PrefixAwarePlacement({"default": "round-robin"}, ttl_s=600)
    assert not placement.reads_prompts
    assert [place(placement, chat("x")) for _ in range(4)] == ["d0", "d1", "d2", "d0"]
    placement.reload({"default": "kv-aware"})
    assert placement.reads_prompts


def test_classes_place_by_their_own_bindings_and_all_prompts_are_noted_for_the_one_that_looks() -> None:
    placement = PrefixAwarePlacement({"default": "round-robin", "chat": "prefix-aware"}, ttl_s=600)
    assert placement.reads_prompts
    assert [place(placement, chat("x"), note=False) for _ in range(2)] == ["d0", "d1"]
    placement.record_prompt("d2", chat("hello"), None, tenant="", chars_per_token=4.0)
    assert place(placement, chat("something else"), class_="chat", note=False) == "d2"
    assert place(placement, chat("y"), note=False) == "d2", "it was its turn"
    assert place(placement, chat("y"), class_="gone", note=False) == "d0", "a class that is gone is plain"
    placement.reload({"default": "round-robin", "chat": "round-robin"})
    assert not placement.reads_prompts


def test_every_class_of_a_service_has_a_binding() -> None:
    body = router_json(routing={"binding": "least-requests", "classes": {"a": {"binding": "round-robin"}, "b": {}}})
    body["qos"] = {"classes": {"a": {}, "b": {}}}
    assert bindings_of(RouterConfig.model_validate(body)) == {
        "a": "round-robin", "b": "least-requests", "default": "least-requests",
    }  # fmt: skip


def cached(name: str, prompt: Inference | None, *, batch: int = 0, links: int = 1) -> WorkerRecord:
    """Return a worker whose engine keeps the first links of a prompt, by its events."""
    digests = [] if prompt is None else [link_digest("", link) for link in prompt_chain(prompt, None, 4.0)[0]]
    sketch = sketch_of(digests[: links + 1])  # the first one stands for what is before the messages
    return WorkerRecord(name, "decode", "http://x", 1, 100_000, instance_id="1", kv_prefixes=sketch, batch=batch)


def chosen(placement: PrefixAwarePlacement, records: list[WorkerRecord], inference: Inference) -> str | None:
    return placement.choose(records, inference, None, tenant="", chars_per_token=4.0, needed_kv=100)


def test_what_engines_say_of_their_caches_takes_the_place_of_the_estimate() -> None:
    clock = Clock()
    placement = PrefixAwarePlacement({"default": "prefix-aware"}, ttl_s=600, clock=clock)
    placement.record_prompt("d0", chat("hello"), None, tenant="", chars_per_token=4.0)
    records = [cached("d0", None), cached("d1", None), cached("d2", chat("hello"))]
    assert chosen(placement, records, chat("other")) == "d0", "it was sent there a moment ago"
    clock.now += RECENT_S + 1
    assert chosen(placement, records, chat("other")) == "d2"
    assert chosen(placement, [*records[:2], RECORDS[2]], chat("other")) == "d0", "nobody has it: headroom"
    assert chosen(placement, [RECORDS[0], records[1]], chat("other")) == "d0", "of workers without events, the estimate"


def test_a_hot_worker_is_joined_for_no_prefix() -> None:
    placement = PrefixAwarePlacement({"default": "prefix-aware"}, ttl_s=600)
    records = [cached("d0", None), cached("d1", None), cached("d2", chat("hello"), batch=4)]
    assert chosen(placement, records, chat("other")) == "d2"
    records[2] = cached("d2", chat("hello"), batch=5)
    assert hot_workers(records) == ["d2"]
    assert chosen(placement, records, chat("other")) == "d0"
    assert hot_workers([]) == hot_workers(records[2:]) == []
    assert hot_workers([cached("d0", None, batch=4), cached("d1", None, batch=12)]) == []
    assert hot_workers([cached("d0", None, batch=4), cached("d1", None, batch=13)]) == ["d1"]
