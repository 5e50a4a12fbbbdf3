"""Headers between a proxy, a picker and a worker: what is read, what goes on, what does not."""

import pytest

from weft_router.http.head import FramingError
from weft_router.picker.headers import (
    removed_of_request,
    removed_of_response,
    request_of,
    split_head,
    split_lines,
    status_of,
)
from weft_router.picker.messages import Fields

ASKED: Fields = (
    (":method", "POST"), (":path", "/v1/chat/completions?x=1"), (":authority", "llm.example.com"), (":scheme", "http"),
    ("content-type", "application/json"), ("authorization", "Bearer k"), ("x-weft-local", "1"), ("accept", "a"),
    ("accept", "b"), ("x-forwarded-for", "10.0.0.1"), ("x-envoy-external-address", "10.0.0.1"),
    ("transfer-encoding", "chunked"), ("x-gateway-destination-endpoint", "1.2.3.4:80"),
)  # fmt: skip


def test_a_request_is_read() -> None:
    request = request_of(ASKED, max_body=100)
    assert (request.method, request.path, request.query) == ("POST", "/v1/chat/completions", "x=1")
    assert request.headers["host"] == "llm.example.com"
    assert request.headers["accept"] == "a, b"
    assert request.http10
    assert not request.keep_alive


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ((("authorization", "Bearer other"),), 400),
        ((("content-length", "101"),), 413),
        ((("content-length", "-1"),), 400),
        (((":path", "no-slash"),), 400),
        (((":path", "/a b"),), 400),
    ],
)
def test_a_request_that_two_could_read_differently_is_refused(more: Fields, status: int) -> None:
    with pytest.raises(FramingError) as refused:
        request_of((*ASKED, *more), max_body=100)
    assert refused.value.error.status == status


def test_a_worker_gets_nothing_of_a_client_but_what_carries_the_request() -> None:
    given = (("x-weft-session", "s"), ("content-type", "application/json"), ("x-gateway-destination-endpoint", "w:1"))
    assert removed_of_request(ASKED, given) == ("accept", "authorization", "x-weft-local")


def test_a_client_gets_the_headers_that_the_router_writes() -> None:
    answered = (
        (":status", "200"),
        ("server", "weft"),
        ("x-weft-tokens", "3 4"),
        ("content-length", "9"),
        ("date", "d"),
    )
    assert removed_of_response(answered, (("content-type", "a"),)) == ("content-length", "x-weft-tokens")


def test_the_head_of_an_answer_is_split() -> None:
    head = b"HTTP/1.1 404 Not Found\r\nServer: weft\r\nContent-Type: application/json\r\nRetry-After: 2\r\n"
    assert split_head(head + b"Content-Length: 2\r\nConnection: close") == (
        404, (("content-type", "application/json"), ("retry-after", "2")),
    )  # fmt: skip
    assert split_lines("X-A: 1\r\nB: c: d\r\n") == (("x-a", "1"), ("b", "c: d"))


@pytest.mark.parametrize(("given", "status"), [("503", 503), ("", 502), ("abc", 502)])
def test_the_status_of_an_answer(given: str, status: int) -> None:
    assert status_of(((":status", given),)) == status
