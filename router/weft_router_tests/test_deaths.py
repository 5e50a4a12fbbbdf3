"""Which request an engine died of, what is held back for it, and whose turn it is to be tried again."""

import asyncio
from typing import Any

import pytest

from weft_core.heartbeat import MAX_QUARANTINED
from weft_router.config import LimitsConfig, ModelConfig
from weft_router.engines.deaths import (
    AGAIN,
    BYSTANDER,
    MOST_PROVEN,
    POISON,
    SETTLED_S,
    SUSPECT,
    DeathTracker,
    InFlightRequest,
    classify,
)
from weft_router.errors import ApiError, EngineDiedError
from weft_router.http.upstream_request import UpstreamRequest
from weft_router.limits.quarantine import MOST, MOST_DOUBTS, MOST_EACH, Quarantine
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.fingerprint import fingerprint, unusual
from weft_router.openai.inference import Inference, check_request
from weft_router.roles.crash_retries import CrashRetries

NOBODY: frozenset[str] = frozenset()
KEY = b"k" * 32
MODEL = ModelConfig.model_validate({"name": "m", "maxModelLen": 10_000})


def request(text: str = "x", **fields: Any) -> Inference:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
    return check_request("/v1/chat/completions", body, RequestLimits(MODEL, LimitsConfig(), None))


def serving(
    *, age: float = 0.0, first: bool = False, streams: bool = True, deaths: int = 0, strange: bool = False
) -> InFlightRequest:
    return InFlightRequest("t", NOBODY, streams, deaths, 100.0 - age, strange, first)


@pytest.mark.parametrize(
    ("live", "verdicts"),
    [
        ([serving()], [POISON]),
        ([serving(first=True)], [BYSTANDER]),
        ([serving(first=True), serving()], [BYSTANDER, POISON]),
        ([serving(), serving()], [SUSPECT, SUSPECT]),
        ([serving(), serving(strange=True), serving(first=True)], [SUSPECT, POISON, BYSTANDER]),
        ([serving(strange=True), serving(strange=True)], [POISON, POISON]),
        ([serving(strange=True, first=True)], [BYSTANDER]),
        ([serving(), serving(deaths=1), serving(strange=True)], [SUSPECT, POISON, SUSPECT]),
        ([serving(first=True, deaths=1)], [POISON]),
        ([serving(first=True, deaths=1), serving(first=True)], [POISON, BYSTANDER]),
        ([serving(first=True, deaths=1), serving(first=True, deaths=1)], [AGAIN, AGAIN]),
        ([serving(first=True, deaths=1), serving(first=True, deaths=1, strange=True)], [AGAIN, POISON]),
        ([serving(first=True, deaths=1, strange=True)] * 2, [AGAIN, AGAIN]),
        ([serving(first=True, deaths=1), serving()], [AGAIN, SUSPECT]),
        ([serving(first=True, strange=True), serving()], [BYSTANDER, SUSPECT]),
        ([serving(first=True, strange=True), serving(strange=True)], [BYSTANDER, POISON]),
        ([serving(first=True, deaths=1), serving(deaths=1)], [AGAIN, POISON]),
        ([serving(first=True, deaths=1, strange=True), serving(deaths=1)], [AGAIN, AGAIN]),
        ([serving(streams=False, age=SETTLED_S), serving(streams=False)], [BYSTANDER, POISON]),
        ([serving(age=10 * SETTLED_S)], [POISON]),
    ],
)
def test_who_came_last_is_the_cause_and_who_was_on_its_way_is_not(
    live: list[InFlightRequest], verdicts: list[str]
) -> None:
    legs = [UpstreamRequest(first_s=1.0) for _ in live]
    found = classify(dict(zip(legs, live, strict=True)), 100.0)
    assert [found[leg] for leg in legs] == verdicts


class Engine:
    """An engine that lives or not, and how often it was asked."""

    def __init__(self) -> None:
        self.gone = True
        self.asked: list[bool] = []
        self.told = 0
        self.deaths = DeathTracker(self.ended, self.died)

    async def ended(self, twice: bool) -> bool:
        self.asked.append(twice)
        await asyncio.sleep(0)
        return self.gone

    def died(self) -> None:
        self.told += 1

    def enter(self, *, fields: frozenset[str] = NOBODY) -> UpstreamRequest:
        leg = UpstreamRequest(first_s=1.0)
        self.deaths.enter(leg, tenant="t", fields=fields, streams=True)
        return leg


async def test_one_look_serves_all_requests_and_takes_them_as_they_were() -> None:
    engine = Engine()
    one, two = engine.enter(), engine.enter()
    first, second = engine.deaths.failed(one, "disconnected"), engine.deaths.failed(two, "cut-short")
    engine.deaths.leave(one)
    engine.deaths.leave(two)
    late = engine.enter()
    assert first is not None
    assert second is not None
    assert (await first.verdict(), await second.verdict()) == (SUSPECT, SUSPECT)
    with pytest.raises(EngineDiedError):
        await second.examine()
    assert (engine.asked, engine.told) == ([True], 1)
    other = engine.deaths.failed(late, "engine-error")
    assert other is not None
    assert await other.verdict() == POISON
    assert engine.asked == [True, False]


async def test_an_engine_that_lives_is_looked_at_anew_the_next_time() -> None:
    engine = Engine()
    engine.gone = False
    leg = engine.enter()
    for _ in range(2):
        death = engine.deaths.failed(leg, "engine-error")
        assert death is not None
        assert await death.verdict() == ""
        await death.examine()
    engine.gone = True
    death = engine.deaths.failed(leg, "disconnected")
    assert death is not None
    assert await death.verdict() == POISON


def test_what_says_nothing_of_the_engine_is_not_looked_into() -> None:
    engine = Engine()
    leg = engine.enter()
    assert engine.deaths.failed(UpstreamRequest(first_s=1.0), "disconnected") is None, "it was not sent there"
    for reason in ("timeout", "stalled", "shutting down", "worker lost", "cancelled", "connect", "reply-too-large"):
        assert engine.deaths.failed(leg, reason) is None
    engine.deaths.leaves = True
    assert engine.deaths.failed(leg, "disconnected") is None
    assert engine.asked == []


async def test_a_request_that_was_sent_twice_may_have_reached_an_engine_that_refuses_now() -> None:
    engine = Engine()
    leg = engine.enter()
    leg.resent = True
    death = engine.deaths.failed(leg, "connect")
    assert death is not None
    assert await death.verdict() == POISON


async def test_fields_are_strange_until_they_were_served_by_this_very_engine() -> None:
    engine = Engine()
    penalties = frozenset({"presence_penalty"})
    known = engine.enter(fields=penalties)
    assert engine.deaths._serving[known].strange
    engine.deaths.served(known)
    assert not engine.deaths._serving[engine.enter(fields=penalties)].strange
    assert engine.deaths._serving[engine.enter(fields=penalties | {"seed"})].strange
    death = engine.deaths.failed(known, "disconnected")
    assert death is not None
    await death.verdict()
    assert engine.deaths._serving[engine.enter(fields=penalties)].strange, "what comes next is another engine"
    for k in range(2 * MOST_PROVEN):
        engine.deaths.served(engine.enter(fields=frozenset({str(k)})))
    assert len(engine.deaths._proven) <= MOST_PROVEN


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, set()),
        ({"temperature": 0.3, "stop": ["a"], "tools": [{"type": "function"}], "seed": 1, "max_tokens": 3}, set()),
        ({"logprobs": False, "presence_penalty": 0, "repetition_penalty": 1.0, "n": 1, "logit_bias": {}}, set()),
        ({"logprobs": True, "top_logprobs": 2}, {"logprobs", "top_logprobs"}),
        ({"n": 2, "vendor": 1}, {"n", "vendor"}),
    ],
)
def test_a_request_is_unusual_by_what_not_nearly_all_ask_for(fields: dict[str, Any], names: set[str]) -> None:
    assert unusual(request(**fields)) == names
    picture = [{"type": "image_url", "image_url": {"url": "data:,x"}}, {"type": "text", "text": "?"}]
    body = {"model": "m", "messages": [{"role": "user", "content": picture}], **fields}
    found = check_request("/v1/chat/completions", body, RequestLimits(MODEL, LimitsConfig(), None))
    assert unusual(found) == names | {"media"}


def test_a_request_is_recognised_whatever_order_it_is_written_in_and_by_nobody_without_the_key() -> None:
    exact, shape = fingerprint(KEY, "t", request("x", top_logprobs=2, logprobs=True, user="a", stream=True))
    assert fingerprint(KEY, "t", request("x", logprobs=True, top_logprobs=2, metadata={"a": 1})) == (exact, shape)
    other, same = fingerprint(KEY, "t", request("y", logprobs=True, top_logprobs=2))
    assert other != exact
    assert same == shape
    assert not {exact, shape} & set(fingerprint(KEY, "u", request("x", logprobs=True, top_logprobs=2)))
    assert not {exact, shape} & set(fingerprint(b"l" * 32, "t", request("x", logprobs=True, top_logprobs=2)))
    assert fingerprint(KEY, "t", request("x"))[1] == ""


def refused(held: Quarantine, tenant: str, inference: Inference) -> bool:
    try:
        held.check(tenant, inference)
    except ApiError as error:
        return (error.status, error.code) == (422, "request_quarantined")
    return False


def test_a_quarantine_is_the_tenants_own_and_for_a_while() -> None:
    now = 0.0
    held = Quarantine(b"secret", 600.0, clock=lambda: now)
    assert not held.concerns("t")
    held.add("t", request("x"))
    assert refused(held, "t", request("x"))
    assert not refused(held, "t", request("y"))
    assert not refused(held, "u", request("x"))
    assert held.concerns("t")
    assert not held.concerns("u")
    now = 601.0
    assert not refused(held, "t", request("x"))
    assert held.entries() == ()
    assert len(held) == 0


def test_two_requests_with_the_same_unusual_fields_hold_back_a_third_and_two_plain_ones_nothing() -> None:
    held = Quarantine(b"secret", 600.0)
    held.add("t", request("a", min_p=0.1))
    assert not refused(held, "t", request("c", min_p=0.2))
    held.add("t", request("a", min_p=0.1))
    assert not refused(held, "t", request("c", min_p=0.2)), "the same request twice is one"
    held.add("t", request("b", min_p=0.1))
    assert refused(held, "t", request("c", min_p=0.2))
    assert not refused(held, "t", request("c", min_p=0.2, bad_words=["x"]))
    for text in "abcd":
        held.add("t", request(text))
    assert not refused(held, "t", request("e"))


def test_one_more_field_does_not_get_past_the_quarantine() -> None:
    held = Quarantine(b"secret", 600.0)
    fields: list[dict[str, Any]] = [
        {}, {"min_p": 0.1}, {"top_k": 5}, {"min_p": 0.1, "top_k": 5}, {"ignore_eos": True}, {"bad_words": ["z"]},
    ]  # fmt: skip
    ended = 0
    for more in fields:
        for text in "ab":
            one = request(text, logprobs=True, top_logprobs=2, **more)
            if not refused(held, "t", one):
                ended += 1
                held.add("t", one)
    assert ended == 3
    assert refused(held, "t", request("c", min_p=0.2))
    assert not refused(held, "t", request("c", temperature=0.2))
    assert not refused(held, "u", request("c", min_p=0.2))


def test_a_request_under_which_four_engines_ended_for_no_known_reason_is_quarantined() -> None:
    now = 0.0
    one, two = (Quarantine(b"secret", 600.0, clock=lambda: now) for _ in range(2))
    for death in ("a", "b", "c", "c", "c"):
        one.doubt("t", request("x"), death)
    two.doubt("t", request("x"), "c")
    two.merge(one.entries())
    assert not refused(two, "t", request("x")), "many of the same requests may be on one engine"
    assert not two.concerns("t")
    now = 300.0
    one.doubt("t", request("x"), "d")
    two.merge(one.entries())
    assert refused(one, "t", request("x"))
    assert refused(two, "t", request("x"))
    assert not refused(two, "t", request("y"))
    assert not refused(two, "u", request("x"))
    now = 601.0
    assert not refused(one, "t", request("x"))
    assert len(one.entries()) == 1
    one.add("t", request("y"))
    for k in range(3 * MOST_DOUBTS):
        one.doubt("t", request(str(k)), "e")
    assert len(one.entries()) == MOST_DOUBTS + 1
    assert MOST_DOUBTS + MOST_EACH <= MAX_QUARANTINED
    assert refused(one, "t", request("y"))


async def test_an_end_has_a_name_where_nobody_is_to_blame() -> None:
    engine = Engine()
    names = []
    for guilty in (0, 1, 0):
        legs = [engine.enter() for _ in range(3)]
        for leg in legs[guilty:]:
            engine.deaths.first_token(leg)
        death = engine.deaths.failed(legs[0], "disconnected")
        assert death is not None
        await death.verdict()
        names.append(engine.deaths.unsolved)
        for leg in legs:
            engine.deaths.leave(leg)
    assert names[1] == ""
    assert len(set(names)) == 3


def test_what_others_saw_counts_and_junk_does_not() -> None:
    one, two = Quarantine(b"secret", 600.0), Quarantine(b"secret", 600.0)
    one.add("t", request("x"))
    two.merge([*one.entries(), "", "::", "a:b", "x" * 10_000, "a:b:c:d"])
    assert refused(two, "t", request("x"))
    assert two.entries() == (), "what was heard is not said again"
    two.merge([])
    assert not refused(two, "t", request("x"))


def test_the_table_is_bounded_for_each_tenant_and_in_all() -> None:
    held = Quarantine(b"secret", 600.0)
    for k in range(3 * MOST_EACH):
        held.add("greedy", request(str(k)))
    held.add("other", request("x"))
    assert len(held) == MOST_EACH + 1
    assert not refused(held, "greedy", request("0"))
    assert refused(held, "greedy", request(str(3 * MOST_EACH - 1)))
    for k in range(2 * MOST):
        held.add(f"t{k}", request("x"))
    assert len(held) == MOST
    assert len(held.entries()) == MOST_EACH
    off = Quarantine(b"secret", 0.0)
    off.add("t", request("x"))
    assert len(off) == 0


async def test_retries_of_a_tenant_follow_each_other_and_end_with_a_death() -> None:
    retries = CrashRetries()
    first = await retries.enter("t")
    other = await retries.enter("u")
    other.worker = "d1"
    assert "d1" in retries.workers
    waits = [asyncio.create_task(retries.enter("t")) for _ in range(3)]
    await asyncio.sleep(0)
    first.over()
    first.over()
    second = await waits[0]
    assert not waits[1].done()
    second.over(poison=True)
    for task in waits[1:]:
        with pytest.raises(ApiError, match="which may be why"):
            await task
    other.over()
    assert not retries.workers
    again = await retries.enter("t")
    again.over()
    assert not retries._queues


async def test_a_retry_that_takes_long_lets_the_next_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_router.roles.crash_retries.HEAD_START_S", 0.01)
    retries = CrashRetries()
    await retries.enter("t")
    await retries.enter("t")
    monkeypatch.setattr("weft_router.roles.crash_retries.HEAD_START_S", 60.0)
    last = await retries.enter("t")
    monkeypatch.setattr("weft_router.roles.crash_retries.WAIT_S", 0.01)
    with pytest.raises(ApiError, match="try again"):
        await retries.enter("t")
    gone = asyncio.create_task(retries.enter("t"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait({gone})
    last.over()
    assert not retries._queues
