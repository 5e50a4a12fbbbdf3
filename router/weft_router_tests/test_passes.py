"""Passes of endpoint pickers: valid for one request, one worker, one minute and one use."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.records import MAX_SKEW_S
from weft_router.auth.passes import MOST_USED, PASS_HEADER, PassVerifier, issue
from weft_router.errors import ApiError

KEY = b"k" * 32
PATH = "/v1/chat/completions"
WORKER = "10.0.0.7:8080"
HEADERS = {"x-request-id": "weft-1", "x-weft-session": "s", "x-weft-tenant": "t", "content-type": "application/json"}
BODY = b'{"model":"m"}'
NOW = 1_800_000_000.0


def passed(**changes: str) -> dict[str, str]:
    """Return the headers of a request with its pass, changed after that was issued."""
    signed = issue(KEY, path=PATH, authority=WORKER, headers=HEADERS, body=BODY, now=NOW)
    return {**HEADERS, PASS_HEADER: signed, **{name.replace("_", "-"): value for name, value in changes.items()}}


def verifier(key: bytes = KEY, authority: str = WORKER) -> PassVerifier:
    return PassVerifier(key, authority)


def test_a_pass_lets_its_request_in_once() -> None:
    passes = verifier()
    valid = passes.verify(PATH, passed(), NOW + 1)
    assert valid is not None
    passes.redeem(valid, BODY)
    with pytest.raises(ApiError, match="used before") as refused:
        passes.redeem(valid, BODY)
    assert refused.value.status == 401


def test_a_request_without_a_pass_has_none() -> None:
    assert verifier().verify(PATH, HEADERS, NOW) is None


def test_headers_that_sidecars_do_not_act_on_may_change_on_the_way() -> None:
    headers = passed(x_forwarded_for="10.1.1.1", traceparent="00-1-2-01", x_envoy_attempt_count="1")
    assert verifier().verify(PATH, headers, NOW) is not None


@pytest.mark.parametrize(
    "verify",
    [
        lambda: verifier().verify("/v1/completions", passed(), NOW),
        lambda: verifier(authority="10.0.0.8:8080").verify(PATH, passed(), NOW),
        lambda: verifier(key=b"o" * 32).verify(PATH, passed(), NOW),
        lambda: verifier().verify(PATH, passed(x_weft_session="other"), NOW),
        lambda: verifier().verify(PATH, passed(x_request_id="weft-2"), NOW),
        lambda: verifier().verify(PATH, passed(x_weft_local="1"), NOW),
        lambda: verifier().verify(PATH, passed(), NOW + MAX_SKEW_S + 2),
        lambda: verifier().verify(PATH, passed(), NOW - MAX_SKEW_S - 2),
        lambda: verifier().verify(PATH, passed(x_weft_pass="1.2.3"), NOW),
    ],
)
def test_a_changed_request_is_refused(verify: Callable[[], object]) -> None:
    with pytest.raises(ApiError) as refused:
        verify()
    assert refused.value.status == 401
    assert refused.value.message.startswith(PASS_HEADER)


def test_another_body_is_refused_and_leaves_the_pass_unused() -> None:
    passes = verifier()
    valid = passes.verify(PATH, passed(), NOW)
    assert valid is not None
    with pytest.raises(ApiError, match="another body"):
        passes.redeem(valid, BODY + b" ")
    passes.redeem(valid, BODY)


@given(st.lists(st.integers(0, 400), max_size=60))
def test_a_used_pass_is_remembered_as_long_as_it_is_valid(times: list[int]) -> None:
    passes = verifier()
    used = []
    for number, at in enumerate(sorted(times)):
        headers = {**HEADERS, "x-request-id": f"weft-{number}"}
        signed = issue(KEY, path=PATH, authority=WORKER, headers=headers, body=BODY, now=NOW + at)
        valid = passes.verify(PATH, {**headers, PASS_HEADER: signed}, NOW + at)
        assert valid is not None
        passes.redeem(valid, BODY)
        used.append((at, valid))
        for before, old in used:
            if at - before <= MAX_SKEW_S:
                with pytest.raises(ApiError, match="used before"):
                    passes.redeem(old, BODY)
    assert len(passes._used) <= min(len(times), MOST_USED)
