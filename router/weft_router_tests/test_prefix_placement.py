"""A new session goes where its prompt is cached, when the service's binding asks for that."""

from dataclasses import replace
from typing import Any

import pytest

from weft_core.heartbeat import WorkerRecord
from weft_core.kv_tiers import SPEEDS, TierSpeed
from weft_core.prefix_sketch import link_digest, sketch_of
from weft_router.config import LimitsConfig, ModelConfig, RouterConfig
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import Inference, check_request
from weft_router.routing.prefix_placement import RECENT_S, PrefixAwarePlacement, bindings_of, hot_workers
from weft_router.routing.prefix_worth import PrefixHit, PrefixWorth, announced_hit
from weft_router.routing.prompt_chain import prompt_chain
from weft_router_tests.stack import router_json

MODEL = ModelConfig.model_validate({"name": "m", "maxModelLen": 100_000})
LIMITS = LimitsConfig.model_validate({})
SYSTEM = {"role": "system", "content": "s" * 4000}
RECORDS = [WorkerRecord(name, "decode", "http://x", 1, 100_000, instance_id="1") for name in ("d0", "d1", "d2")]


PROFILE = RouterConfig.model_validate(router_json()).cost_profile()
WORTH = PrefixWorth(lambda _: PROFILE)


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
    placement = PrefixAwarePlacement({"default": "prefix-aware"}, ttl_s=600, worth=WORTH)
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
    placement = PrefixAwarePlacement({"default": "prefix-aware"}, ttl_s=600, worth=WORTH)
    placement.record_prompt("d2", text("a" * 4000), None, tenant="", chars_per_token=4.0)
    assert place(placement, text("a" * 3000 + "b" * 3000), note=False) == "d2"
    placement.record_prompt("d1", text(list(range(2000))), None, tenant="", chars_per_token=4.0)
    assert place(placement, text([*range(1500), 7]), note=False) == "d1"


def test_other_bindings_do_not_look_at_prompts() -> None:
    placement = PrefixAwarePlacement({"default": "round-robin"}, ttl_s=600, worth=WORTH)
    assert not placement.reads_prompts
    assert [place(placement, chat("x")) for _ in range(4)] == ["d0", "d1", "d2", "d0"]
    placement.reload({"default": "kv-aware"}, min_hit_ratio=0.0)
    assert placement.reads_prompts


def test_classes_place_by_their_own_bindings_and_all_prompts_are_noted_for_the_one_that_looks() -> None:
    placement = PrefixAwarePlacement({"default": "round-robin", "chat": "prefix-aware"}, ttl_s=600, worth=WORTH)
    assert placement.reads_prompts
    assert [place(placement, chat("x"), note=False) for _ in range(2)] == ["d0", "d1"]
    placement.record_prompt("d2", chat("hello"), None, tenant="", chars_per_token=4.0)
    assert place(placement, chat("something else"), class_="chat", note=False) == "d2"
    assert place(placement, chat("y"), note=False) == "d2", "it was its turn"
    assert place(placement, chat("y"), class_="gone", note=False) == "d0", "a class that is gone is plain"
    placement.reload({"default": "round-robin", "chat": "round-robin"}, min_hit_ratio=0.0)
    assert not placement.reads_prompts


def test_every_class_of_a_service_has_a_binding() -> None:
    body = router_json(routing={"binding": "least-requests", "classes": {"a": {"binding": "round-robin"}, "b": {}}})
    body["qos"] = {"classes": {"a": {}, "b": {}}}
    assert bindings_of(RouterConfig.model_validate(body)) == {
        "a": "round-robin", "b": "least-requests", "default": "least-requests",
    }  # fmt: skip


def cached(
    name: str, prompt: Inference | None, *, batch: int = 0, links: int = 1, tier: str = "", below: int = 0
) -> WorkerRecord:
    """Return a worker whose engine keeps the first links of a prompt, by its events; the last ``below`` in a tier."""
    digests = [] if prompt is None else [link_digest("", link) for link in prompt_chain(prompt, None, 4.0)[0]]
    kept = digests[: links + 1]  # the first one stands for what is before the messages
    tiers = ((tier, sketch_of(kept[-below:])),) if tier else ()
    return WorkerRecord(
        name, "decode", "http://x", 1, 100_000, instance_id="1", kv_prefixes=sketch_of(kept), kv_tier_prefixes=tiers,
        batch=batch,
    )  # fmt: skip


def chosen(placement: PrefixAwarePlacement, records: list[WorkerRecord], inference: Inference) -> str | None:
    return placement.choose(records, inference, None, tenant="", chars_per_token=4.0, needed_kv=100)


def test_what_engines_say_of_their_caches_takes_the_place_of_the_estimate() -> None:
    clock = Clock()
    placement = PrefixAwarePlacement({"default": "prefix-aware"}, ttl_s=600, worth=WORTH, clock=clock)
    placement.record_prompt("d0", chat("hello"), None, tenant="", chars_per_token=4.0)
    records = [cached("d0", None), cached("d1", None), cached("d2", chat("hello"))]
    assert chosen(placement, records, chat("other")) == "d0", "it was sent there a moment ago"
    clock.now += RECENT_S + 1
    assert chosen(placement, records, chat("other")) == "d2"
    assert chosen(placement, [*records[:2], RECORDS[2]], chat("other")) == "d0", "nobody has it: headroom"
    assert chosen(placement, [RECORDS[0], records[1]], chat("other")) == "d0", "of workers without events, the estimate"


def test_a_hot_worker_is_joined_for_no_prefix() -> None:
    placement = PrefixAwarePlacement({"default": "prefix-aware"}, ttl_s=600, worth=WORTH)
    records = [cached("d0", None), cached("d1", None), cached("d2", chat("hello"), batch=4)]
    assert chosen(placement, records, chat("other")) == "d2"
    records[2] = cached("d2", chat("hello"), batch=5)
    assert hot_workers(records) == ["d2"]
    assert chosen(placement, records, chat("other")) == "d0"
    assert hot_workers([]) == hot_workers(records[2:]) == []
    assert hot_workers([cached("d0", None, batch=4), cached("d1", None, batch=12)]) == []
    assert hot_workers([cached("d0", None, batch=4), cached("d1", None, batch=13)]) == ["d1"]


def test_hits_count_from_the_given_share_of_the_prompt_on() -> None:
    """4,000 of 4,200 characters are the system prompt, which d2 has; of 10,000 they are less than half."""
    placement = PrefixAwarePlacement({"default": "prefix-aware"}, ttl_s=600, worth=WORTH, min_hit_ratio=0.75)
    for records in (RECORDS, [cached("d0", None), cached("d1", None), cached("d2", chat("hello"))]):
        placement.record_prompt("d2", chat("hello"), None, tenant="", chars_per_token=4.0)
        assert chosen(placement, records, chat("q" * 200)) == "d2"
        assert chosen(placement, records, chat("q" * 6000)) != "d2"
    placement.reload({"default": "prefix-aware"}, min_hit_ratio=0.3)
    assert chosen(placement, RECORDS, chat("q" * 6000)) == "d2"


def test_a_prefix_in_gpu_memory_is_worth_more_than_the_same_in_a_tier() -> None:
    """The tier's is worth more than none, unless loading takes longer than computing."""
    clock = Clock()
    records = [cached("d0", None), cached("d1", chat("x"), tier="cpu", below=1), cached("d2", chat("x"))]
    placement = PrefixAwarePlacement({"default": "prefix-aware"}, ttl_s=600, worth=WORTH, clock=clock)
    assert chosen(placement, records, chat("other")) == "d2"
    clock.now += 10
    assert chosen(placement, records[:2], chat("other")) == "d1"
    slow = PrefixWorth(lambda _: PROFILE, {**SPEEDS, "cpu": TierSpeed(1.0)})
    placement = PrefixAwarePlacement({"default": "prefix-aware"}, ttl_s=600, worth=slow, clock=clock)
    assert chosen(placement, records[:2], chat("other")) == "d0"


def test_the_worth_of_a_hit_worked_by_hand() -> None:
    """T_pre of 1,000 tokens is 10 ms + 0.1 ms each; a load of half of them takes a quarter of that."""
    digests = [link_digest("", link) for link in "abc"]
    tokens = [200, 500, 1000]
    record = WorkerRecord(
        "d", "decode", "http://x", 1, 100_000, kv_prefixes=sketch_of(digests),
        kv_tier_prefixes=(("cpu", sketch_of(digests[2:])),),
    )  # fmt: skip
    hit = announced_hit(record, digests, tokens, recent=0)
    assert hit == PrefixHit(1000, {"cpu": 500})
    assert hit.in_memory == 500
    compute_s = PROFILE.t_pre(history=0, increment=1000, degree=1)
    speed = TierSpeed(500 * PROFILE.kv_bytes_per_token / (compute_s / 4))
    assert PrefixWorth(lambda _: PROFILE, {"cpu": speed}).tokens(record, hit) == pytest.approx(750, abs=1)
    assert announced_hit(record, digests, tokens, recent=800) == PrefixHit(1000, {"cpu": 200}), "sent a moment ago"
    assert announced_hit(record, digests[:1], tokens, recent=800) == PrefixHit(800, {})
    other = replace(record, degree=7)
    assert PrefixWorth(lambda _: PROFILE).tokens(other, hit) == 1000, "a degree that the profile does not know"
