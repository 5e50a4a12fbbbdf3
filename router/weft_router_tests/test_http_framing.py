"""What a client may do to the framing: the corpus, and two other parsers that have to agree with ours."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weft_router.http.limits import HttpLimits
from weft_router_tests.framing_corpus import CORPUS, ONE, SMUGGLED, Case
from weft_router_tests.http_invariants import LlHttp, by_h11, read, requests_are_read_alike, target
from weft_router_tests.http_kit import QUICK, Backend, connected, fronted, on_uvloop, until


def named(case: Case) -> str:
    """Return a name to find a case by."""
    return f"{case.group} {[other for other in CORPUS if other.group == case.group].index(case) + 1}"


def test_the_corpus_is_large_and_odd() -> None:
    assert len(CORPUS) >= 120
    assert len({case.raw for case in CORPUS}) == len(CORPUS)
    assert sum(case.status == ONE for case in CORPUS) < 40


@pytest.mark.parametrize("step", [0, 1, 7])
@pytest.mark.parametrize("case", CORPUS, ids=named)
def test_each_is_refused_or_one_request(case: Case, step: int) -> None:
    requests, status = read(case.raw, step=step)
    if case.status == ONE:
        assert (len(requests), requests[0].body, status) == (1, case.body, 0)
    else:
        assert (requests, status) == ([], case.status)


@pytest.mark.parametrize("case", [case for case in CORPUS if case.status == ONE], ids=named)
def test_two_other_parsers_read_what_is_served_alike(case: Case) -> None:
    request = read(case.raw)[0][0]
    ours = (request.method, target(request), request.body)
    raw = case.raw.replace(b"Upgrade: websocket\r\n", b"").replace(SMUGGLED, b"")  # llhttp would end there
    theirs = (LlHttp(raw).requests[:1], [by_h11(raw)])
    assert [ours] in theirs
    assert all(read in ([ours], [], [None]) for read in theirs)


@pytest.mark.component
@on_uvloop
async def test_a_backend_sees_one_request_in_our_framing_or_none() -> None:
    backend = Backend()
    limits = HttpLimits(max_body=2**20, linger_s=QUICK.linger_s, sweep_s=QUICK.sweep_s)
    async with fronted(backend, limits) as (listener, front):
        for case in CORPUS:
            backend.seen.clear()
            async with connected(listener.port) as client:
                client.writer.write(case.raw)
                status, headers = await client.head()
                if status == 100:
                    status, headers = await client.head()
                assert status == case.status, case.raw
                if status == ONE:
                    (seen,) = backend.seen
                    assert (seen.method, seen.target, seen.body) == ("POST", "/v1/completions", case.body), case.raw
                    assert dict(seen.headers) == {
                        "host": f"127.0.0.1:{backend.port}",
                        "content-type": "application/json",
                        "content-length": str(len(case.body)),
                    }
                    assert len(seen.headers) == 3
                else:
                    assert headers["connection"] == "close", case.raw
                    assert len(await client.rest()) == int(headers["content-length"]), case.raw
                    assert backend.seen == [], case.raw
        await until(lambda: len(listener.connections) == 0)
        assert backend.errors == []
        assert front.served == sum(case.status == ONE for case in CORPUS)


PIECES = st.sampled_from(
    [
        b"GET",
        b"POST",
        b" ",
        b"  ",
        b"\t",
        b"/",
        b"/v1",
        b"*",
        b"HTTP/1.1",
        b"HTTP/1.0",
        b"\r\n",
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\r",
        b"Host: a",
        b"Host",
        b":",
        b"Content-Length: 5",
        b"Content-Length: 0",
        b"Transfer-Encoding: chunked",
        b"chunked",
        b"hello",
        b"5",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"0",
        b";a=b",
        b"X: y",
        b"Connection: close",
        b"\x00",
        b"\xff",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\n",
    ]
)
HEADERS = st.lists(
    st.sampled_from(
        [
            b"host:b",
            b"Content-Length: 5",
            b"content-length:5",
            b"Content-Length: 05",
            b"Transfer-Encoding: chunked",
            b"X: y",
            b"X:",
            b"X-y_z: \t a \t",
            b"Connection: close",
            b"Connection: keep-alive, x",
            b"Accept: */*",
            b"X: \xe9",
            b"X : y",
            b"Expect: 100-continue",
        ]
    ),
    max_size=3,
)
LINES = st.tuples(
    st.sampled_from(
        [b"GET / HTTP/1.1", b"POST /v1/x?y=z HTTP/1.1", b"POST / HTTP/1.0", b"PUT /%20 HTTP/1.1", b"GET  / HTTP/1.1"]
    ),
    HEADERS,
    st.sampled_from(
        [b"", b"hello", b"hello!", b"5\r\nhello\r\n0\r\n\r\n", b"5;a\r\nhello\r\n0\r\nX: y\r\n\r\n", b"0\r\n\r\n"]
    ),
).map(lambda made: b"\r\n".join([made[0], b"Host: a", *made[1], b"", made[2]]))


@given(
    raw=st.one_of(st.lists(PIECES, max_size=14).map(b"".join), LINES, st.lists(LINES, max_size=3).map(b"".join)),
    step=st.integers(0, 9),
)
@example(raw=b"POST /v1/completions? HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi", step=3)
@example(raw=b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\nHost: a\r\n\r\n", step=3)
def test_what_is_read_is_read_alike_by_the_others_and_however_it_is_cut(raw: bytes, step: int) -> None:
    requests_are_read_alike(raw, step=step)


@given(body=st.binary(max_size=300), sizes=st.lists(st.integers(1, 50), min_size=1), step=st.integers(1, 40))
def test_chunks_give_the_body_back_however_they_are_cut(body: bytes, sizes: list[int], step: int) -> None:
    raw, at = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 0
    while at < len(body):
        part = body[at : at + sizes[at % len(sizes)]]
        raw += b"%x\r\n%b\r\n" % (len(part), part)
        at += len(part)
    requests, status = read(raw + b"0\r\n\r\n" + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", step=step)
    assert ([request.body for request in requests], status) == ([body, b""], 0)
