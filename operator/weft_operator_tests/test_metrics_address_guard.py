"""A Prometheus that a service's author chose: asked only where it may be, sent no Secret in the clear, and no scan."""

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import urllib3.util.connection

from weft_operator.commands.manifest_checks import service_messages
from weft_operator.metrics import address_guard
from weft_operator.metrics.credentials import Credentials
from weft_operator.metrics.observation import NoMetricsError
from weft_operator.metrics.query_target import target_of
from weft_operator.metrics.untrusted import ask
from weft_operator.settings import PrometheusAccess
from weft_operator_tests.valid import changed, service, spec

FOREIGN = Credentials(token="canary", foreign=True)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.seen.append(self.headers.get("Authorization"))  # type: ignore[attr-defined]
        status = int(self.path.strip("/").partition("/")[0])
        self.send_response(status)
        if status == 302:
            self.send_header("Location", self.server.other)  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(b"no prometheus")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""


def http_server(stack: ExitStack) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.seen = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    stack.callback(thread.join)
    stack.callback(server.server_close)
    stack.callback(server.shutdown)
    return server


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def url_of(server: ThreadingHTTPServer, path: str = "/404", host: str = "localhost") -> str:
    return f"http://{host}:{server.server_address[1]}{path}"


@pytest.mark.component
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "0"])
def test_the_operator_itself_is_not_asked_in_whatever_spelling(stack: ExitStack, host: str) -> None:
    server = http_server(stack)
    with pytest.raises(NoMetricsError):
        ask(url_of(server, host=host), FOREIGN, ["up"])
    assert server.seen == []  # type: ignore[attr-defined]


@pytest.mark.component
def test_all_that_is_no_prometheus_looks_the_same(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The hosts are on loopback here, so that one kind of address is let through; all else is as it is."""
    caplog.set_level(logging.INFO, "weft_operator.metrics.untrusted")
    server = http_server(stack)
    silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed = gone.getsockname()[1]
    monkeypatch.setattr(address_guard, "refused_address", lambda address, _denied: address == "127.0.0.9" or None)
    monkeypatch.setattr("weft_operator.metrics.prometheus.CONNECT_S", 0.3)
    monkeypatch.setattr("weft_operator.metrics.prometheus.READ_S", 0.3)
    urls = [
        f"http://127.0.0.1:{closed}",
        f"http://127.0.0.1:{silent.getsockname()[1]}",
        "http://127.0.0.9:80",
        "http://name-that-nobody-has.invalid:80",
        *(url_of(server, f"/{status}", "127.0.0.1") for status in (200, 204, 404, 429, 500, 503)),
        url_of(server, "/200", "127.0.0.1").replace("http:", "https:"),
    ]
    said = set()
    for url in urls:
        with pytest.raises(NoMetricsError) as caught:
            ask(url, FOREIGN, ["up"])
        availability = caught.value.availability
        said.add((availability.reason, availability.message.partition(" gives ")[2]))
        assert caught.value.__cause__ is None
    assert len(said) == 1
    assert len(caplog.records) == len(urls), "the log has what is kept from the author"
    assert "canary" not in caplog.text


@pytest.mark.component
def test_nobody_is_followed_elsewhere(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_guard, "refused_address", lambda *_: None)
    server, other = http_server(stack), http_server(stack)
    server.other = url_of(other, "/200", "127.0.0.1")  # type: ignore[attr-defined]
    with pytest.raises(NoMetricsError):
        ask(url_of(server, "/302", "127.0.0.1"), FOREIGN, ["up"])
    assert server.seen == ["Bearer canary"]  # type: ignore[attr-defined]
    assert other.seen == []  # type: ignore[attr-defined]


def test_what_was_judged_is_what_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that answers otherwise a moment later changes nothing."""
    tried: list[tuple[str, int]] = []
    answers = [["198.51.100.1", "10.0.0.7"], ["127.0.0.1"]]

    def getaddrinfo(_host: str, port: int, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answers.pop(0)]

    def connect(address: tuple[str, int], *_: Any, **__: Any) -> socket.socket:
        tried.append(address)
        raise ConnectionRefusedError("nobody")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(urllib3.util.connection, "create_connection", connect)
    with pytest.raises(NoMetricsError):
        ask("http://rebinds.example.com:9090", FOREIGN, ["up"])
    assert tried == [("198.51.100.1", 9090), ("10.0.0.7", 9090)]


@pytest.mark.parametrize(
    "addresses", [["169.254.169.254"], ["10.0.0.7", "127.0.0.1"], ["fd00:ec2::254"], ["10.96.0.1"], ["::1"]]
)
@pytest.mark.parametrize("server", ["10.96.0.1", "api.example.com"])
def test_a_name_with_one_such_address_is_not_asked_at_all(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], server: str
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", server)

    def getaddrinfo(host: str, port: int | None, **_: Any) -> list[tuple[Any, ...]]:
        found = ["10.96.0.1"] if host == server else addresses
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(PermissionError):
        address_guard.judged("prometheus.example.com", 80)


def test_only_a_url_of_the_service_is_foreign() -> None:
    def target(**fields: Any) -> bool:
        asked = spec(changed(service(), "spec.planning.prometheus", fields))
        return target_of(asked, (), default_url="http://127.0.0.1:9090", access=PrometheusAccess()).foreign

    assert target() is False
    assert target(url="https://prometheus.example.com") is True


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://prometheus.example.com", True),
        ("http://prometheus.monitoring.svc:9090", True),
        ("http://prometheus.monitoring.svc.cluster.local/x", True),
        ("http://prometheus.monitoring:9090", False),
        ("http://attacker.com", False),
        ("http://a.b.svc.attacker.com", False),
        ("http://svc", False),
    ],
)
def test_secrets_are_sent_in_the_clear_within_the_cluster_only(url: str, kept: bool) -> None:
    header = {"name": "X-Team", "secretKeyRef": {"name": "x", "key": "y"}}
    for more in ({"authSecretRef": {"name": "prom"}}, {"headers": [header]}):
        found = service_messages(changed(service(), "spec.planning.prometheus", {"url": url, **more}))
        assert [message.partition(":")[0] for message in found] == ([] if kept else ["spec.planning.prometheus.url"])
    assert service_messages(changed(service(), "spec.planning.prometheus", {"url": url})) == []
