"""A Prometheus that wants to blind the operator, or to fill it: each answer is survived, and what follows is seen."""

import asyncio
import gzip
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from weft_operator.api.objects import ServiceKey
from weft_operator.metrics import poller, prometheus
from weft_operator.metrics.credentials import Credentials
from weft_operator.metrics.observation import NoMetricsError, Observation
from weft_operator.metrics.poller import MetricsPoller
from weft_operator.metrics.prometheus import ask
from weft_operator.metrics.queries import windows_of
from weft_operator.metrics.query_results import QueryResults, read
from weft_operator.metrics.query_target import QueryTarget
from weft_operator_tests.fake_prometheus import Prometheus, Router

KEY = ServiceKey("llm", "demo")
NOW = 1_800_000_000.0
AT = datetime.fromtimestamp(NOW, UTC)
HUGE = int("9" * 400)


def scraped() -> Prometheus:
    return Prometheus([Router("d0", NOW - 5000, 2.0)], NOW, windows_of(300))


def with_values(figure: str, value: object, count: int = 1, /, **labels: str) -> QueryResults:
    """Return good answers of which some series of a figure hold another value."""
    answers = scraped().answers()
    rows: list[dict[str, Any]] = [dict(row) for row in answers.results[0]]  # type: ignore[attr-defined]
    for row in [row for row in rows if row["metric"]["figure"] == figure][:count]:
        row["value"] = [0, value]
        row["metric"] = {**row["metric"], **labels}
    return QueryResults(answers.clock, [rows])


READINGS: dict[str, QueryResults] = {
    "a number of 400 digits": with_values("rounds", HUGE),
    "a text of 400 digits": with_values("rounds", "9" * 400),
    "a text of 5,000 digits": with_values("rounds", "9" * 5000),
    "sums that overflow": with_values("slow", "1.7e308", 6),
    "tallies of pods that overflow": with_values("slow", "1.7e308", 2, figure="pod_rounds", pod="d0"),
    "samples that overflow": with_values("decode_sum", "1.7e308"),
    "buckets that overflow": with_values("decode", "1.7e308", 4),
    "NaN": with_values("rounds", "NaN"),
    "+Inf": with_values("rounds", "+Inf"),
    "-Inf": with_values("rounds", "-Inf"),
    "below 0": with_values("rounds", "-1"),
    "no text": with_values("rounds", None),
    "a list": with_values("rounds", [1]),
    "an object": with_values("rounds", {}),
    "no bound": with_values("decode", "1", le="x"),
    "a bound of NaN": with_values("decode", "1", le="NaN"),
    "a bound of 0": with_values("index", "1", le="0"),
    "a bound below 0": with_values("decode", "1", le="-Inf"),
    "a bound that is hardly above 0": with_values("index", "5", le="5e-324"),
    "a bound that is hardly finite": with_values("decode", "1", le="1.7e308"),
    "scraped NaN times": with_values("copies", "NaN"),
    "scraped 0 times": with_values("copies", "0"),
    "scraped so often that nothing is left": with_values("copies", "1e300"),
    "steps without end": with_values("steps", "1e308"),
    "steps below 0": with_values("steps", "-1e308"),
    "a clock of 400 digits": QueryResults([0, HUGE], []),
    "a clock that is an object": QueryResults({"a": 1}, []),
    "a clock that is none": QueryResults([0, "NaN"], []),
    "no series": QueryResults([NOW, str(NOW)], []),
    "series without labels": QueryResults([NOW, str(NOW)], [[{"metric": {}, "value": [0, "1"]}] * 3]),
    "labels of other types": QueryResults([NOW, str(NOW)], [[{"metric": {"figure": {}, "pod": 7}, "value": [0, "1"]}]]),
    "a matrix": QueryResults([NOW, str(NOW)], [[{"metric": {}, "values": [[0, "1"]]}]]),
    "texts": QueryResults([NOW, str(NOW)], ["result", "result"]),
    "nothing": QueryResults(None, [None]),
}  # fmt: skip

SEEN = {"steps without end"}
"""Answers that say more than enough."""


@pytest.mark.parametrize("case", READINGS)
def test_an_answer_is_read_or_the_service_is_not_seen(case: str) -> None:
    found = read(READINGS[case], scraped().subject(), at=AT)
    assert found.availability.seen == (case in SEEN), found.availability
    if not found.availability.seen:
        assert (found.workload, found.slo) == (None, None)


class Server:
    """A server on loopback whose answer to everything is a function that writes to the connection."""

    def __init__(self, reply: Callable[[socket.socket, bytes], None]) -> None:
        self.reply = reply
        self.stop = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self.reply(connection, connection.recv(65536))

    def close(self) -> None:
        self.stop.set()
        self._listener.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[socket.socket, bytes], None]], Server]]:
    servers: list[Server] = []

    def start(reply: Callable[[socket.socket, bytes], None]) -> Server:
        servers.append(Server(reply))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


Serve = Callable[[Callable[[socket.socket, bytes], None]], Server]


def answer(body: bytes, *headers: str, status: str = "200 OK") -> Callable[[socket.socket, bytes], None]:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers])

    def write(connection: socket.socket, _request: bytes) -> None:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)

    return write


def result(text: str) -> bytes:
    return f'{{"status": "success", "data": {{"result": {text}}}}}'.encode()


def good(connection: socket.socket, request: bytes) -> None:
    answers = scraped().answers()
    about_time = request.startswith(b"GET /api/v1/query?query=time%28%29")
    answer(result(json.dumps(answers.clock if about_time else answers.results[0])))(connection, request)


SERIES = '{"metric": {"figure": "queue", "pod": "d0"}, "value": [0, "1"]}'

BODIES: dict[str, Callable[[socket.socket, bytes], None]] = {
    "15 MB of empty results": answer(result(f"[{'{},' * 5_000_000}{{}}]")),
    "a million series": answer(result(f"[{','.join([SERIES] * 250_000)}]")),
    "values side by side": answer(result(f"[{'0,' * 4_000_000}0]")),
    "deeply nested": answer(result("[" * 200_000)),
    "a number of a million digits": answer(result("9" * 1_000_000)),
    "a number of 400 digits as the time": answer(result(f"[0, {HUGE}]")),
    "a text of a megabyte as the time": answer(result(f'[0, "{"9" * 1_000_000}"]')),
    "a label of 20 MB": answer(result(f'[{{"metric": {{"pod": "{"x" * 20_000_000}"}}, "value": [0, "1"]}}]')),
    "15 MB of junk": answer(os.urandom(1000) * 15_000),
    "junk of no encoding": answer(b"\xff\xfe\x00" * 1000, "Content-Type: application/json; charset=hz-gb-2312"),
    "another encoding": answer(result("[]").decode().encode("utf-16"), "Content-Type: text/html; charset=utf-16"),
    "packed 500 MB": answer(gzip.compress(b" " * 500_000_000, 9), "Content-Encoding: gzip"),
    "packed twice": answer(gzip.compress(gzip.compress(b" " * 50_000_000)), "Content-Encoding: gzip, gzip"),
    "no gzip": answer(b"junk", "Content-Encoding: gzip"),
    "elsewhere": answer(b"", "Location: http://127.0.0.1:1/", status="307 Temporary Redirect"),
    "nothing": answer(b""),
    "no HTTP": lambda connection, _: connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" * 1000),
    "a head without end": lambda connection, _: connection.sendall(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000),
    "an error of 15 MB": answer(b"x" * 15_000_000, status="400 Bad Request"),
    "shorter than it says": lambda connection, _: connection.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + result("[0, 1]")
    ),
}  # fmt: skip


@pytest.mark.component
@pytest.mark.parametrize("case", BODIES)
def test_an_answer_that_is_none_is_reported(serve: Serve, case: str) -> None:
    began = time.monotonic()
    with pytest.raises(NoMetricsError) as raised:
        ask(serve(BODIES[case]).url, Credentials(), ["a", "b"])
    assert len(raised.value.availability.message) < 300
    assert time.monotonic() - began < 10


HELD = """
import resource, sys
from weft_operator.metrics.credentials import Credentials
from weft_operator.metrics.observation import NoMetricsError
from weft_operator.metrics.prometheus import ask
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    ask(sys.argv[1], Credentials(), ["a", "b"])
except NoMetricsError:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.component
@pytest.mark.parametrize("case", ["15 MB of empty results", "values side by side", "packed 500 MB", "15 MB of junk"])
def test_an_answer_takes_a_bounded_share_of_memory(serve: Serve, case: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", HELD, serve(BODIES[case]).url], capture_output=True, text=True, timeout=50, check=True
    )
    assert int(found.stdout) < 120, f"{found.stdout} MiB"


def drip(head: bytes, part: bytes, server: list[Server]) -> Callable[[socket.socket, bytes], None]:
    """Send a part again and again, more often than any timeout of one read."""

    def write(connection: socket.socket, _request: bytes) -> None:
        connection.sendall(head)
        while not server[0].stop.wait(0.05):
            connection.sendall(part)

    return write


@pytest.mark.component
@pytest.mark.parametrize(
    ("head", "part"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"y"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n[", b" "),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", gzip.compress(b"")),
    ],
    ids=["head", "continue", "body", "chunks", "length", "packed"],
)
def test_an_answer_that_drips_ends_at_the_timeout_of_the_queries(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, head: bytes, part: bytes
) -> None:
    monkeypatch.setattr(prometheus, "QUERY_BUDGET_S", 0.5)
    servers: list[Server] = []
    servers.append(serve(drip(head, part, servers)))
    found: list[BaseException] = []

    def look() -> None:
        try:
            ask(servers[0].url, Credentials(), ["up"])
        except NoMetricsError as error:
            found.append(error)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(8.0)
    assert found, "the look goes on"
    assert isinstance(found[0], NoMetricsError)
    assert found[0].availability.reason == "PrometheusUnreachable"
    assert "too slowly" in found[0].availability.message


class Bench:
    """A watch over real servers whose looks the test lets happen."""

    def __init__(self, **more: Any) -> None:
        self.woken: list[ServiceKey] = []
        self._looks = asyncio.Semaphore(0)
        self.watch = MetricsPoller(
            read_secret=self._no_secret, enqueue=self.woken.append, clock=lambda: AT, sleep=self._sleep, **more
        )

    def target(self, url: str, **more: Any) -> QueryTarget:
        return QueryTarget(url=url, secret=None, interval_s=10.0, subject=scraped().subject(), **more)

    async def look(self, target: QueryTarget, key: ServiceKey = KEY) -> Observation:
        before = self.watch.last(key)
        self.watch.poll(key, target)
        self._looks.release()
        return await self.next(before, key)

    async def next(self, before: Observation | None, key: ServiceKey = KEY) -> Observation:
        async with asyncio.timeout(20):
            while (found := self.watch.last(key)) is before or found is None:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.001)
        return found

    async def _no_secret(self, _key: ServiceKey, _name: str) -> None:
        return None

    async def _sleep(self, _seconds: float) -> None:
        await self._looks.acquire()


@pytest.mark.component
async def test_a_watch_survives_every_answer(serve: Serve) -> None:
    server, bench = serve(good), Bench()
    target = bench.target(server.url)
    assert (await bench.look(target)).availability.seen

    def value(case: str) -> Callable[[socket.socket, bytes], None]:
        def write(connection: socket.socket, request: bytes) -> None:
            if b"query=time" in request:
                good(connection, request)
            else:
                answer(result(json.dumps(READINGS[case].results[0])))(connection, request)

        return write

    for case in ("a number of 400 digits", "sums that overflow", "NaN", "series without labels"):
        server.reply = value(case)
        assert not (await bench.look(target)).availability.seen, case
    for case in ("15 MB of empty results", "deeply nested"):
        server.reply = BODIES[case]
        assert not (await bench.look(target)).availability.seen, case
    server.reply = good
    assert (await bench.look(target)).availability.seen
    assert bench.watch.failures == 0
    await bench.watch.close()


async def test_no_kind_of_error_ends_polling() -> None:
    """Neither one of a look, nor one of whoever is told of it."""
    errors: list[Exception] = [OverflowError(), RecursionError(), MemoryError(), ZeroDivisionError(), RuntimeError()]
    heard: list[Observation] = []

    def on_observation(_key: ServiceKey, observation: Observation) -> bool:
        heard.append(observation)
        if errors and len(errors) % 2:
            raise errors.pop()
        return False

    def trouble(_url: str, _credentials: Credentials, _queries: object) -> tuple[object, list[object]]:
        if errors:
            raise errors.pop()
        answers = scraped().answers()
        return answers.clock, list(answers.results)

    bench = Bench(ask=trouble, on_observation=on_observation)
    for _ in range(6):
        found = await bench.look(bench.target("http://prometheus:9090"))
    assert found.availability.seen
    assert (errors, bench.watch.failures) == ([], 5)
    await bench.watch.close()


async def test_an_endless_query_is_reported_when_the_last_observation_is_two_intervals_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poller, "MIN_QUERY_TIMEOUT_S", 0.2)
    asked = threading.Event()
    stop = threading.Event()

    def trouble(_url: str, _credentials: Credentials, _queries: object) -> tuple[object, list[object]]:
        if asked.is_set():
            assert stop.wait(20)
        asked.set()
        answers = scraped().answers()
        return answers.clock, list(answers.results)

    bench = Bench(ask=trouble)
    target = bench.target("http://prometheus:9090")
    quick = QueryTarget(**{name: getattr(target, name) for name in ("url", "secret", "subject")}, interval_s=0.1)
    assert (await bench.look(quick)).availability.seen
    found = await bench.look(quick)
    assert found.availability.reason == "PrometheusUnreachable"
    assert "spec.planning.interval" in found.availability.message
    assert bench.woken == [KEY, KEY]
    stop.set()
    await bench.watch.close()


async def test_servers_that_services_name_do_not_delay_queries_of_the_operators_own() -> None:
    stop = threading.Event()
    asked: list[str] = []

    def trouble(url: str, _credentials: Credentials, _queries: object) -> tuple[object, list[object]]:
        asked.append(url)
        if "slow" in url:
            assert stop.wait(20)
        answers = scraped().answers()
        return answers.clock, list(answers.results)

    bench = Bench(ask=trouble)
    for number in range(12):
        key = ServiceKey("evil" if number < 6 else f"evil-{number}", f"s{number}")
        bench.watch.poll(key, bench.target(f"http://slow-{number}", foreign=True))
        bench._looks.release()
    assert (await bench.look(bench.target("http://prometheus:9090"))).availability.seen
    assert len(asked) == 3, "two of those that services name, of different namespaces, and the operator's own"
    stop.set()
    await bench.watch.close()
