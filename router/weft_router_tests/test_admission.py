"""Admission: each rule refuses what it must, nothing refused costs anything, and every place is given back."""

from time import process_time
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_router.auth.cache_salts import CacheSalts
from weft_router.auth.principal import ANYONE, Principal, RateLimits
from weft_router.config import LimitsConfig, QosConfig, RoutingConfig, SessionClass, SloConfig
from weft_router.errors import ApiError, InvalidRequestError
from weft_router.limits.admission import Admission, AdmissionPermit, Reason, Refusal, RequestLoad
from weft_router.limits.classifier import Classifier

ALICE = Principal("acme", "key-a")
BOB = Principal("acme", "key-b")
EVE = Principal("other", "key-e")
ASK = RequestLoad(prompt=100, output=50)


def admission(qos: dict[str, Any] | None = None, limits: dict[str, Any] | None = None) -> Admission:
    config = QosConfig.model_validate(qos or {})
    slo = SloConfig(ttft=2.0, itl=0.05)
    classes = {
        name: SessionClass(name=name, qos=config.of(name), routing=RoutingConfig(), slo=slo) for name in config.known()
    }
    return Admission(config, LimitsConfig.model_validate(limits or {}), classes)


def entered(outcome: AdmissionPermit | Refusal) -> AdmissionPermit:
    assert isinstance(outcome, AdmissionPermit), outcome
    return outcome


def refused(outcome: AdmissionPermit | Refusal) -> tuple[int, str, int]:
    assert isinstance(outcome, Refusal), "it should have been refused"
    return outcome.status, outcome.reason, outcome.retry_after_s


def test_without_settings_everything_comes_in_as_it_asks() -> None:
    gate = admission()
    for _ in range(1000):
        got = entered(gate.admit(0.0, ANYONE, "default", RequestLoad(prompt=1e6, kv_use=1.0, queued=99.0)))
        assert (got.output_cap, got.local_only) == (None, False)
        got.first_byte()


def test_a_keys_request_rate_holds_and_says_when() -> None:
    gate = admission(limits={"rates": {"requestsPerSecond": 2, "burstSeconds": 2}})
    for _ in range(4):
        entered(gate.admit(0.0, ALICE, "default", ASK))
    assert refused(gate.admit(0.0, ALICE, "default", ASK)) == (429, "requests", 1)
    entered(gate.admit(0.0, BOB, "default", ASK))
    entered(gate.admit(0.5, ALICE, "default", ASK))
    assert refused(gate.admit(0.5, ALICE, "default", ASK))[1] == "requests"


def test_a_caller_that_may_have_no_request_is_known_before_the_request_is_read() -> None:
    gate = admission(limits={"rates": {"requestsPerSecond": 2, "burstSeconds": 2, "concurrent": 3}})
    assert gate.closed_to(0.0, ALICE) is None
    inside = [entered(gate.admit(0.0, ALICE, "default", ASK)) for _ in range(3)]
    closed = gate.closed_to(0.0, ALICE)
    assert closed is not None
    assert (closed.status, closed.reason) == refused(gate.admit(0.0, ALICE, "default", ASK))[:2] == (429, "concurrency")
    inside[0].done(0.0)
    assert gate.closed_to(0.0, ALICE) is None, "looking is not charged"
    entered(gate.admit(0.0, ALICE, "default", ASK)).done(0.0)
    closed = gate.closed_to(0.0, ALICE)
    assert closed is not None
    assert closed.reason == refused(gate.admit(0.0, ALICE, "default", ASK))[1] == "requests"
    assert gate.closed_to(0.0, BOB) is None


def test_a_slow_rate_lets_one_request_through_at_once() -> None:
    gate = admission(limits={"rates": {"requestsPerSecond": 0.01, "burstSeconds": 1}})
    entered(gate.admit(0.0, ALICE, "default", ASK))
    assert refused(gate.admit(10.0, ALICE, "default", ASK)) == (429, "requests", 90)


def test_a_keys_token_rate_counts_what_was_really_used() -> None:
    gate = admission(limits={"rates": {"tokensPerMinute": 600, "burstSeconds": 60}})
    one = entered(gate.admit(0.0, ALICE, "default", RequestLoad(prompt=200, output=100, n=2)))
    assert refused(gate.admit(0.0, ALICE, "default", RequestLoad(prompt=200, output=100))) == (429, "tokens", 10)
    one.done(0.0, tokens=250.0)
    two = entered(gate.admit(0.0, ALICE, "default", RequestLoad(prompt=200, output=100)))
    two.done(0.0, tokens=1000.0)
    assert refused(gate.admit(60.0, ALICE, "default", RequestLoad(prompt=349, output=2)))[1] == "tokens"
    entered(gate.admit(66.0, ALICE, "default", RequestLoad(prompt=9, output=1)))


def test_a_keys_own_bounds_win_over_the_general_ones() -> None:
    gate = admission(limits={"rates": {"concurrent": 1}})
    generous = Principal("acme", "key-g", bounds=RateLimits(concurrent=2))
    entered(gate.admit(0.0, generous, "default", ASK))
    entered(gate.admit(0.0, generous, "default", ASK))
    assert refused(gate.admit(0.0, generous, "default", ASK)) == (429, "concurrency", 1)
    entered(gate.admit(0.0, ALICE, "default", ASK))
    assert refused(gate.admit(0.0, ALICE, "default", ASK))[1] == "concurrency"


def test_a_tenants_bounds_hold_for_all_its_keys_together() -> None:
    gate = admission(qos={"tenants": {"acme": {"rates": {"concurrent": 2}}}})
    first = entered(gate.admit(0.0, ALICE, "default", ASK))
    entered(gate.admit(0.0, BOB, "default", ASK))
    assert refused(gate.admit(0.0, BOB, "default", ASK))[1] == "concurrency"
    entered(gate.admit(0.0, EVE, "default", ASK))
    first.done(0.0)
    first.done(0.0)  # twice is once
    entered(gate.admit(0.0, ALICE, "default", ASK))
    assert refused(gate.admit(0.0, ALICE, "default", ASK))[1] == "concurrency"


def test_what_is_refused_by_one_bound_is_not_charged_to_another() -> None:
    gate = admission(
        qos={"tenants": {"acme": {"rates": {"concurrent": 1}}}},
        limits={"rates": {"requestsPerSecond": 1, "burstSeconds": 2}},
    )
    first = entered(gate.admit(0.0, ALICE, "default", ASK))
    for _ in range(10):
        assert refused(gate.admit(0.0, ALICE, "default", ASK))[1] == "concurrency"
    first.done(0.0)
    entered(gate.admit(0.0, ALICE, "default", ASK))


def test_a_classs_queue_and_concurrency_are_bounded() -> None:
    gate = admission(qos={"classes": {"batch": {"queueLimit": 1, "concurrent": 2}}})
    first = entered(gate.admit(0.0, ALICE, "batch", ASK))
    assert refused(gate.admit(0.0, EVE, "batch", ASK)) == (429, "class-queue", 1)
    first.first_byte()
    entered(gate.admit(0.0, EVE, "batch", ASK)).first_byte()
    assert refused(gate.admit(0.0, EVE, "batch", ASK)) == (429, "class-concurrency", 1)
    entered(gate.admit(0.0, EVE, "default", ASK))
    first.done(0.0)
    entered(gate.admit(0.0, EVE, "batch", ASK))


def test_a_queue_limit_of_zero_closes_a_class() -> None:
    gate = admission(qos={"classes": {"closed": {"queueLimit": 0}}})
    assert refused(gate.admit(0.0, ALICE, "closed", ASK))[1] == "class-queue"


def test_the_waiting_room_is_shared_by_weight_and_bounded() -> None:
    gate = admission(qos={"maxWaiting": 10, "tenants": {"acme": {"weight": 0.5}}})
    held = [entered(gate.admit(0.0, ALICE, "default", ASK)) for _ in range(7)]
    assert refused(gate.admit(0.0, ALICE, "default", ASK)) == (429, "share", 1)
    held += [entered(gate.admit(0.0, EVE, "default", ASK)) for _ in range(3)]
    assert refused(gate.admit(0.0, Principal("third", "key-t"), "default", ASK)) == (503, "full", 1)
    for one in held:
        one.done(0.0)
    assert not any(of.waiting or of.running for of in gate.of_classes.values())


def test_a_keys_weight_wins_over_the_configured_one() -> None:
    gate = admission(qos={"tenants": {"acme": {"weight": 3}}})
    weights = [gate.weight(c) for c in (ALICE, EVE, Principal("acme", "key-w", weight=7.0))]
    assert weights == [3.0, 1.0, 7.0]


def test_answers_are_capped_by_class_and_under_pressure() -> None:
    classes = {"short": {"maxOutputTokens": 100}, "soft": {"outputCap": True}}
    gate = admission(qos={"classes": classes, "pressure": {"kvUse": 0.8, "largest": 4096, "least": 256}})

    def cap(name: str, output: int | None, kv_use: float = 0.0) -> int | None:
        return entered(gate.admit(0.0, ALICE, name, RequestLoad(prompt=1, output=output, kv_use=kv_use))).output_cap

    assert [cap("short", output) for output in (None, 100, 101)] == [100, None, 100]
    assert [cap("soft", None, use) for use in (0.8, 0.9, 1.0)] == [None, 2176, 256]
    assert cap("soft", 200, 1.0) is None
    assert cap("default", 10_000, 1.0) is None


def test_low_classes_stay_off_busy_prefill_workers() -> None:
    classes = {"batch": {"localOnly": "pressure"}, "here": {"localOnly": "always"}}
    gate = admission(qos={"classes": classes, "pressure": {"busy": 4}})

    def local(name: str, queued: float) -> bool:
        return entered(gate.admit(0.0, ALICE, name, RequestLoad(prompt=1, queued=queued))).local_only

    assert [local("batch", 3.9), local("batch", 4.0), local("here", 0.0), local("default", 99.0)] == [
        False, True, True, False,
    ]  # fmt: skip


def test_a_refusal_is_an_answer_that_clients_understand() -> None:
    for reason in get_args(Reason):
        status = 503 if reason == "full" else 429
        error = Refusal(status, reason, 7).error()
        assert (error.status, error.retry_after_s) == (status, 7)
        assert "7 s" in error.message
        assert b"rate_limit" in error.body() if status == 429 else b"overloaded" in error.body()


@given(
    st.lists(
        st.tuples(st.sampled_from([ALICE, BOB, EVE]), st.sampled_from(["default", "batch"]), st.integers(0, 3)),
        max_size=80,
    )
)
def test_whatever_happens_every_place_is_given_back(steps: list[tuple[Principal, str, int]]) -> None:
    gate = admission(
        qos={
            "maxWaiting": 6,
            "classes": {"batch": {"queueLimit": 3, "concurrent": 5}},
            "tenants": {"acme": {"rates": {"concurrent": 6}}},
        },
        limits={"rates": {"concurrent": 4}},
    )
    inside: list[AdmissionPermit] = []
    for principal, name, what in steps:
        if what < 2:
            outcome = gate.admit(0.0, principal, name, ASK)
            if isinstance(outcome, AdmissionPermit):
                inside.append(outcome)
        elif inside and what == 2:
            inside[0].first_byte()
        elif inside:
            inside.pop(0).done(0.0)
        batch = gate.of_classes.get("batch")
        assert batch is None or (batch.waiting <= 3 and batch.running <= 5)
        assert sum(of.waiting for of in gate.of_classes.values()) <= 6
        for owner, most in ((ALICE, 4), (BOB, 4), (EVE, 4)):
            assert sum(one.principal is owner for one in inside) <= most
        assert sum(one.principal.tenant == "acme" for one in inside) <= 6
    for one in inside:
        one.done(0.0)
    assert not any(of.waiting or of.running for of in gate.of_classes.values())
    for _ in range(4):
        entered(gate.admit(0.0, ALICE, "default", ASK)).first_byte()


def test_rules_change_while_requests_are_in_and_no_place_is_lost() -> None:
    before = QosConfig.model_validate({"classes": {"gone": {"priority": 1}}, "maxWaiting": 2})
    gate = admission(qos=before.model_dump(by_alias=True, exclude_none=True))
    inside = [entered(gate.admit(0.0, ALICE, name, ASK)) for name in ("gone", "default")]
    assert refused(gate.admit(0.0, EVE, "default", ASK)) == (503, "full", 1)
    after = QosConfig.model_validate({"maxWaiting": 9, "tenants": {"acme": {"rates": {"concurrent": 1}}}})
    plain = SessionClass(name="default", qos=after.of("default"), routing=RoutingConfig(), slo=SloConfig(ttft=1, itl=1))
    gate.reload(after, LimitsConfig(), {"default": plain})
    entered(gate.admit(0.0, EVE, "gone", ASK)).done(0.0)
    third = entered(gate.admit(0.0, ALICE, "default", ASK))
    for one in inside:
        one.done(0.0)
    assert refused(gate.admit(0.0, BOB, "default", ASK))[1] == "concurrency", "they came in under other bounds"
    third.done(0.0)
    entered(gate.admit(0.0, BOB, "default", ASK)).done(0.0)
    assert not any(of.waiting or of.running for of in gate.of_classes.values())


def test_a_decision_costs_no_more_when_many_callers_were_seen() -> None:
    """No look at all callers: ten thousand more of them may not even triple it."""
    gate = admission(
        qos={"classes": {"top": {"earlyRejection": True}}, "tenants": {"acme": {"rates": {"concurrent": 10}}}},
        limits={"rates": {"requestsPerSecond": 1e6, "tokensPerMinute": 1e9}},
    )

    def seconds() -> float:
        best = 1.0
        for _ in range(20):
            began = process_time()
            for i in range(500):
                entered(gate.admit(float(i), ALICE, "top", ASK)).done(float(i), 120.0)
            best = min(best, process_time() - began)
        return best

    alone = seconds()
    for n in range(10_000):
        entered(gate.admit(0.0, Principal(f"tenant-{n}", f"key-{n}"), "top", ASK)).done(0.0, 120.0)
    assert seconds() < 3 * alone


def classifier(**qos: Any) -> Classifier:
    body = {"classes": {"gold": {"priority": 2}, "batch": {}}, **qos}
    return Classifier(QosConfig.model_validate(body))


def test_a_class_is_named_by_header_field_key_or_tenant_in_this_order() -> None:
    find = classifier(tenants={"acme": {"class": "batch"}}).of
    keyed = Principal("acme", "key-k", class_name="gold")
    assert find(keyed, {"x-weft-class": "batch"}, {"service_tier": "default"}) == "batch"
    assert find(keyed, {}, {"service_tier": "batch"}) == "batch"
    assert find(keyed, {}, {"service_tier": "flex"}) == "gold"
    assert find(ALICE, {}, {"service_tier": 3}) == "batch"
    assert find(EVE, {}, {}) == "default"
    assert classifier(defaultClass="gold").of(EVE, {}, {}) == "gold"
    assert find(Principal("acme", "k", class_name="gone"), {}, {}) == "batch", "a class that no longer exists is none"


def test_a_class_that_is_unknown_or_not_the_tenants_is_refused() -> None:
    find = classifier(tenants={"acme": {"classes": ["batch"]}}).of
    with pytest.raises(InvalidRequestError, match="X-Weft-Class: there is no such class; use one of batch, default"):
        find(ALICE, {"x-weft-class": "platinum"}, {})
    for headers, body in (({"x-weft-class": "gold"}, {}), ({}, {"service_tier": "gold"})):
        with pytest.raises(ApiError, match="may not use class 'gold'") as caught:
            find(ALICE, headers, body)
        assert caught.value.status == 403
    assert find(ALICE, {"x-weft-class": "batch"}, {}) == "batch"
    assert find(EVE, {"x-weft-class": "gold"}, {}) == "gold"
    alone = Classifier(QosConfig())
    assert alone.of(EVE, {}, {"service_tier": "gold"}) == "default"
    with pytest.raises(InvalidRequestError):
        alone.of(EVE, {"x-weft-class": "gold"}, {})


def test_a_salt_is_64_hex_digits_of_its_own_for_each_tenant() -> None:
    salts = CacheSalts(b"the-services-token", limit=10)
    of = {tenant: salts.of(tenant) for tenant in map(str, range(100))}
    assert len(set(of.values())) == 100
    for tenant, salt in of.items():
        assert salt is not None
        assert len(salt) == 64
        assert set(salt) <= set("0123456789abcdef")
        assert salts.of(tenant) == salt
        assert CacheSalts(b"another-token").of(tenant) != salt
    assert salts.of("default") is None
