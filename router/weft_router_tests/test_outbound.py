"""An identity provider's URL sends a coordinator nowhere but to hosts that its service's author may reach anyway."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from weft_router.auth.fetch import fetch
from weft_router.outbound import AddressRefusedError, create_connection

API_SERVER = {"10.96.0.1": ["10.96.0.1"], "weft.hcp.example.azmk8s.io": ["20.1.2.3"]}
"""What pods are told of the API server's Service, and the addresses of it."""


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[tuple[str, int]]:
    """Let every name have the addresses of the next answer; return where connections are tried."""
    tried: list[tuple[str, int]] = []
    left = list(answers)

    def getaddrinfo(host: str, port: int | None, **_: Any) -> list[tuple[Any, ...]]:
        known = API_SERVER.get(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in known or left.pop(0)]

    def connect(address: tuple[str, int], *_: Any) -> socket.socket:
        tried.append(address)
        raise ConnectionRefusedError("nobody")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(socket, "create_connection", connect)
    return tried


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["169.254.169.254"], ["10.0.0.7", "127.0.0.1"], ["::ffff:169.254.169.254"], ["10.96.0.1"]],
)
def test_a_name_with_one_such_address_is_not_asked_at_all(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str]
) -> None:
    tried = resolving(monkeypatch, addresses)
    with pytest.raises(AddressRefusedError, match="is not asked"):
        create_connection(("keys.example.com", 443), 1.0, env={"KUBERNETES_SERVICE_HOST": "10.96.0.1"})
    assert tried == []


def test_the_api_server_is_not_asked_where_pods_know_it_by_a_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = resolving(monkeypatch, ["20.1.2.3"])
    with pytest.raises(AddressRefusedError, match="API server"):
        create_connection(("a.example.com", 443), 1.0, env={"KUBERNETES_SERVICE_HOST": "weft.hcp.example.azmk8s.io"})
    assert tried == []


def test_what_was_judged_is_what_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that answers otherwise a moment later is not asked again."""
    tried = resolving(monkeypatch, ["198.51.100.1", "10.0.0.7"], ["127.0.0.1"])
    with pytest.raises(ConnectionRefusedError):
        create_connection(("keys.example.com", 443), 1.0, env={})
    assert tried == [("198.51.100.1", 443), ("10.0.0.7", 443)]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.mark.component
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_keys_are_not_fetched_from_the_pod_itself(listener: socket.socket, scheme: str) -> None:
    url = f"{scheme}://localhost:{listener.getsockname()[1]}/keys"
    with pytest.raises(OSError, match="loopback"):
        await fetch(url, connect=create_connection)
    with pytest.raises(BlockingIOError):
        listener.accept()
