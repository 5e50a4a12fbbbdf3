"""A service whose pods have addresses of IPv6 only, and names with addresses of both families."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from weft_core.authority import http_url
from weft_router.config import Flags, load
from weft_router.http.upstream_connection import Origin
from weft_router.process import build
from weft_router.state.store import MemoryStore
from weft_router_tests.redis_server import RedisServer
from weft_router_tests.stack import Composition, Stack, free_port, router_json
from weft_router_tests.test_stack_sessions import SYSTEM, assistant, expected, user

pytestmark = pytest.mark.component


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    """Give the URL of a Redis that listens on ::1 alone."""
    server = RedisServer(free_port("::1"), tmp_path, "::1")
    server.start()
    yield server.url
    server.stop()


@pytest.mark.parametrize("composition", ["sidecars", "standalone"])
async def test_sessions_and_their_kv_move_between_addresses_of_ipv6(
    composition: Composition, tmp_path: Path, redis_url: str
) -> None:
    url = redis_url if composition == "sidecars" else "memory://"
    service = Stack(tmp_path, composition, redis_url=url, address="::1")
    try:
        await service.up()
        messages = [SYSTEM, user("one")]
        for round_number in range(3):
            answer = await service.chat(messages, session="s", stream=True)
            assert (answer.status, answer.text) == (200, expected(messages))
            assert answer.headers["X-Weft-Route"] == "remote"
            sent = service.engines["p0"].seen[-1]["kv_transfer_params"]
            assert sent["remote_host"] == ("::1" if round_number else None)
            messages = [*messages, assistant(answer.text), user(f"and {round_number}")]
        port = service.engines["d0"].port
        assert service.engines["d0"].headers[-1]["Host"] == f"[::1]:{port}"
        if composition == "sidecars":
            record = next(iter(service.registry("c0").ready("decode")))
            assert record.url == http_url("::1", service.processes["d0"].settings.port)
            assert record.url.startswith("http://[::1]:")
    finally:
        await service.close()


def test_requests_name_their_host_in_brackets() -> None:
    origin = Origin("http://[fd00::1]:8101")
    assert (origin.host, origin.port) == ("fd00::1", 8101)
    head, _ = origin.request("GET", "/metrics")
    assert b"\r\nHost: [fd00::1]:8101\r\n" in head


async def test_a_name_with_addresses_of_both_families_is_as_many_workers_as_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a dual-stack cluster the name of a headless Service has one address of each family for every pod."""
    found: list[Any] = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, 8000, 0, 0)) for address in ("fd00::2", "fd00::1")
    ] + [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 8000)) for address in ("10.0.0.1", "10.0.0.2")]
    asked: list[tuple[str, int]] = []

    async def resolve(host: str, port: int, **_: object) -> list[Any]:
        asked.append((host, port))
        return found

    (tmp_path / "router.json").write_text(orjson.dumps(router_json()).decode())
    (tmp_path / "workers.json").write_text('{"workers": [{"name": "d", "role": "decode", "dns": "engines:8000"}]}')
    flags = Flags("standalone", tmp_path / "router.json", "127.0.0.1:0", "", None, 1.0, tmp_path / "workers.json")
    _, app = build(load(flags, {}), MemoryStore())
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    entry = load(flags, {}).workers[0]
    await app._resolve(entry)  # type: ignore[attr-defined]
    urls = {name: worker.settings.url for name, worker in app._workers.items()}  # type: ignore[attr-defined]
    assert asked == [("engines", 8000)]
    assert urls == {"d-fd00::1": "http://[fd00::1]:8000", "d-fd00::2": "http://[fd00::2]:8000"}
    await app.stop()
