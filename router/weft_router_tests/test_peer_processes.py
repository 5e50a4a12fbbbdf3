"""Processes behind one port: whichever is scraped shows all of them, and none of them can hold up the page."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from weft_router.telemetry import peer_processes
from weft_router.telemetry.metrics import Metrics
from weft_router.telemetry.peer_processes import PeerProcesses

pytestmark = pytest.mark.component


@asynccontextmanager
async def member(folder: Path, place: int) -> AsyncIterator[tuple[PeerProcesses, Metrics]]:
    metrics = Metrics()

    def refresh() -> None:
        metrics.sessions.set(100 + place)

    made = PeerProcesses(folder, place, metrics, refresh=refresh)
    await made.start()
    try:
        yield made, metrics
    finally:
        await made.stop()


async def cancelled(one: PeerProcesses) -> dict[str, float]:
    """Return what a page says of one counter, by process."""
    page, kind = await one.render("application/openmetrics-text")
    assert kind.startswith("application/openmetrics-text")
    parsed = text_string_to_metric_families(page.decode())  # type: ignore[no-untyped-call]
    families = {family.name: family for family in parsed}
    sessions = {s.labels["process"]: s.value for s in families["weft_router_sessions"].samples}
    assert sessions == {process: 100 + int(process) for process in sessions}
    return {s.labels["process"]: s.value for s in families["weft_router_cancelled"].samples}


async def test_whichever_is_asked_shows_all(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(member(tmp_path, place)) for place in (0, 1, 10)]
        for count, (_, metrics) in enumerate(members, 1):
            metrics.cancelled.inc(count)
        for one, _ in members:
            assert await cancelled(one) == {"0": 1, "1": 2, "10": 3}
        await members[1][0].stop()
        assert await cancelled(members[0][0]) == {"0": 1, "10": 3}


async def test_one_that_died_is_left_out_and_its_place_can_be_taken(tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "1.sock"))
    dead.close()
    (tmp_path / "notes.sock").touch()
    async with member(tmp_path, 0) as (one, _):
        assert await cancelled(one) == {"0": 0}
        async with member(tmp_path, 1):
            assert await cancelled(one) == {"0": 0, "1": 0}


async def test_one_that_hangs_costs_half_a_second_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_processes, "PATIENCE_S", 0.1)
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(str(tmp_path / "1.sock"))
        hanging.listen()
        async with member(tmp_path, 0) as (one, _), member(tmp_path, 2):
            began = monotonic()
            assert await cancelled(one) == {"0": 0, "2": 0}
            assert monotonic() - began < 3


async def test_an_answer_that_was_cut_is_not_believed(tmp_path: Path) -> None:
    async def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(Metrics().dump()[:-5])
        writer.close()

    server = await asyncio.start_unix_server(cut, tmp_path / "1.sock")
    async with member(tmp_path, 0) as (one, _):
        assert await cancelled(one) == {"0": 0}
    server.close()
    await server.wait_closed()
