"""Asking a server: a real Prometheus that scrapes routers' metrics, and servers that misbehave."""

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from weft_core.slo import Slo
from weft_operator.metrics import bounded_http, prometheus
from weft_operator.metrics.credentials import Credentials
from weft_operator.metrics.observation import NoMetricsError, Observation
from weft_operator.metrics.prometheus import ask
from weft_operator.metrics.queries import queries, windows_of
from weft_operator.metrics.query_results import QueryResults, read
from weft_operator.metrics.query_target import QueriedService
from weft_operator_tests.programs import program
from weft_router.telemetry.metrics import Metrics
from weft_router.telemetry.round_meter import RoundMeter

pytestmark = pytest.mark.component

WINDOWS = windows_of(20)
Reply = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture
def serve() -> Iterator[Callable[[Reply], int]]:
    """Serve GET on a loopback port of its own, by a function that writes the whole answer."""
    servers: list[ThreadingHTTPServer] = []

    def start(reply: Reply) -> int:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                reply(self)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return int(server.server_address[1])

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def answer(status: int, body: bytes, **headers: str) -> Reply:
    def write(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return write


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (answer(401, b"canary"), "PrometheusUnauthorized"),
        (answer(403, b""), "PrometheusUnauthorized"),
        (answer(500, b"canary"), "PrometheusUnreachable"),
        (answer(503, b""), "PrometheusUnreachable"),
        (answer(404, b"canary"), "QueryFailed"),
        (answer(400, b"{}"), "QueryFailed"),
        (answer(302, b"", Location="http://127.0.0.1:1/"), "QueryFailed"),
        (answer(200, b"<html>canary</html>"), "QueryFailed"),
        (answer(200, b'{"data": {"result": 7}}'), "QueryFailed"),
        (answer(200, b"[]"), "QueryFailed"),
    ],
)
def test_what_is_no_prometheus_is_reported(serve: Callable[[Reply], int], reply: Reply, reason: str) -> None:
    with pytest.raises(NoMetricsError) as raised:
        ask(f"http://127.0.0.1:{serve(reply)}", Credentials(), ["up"])
    assert raised.value.availability.reason == reason
    assert "canary" not in raised.value.availability.message


def test_nobody_there_at_an_address_of_ipv6() -> None:
    with pytest.raises(NoMetricsError, match=r"http://\[::1\]:1 \(no connection\)") as raised:
        ask("http://[::1]:1/prometheus", Credentials(), ["up"])
    assert raised.value.availability.reason == "PrometheusUnreachable"


def test_nobody_there() -> None:
    with pytest.raises(NoMetricsError, match="no connection") as raised:
        ask("http://127.0.0.1:1/prometheus", Credentials(), ["up"])
    assert raised.value.availability.reason == "PrometheusUnreachable"


def test_an_answer_that_trickles_is_given_up(serve: Callable[[Reply], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "QUERY_BUDGET_S", 0.2)
    monkeypatch.setattr(prometheus, "READ_S", 0.5)
    stop = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not stop.wait(0.05):
            try:
                handler.wfile.write(b" " * 65536)
                handler.wfile.flush()
            except OSError:
                return

    began = time.monotonic()
    try:
        with pytest.raises(NoMetricsError, match="too slowly") as raised:
            ask(f"http://127.0.0.1:{serve(trickle)}", Credentials(), ["up"])
    finally:
        stop.set()
    assert raised.value.availability.reason == "PrometheusUnreachable"
    assert time.monotonic() - began < 3


def test_an_endless_answer_is_given_up(serve: Callable[[Reply], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "MAX_BYTES", 1000)
    with pytest.raises(NoMetricsError, match="longer than"):
        ask(f"http://127.0.0.1:{serve(answer(200, b' ' * 5000))}", Credentials(), ["up"])


def test_credentials_are_sent(serve: Callable[[Reply], int]) -> None:
    heard: list[str] = []

    def listen(handler: BaseHTTPRequestHandler) -> None:
        heard.append(f"{handler.headers['Authorization']} {handler.path.split('?')[0]}")
        answer(200, b'{"data": {"result": [1, "2"]}}')(handler)

    url = f"http://127.0.0.1:{serve(listen)}/under/a/path/"
    ask(url, Credentials(token="t0"), [])
    ask(url, Credentials(user="me", password="word"), [])
    assert heard == ["Bearer t0 /under/a/path/api/v1/query", "Basic bWU6d29yZA== /under/a/path/api/v1/query"]


@pytest.fixture
def scraper(tmp_path: Path) -> Iterator[Callable[..., str]]:
    binary = program("prometheus")
    started: list[subprocess.Popen[bytes]] = []

    def start(pods: dict[str, int], *, jobs: tuple[str, ...] = ("weft-router",)) -> str:
        targets = "".join(
            f"      - targets: ['127.0.0.1:{port}']\n"
            f"        labels: {{namespace: llm, service: demo, component: decode, pod: {pod}}}\n"
            for pod, port in pods.items()
        )
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            "scrape_configs:\n" + "".join(f"  - job_name: {job}\n    static_configs:\n{targets}" for job in jobs)
        )
        port = free_port()
        command = [binary, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return f"http://127.0.0.1:{port}"

    yield start
    for process in started:
        process.kill()
        process.wait()


def free_port() -> int:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.server_close()
    return int(server.server_address[1])


def look(url: str, pods: dict[str, float]) -> Observation:
    at = datetime.now(UTC)
    subject = QueriedService(windows=WINDOWS, stale_after_s=5.0, pods=pods, percentile=95, unit="round", target=0.9)
    try:
        clock, results = ask(url, Credentials(), queries("llm", "demo", WINDOWS, canary_s=20))
    except NoMetricsError as error:
        return Observation(at=at, window_s=20, fast_window_s=15, availability=error.availability)
    return read(QueryResults(clock, results), subject, at=datetime.now(UTC))


async def until(url: str, pods: dict[str, float], holds: Callable[[Observation], bool]) -> Observation:
    deadline = time.monotonic() + 40
    while True:
        found = await asyncio.to_thread(look, url, pods)
        if holds(found):
            return found
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.3)


async def test_a_real_prometheus_tells_what_routers_counted(
    serve: Callable[[Reply], int], scraper: Callable[..., str]
) -> None:
    began = time.time()
    routers = {"d0": Metrics(), "d1": Metrics()}
    meters = [RoundMeter(metrics, {"default": Slo(ttft_s=1.0, itl_s=0.05)}) for metrics in routers.values()]
    dead: set[str] = set()

    def page(name: str) -> Reply:
        def write(handler: BaseHTTPRequestHandler) -> None:
            answer(500 if name in dead else 200, routers[name].page(), **{"Content-Type": "text/plain"})(handler)

        return write

    # Rounds before the first scrape: increase() alone would not see them.
    for meter in meters:
        serve_rounds(meter, 30)
    url = scraper({name: serve(page(name)) for name in routers})
    pods = dict.fromkeys(routers, began)
    found = await until(url, pods, lambda found: found.availability.seen)
    assert found.workload is not None
    assert found.slo is not None
    assert found.workload.sessions == 60
    assert found.workload.session_rate >= 60 / 20
    for spread, mean in ((found.workload.first_prompt, 1000), (found.workload.increment, 300)):
        assert spread is not None
        assert spread.mean == pytest.approx(mean)
    assert found.workload.rounds is not None
    assert (found.workload.rounds.count, found.workload.rounds.mean) == (60, 2.0)
    assert found.workload.gap_s is not None
    assert 2 <= found.workload.gap_s.p50 <= 5
    assert [(item.name, item.slow.good, item.slow.bad) for item in found.slo.classes] == [("default", 60, 60)]
    assert found.slo.ttft_later is not None
    assert found.slo.ttft_later.value_s > 1.0
    assert (found.pressure.queue, found.pressure.sessions) == (0, 0)
    assert {pod: (one.rounds.good, one.rounds.bad) for pod, one in found.pods.items()} == {
        "d0": (30, 30),
        "d1": (30, 30),
    }
    assert {max(one.ttft.values()) for one in found.pods.values()} == {60.0}
    assert all(one.itl for one in found.pods.values())

    # Now the pods are older than the window: increase() counts what the window holds, and the first rounds leave it.
    await until(url, pods, lambda found: found.workload is not None and found.workload.sessions == 0)
    serve_rounds(meters[0], 40)
    again = await until(url, pods, lambda found: found.workload is not None and found.workload.sessions >= 38)
    assert again.workload is not None
    assert again.workload.sessions <= 44

    dead.add("d1")
    assert (await until(url, pods, lambda found: not found.availability.seen)).availability.reason in (
        "Partial",
        "Stale",
    )
    partial = await until(url, pods, lambda found: found.availability.reason == "Partial")
    assert "d1" in partial.availability.message
    dead.add("d0")
    await until(url, pods, lambda found: found.availability.reason in ("Stale", "NoSeries"))


@pytest.mark.timeout(120)
async def test_rounds_that_two_jobs_scrape_are_counted_once(
    serve: Callable[[Reply], int], scraper: Callable[..., str]
) -> None:
    began = time.time()
    metrics = Metrics()
    serve_rounds(RoundMeter(metrics, {"default": Slo(ttft_s=1.0, itl_s=0.05)}), 30)

    def page(handler: BaseHTTPRequestHandler) -> None:
        answer(200, metrics.page(), **{"Content-Type": "text/plain"})(handler)

    url = scraper({"d0": serve(page)}, jobs=("weft-router", "llm/weft-router"))
    found = await until(url, {"d0": began}, lambda found: found.availability.seen)
    assert found.workload is not None
    assert found.slo is not None
    assert found.workload.sessions == 30
    assert found.workload.fast_sessions == 30
    fast = found.workload.fast_lengths
    assert {name: (spread.count, spread.mean) for name, spread in fast.items()} == {
        "first_prompt": (30, 1000.0), "increment": (30, 300.0), "decode": (60, 100.0),
    }  # fmt: skip
    assert found.workload.rounds is not None
    assert (found.workload.rounds.count, found.workload.rounds.mean) == (30, 2.0)
    assert found.slo.slow.total == 60
    assert found.pods["d0"].rounds.total == 60


def serve_rounds(meter: RoundMeter, sessions: int) -> None:
    """Count sessions of two rounds: the first within the SLO, the second with a late first token."""
    for _ in range(sessions):
        for phase, index, ttft_s, history, increment in (("first", 1, 0.2, 0, 1000), ("later", 2, 1.5, 1100, 300)):
            meter.arrived(phase, "default")
            series = meter.of(phase, "local")
            clock = series.first_token(100.0, ttft_s)
            clock.event(100.02)
            clock.settle()
            gap_s = 3.0 if index > 1 else None
            series.finished(index=index, history=history, increment=increment, decode=100, gap_s=gap_s, clock=clock)
