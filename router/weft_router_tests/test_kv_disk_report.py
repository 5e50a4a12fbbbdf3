"""What is reported of a disk, and how it reaches heartbeats and metrics."""

import errno
import json
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Event
from typing import Any
from urllib.request import urlopen

import pytest

from weft_core.heartbeat import WorkerRecord, read_fields
from weft_core.kv_tiers import DISK_FAILED, DISK_FULL, DISK_SILENT, DISK_SLOW
from weft_router import kv_disk
from weft_router.http.pool import ConnectionPool
from weft_router.kv_disk import keep
from weft_router.kv_disk_report import PROBE, SLOW_S, STUCK_S, TRIES, DiskReport, serve, try_write
from weft_router.telemetry.metrics import Metrics
from weft_router.workers.kv_disk_watch import SILENT_S, KvDiskWatch, read_report

GIB = 2**30


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def kinds(report: DiskReport) -> list[str]:
    return [kind for kind, _ in report.faults()]


def wrote(report: DiskReport, clock: Clock, *seconds: float) -> None:
    for one in seconds:
        with report.waiting(measured=True):
            clock.now += one


def test_a_disk_that_holds_the_tier_has_no_fault() -> None:
    report = DiskReport(100 * GIB)
    assert kinds(report) == [], "nothing is known yet"
    report.found(10 * GIB, allowed=90 * GIB, free=80 * GIB)
    assert kinds(report) == [], "a file system takes some of its volume"


def test_a_disk_that_others_fill_is_full() -> None:
    report = DiskReport(100 * GIB)
    report.found(10 * GIB, allowed=49 * GIB, free=GIB)
    assert kinds(report) == [DISK_FULL]
    report.found(10 * GIB, allowed=60 * GIB, free=GIB)
    assert kinds(report) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_write_that_finds_no_room_is_a_full_disk(number: int) -> None:
    report = DiskReport(GIB)
    report.failed(OSError(number, "No space left on device"))
    assert kinds(report) == [DISK_FULL]


def test_another_failure_is_told_in_its_words_until_it_is_over() -> None:
    report = DiskReport(GIB)
    report.failed(OSError(errno.ESTALE, "Stale file handle"))
    assert report.faults() == [(DISK_FAILED, "[Errno 116] Stale file handle")]
    report.found(0, allowed=GIB, free=GIB)
    assert kinds(report) == []


def test_writes_are_slow_when_most_of_the_last_are() -> None:
    clock = Clock()
    report = DiskReport(GIB, clock=clock)
    wrote(report, clock, 2 * SLOW_S, 2 * SLOW_S)
    assert kinds(report) == [], "two of them say little"
    wrote(report, clock, 0.01, 2 * SLOW_S)
    assert kinds(report) == [DISK_SLOW]
    wrote(report, clock, *[0.01] * TRIES)
    assert kinds(report) == []


def test_a_write_that_does_not_return_is_slow() -> None:
    clock = Clock()
    report = DiskReport(GIB, clock=clock)
    with report.waiting():
        clock.now += STUCK_S + 1
        assert kinds(report) == [DISK_SLOW]
    assert kinds(report) == []


def test_a_write_that_fails_is_no_measurement() -> None:
    clock = Clock()
    report = DiskReport(GIB, clock=clock)

    def gone() -> None:
        with report.waiting(measured=True):
            clock.now += 5
            raise OSError("gone")

    for _ in range(TRIES):
        with pytest.raises(OSError, match="gone"):
            gone()
    assert kinds(report) == []
    assert report.fields()["writeSeconds"] is None


def test_nothing_is_left_of_a_try(tmp_path: Path) -> None:
    try_write(tmp_path)
    assert not (tmp_path / PROBE).exists()


def test_a_look_fills_the_report(tmp_path: Path) -> None:
    stop = Event()
    stop.set()
    report = DiskReport(10)
    assert keep(tmp_path / "r1-w0", 10, unused_s=1, stop=stop, report=report) == 0
    fields = report.fields()
    assert fields["allowedBytes"] == 10
    assert isinstance(fields["writeSeconds"], float)
    assert fields["faults"] == []


def test_a_full_disk_is_reported_by_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr(kv_disk, "try_write", full)
    stop = Event()
    stop.set()
    report = DiskReport(10)
    assert keep(tmp_path, 10, unused_s=1, stop=stop, report=report) == 0
    assert kinds(report) == [DISK_FULL]


def test_room_is_made_on_a_disk_that_takes_no_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> None:
        if any(folder.rglob("*.bin")):
            raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr(kv_disk, "try_write", full)
    monkeypatch.setattr(kv_disk, "disk_bytes", lambda _: (1000, 0))
    stop = Event()
    stop.set()
    (tmp_path / "old.bin").write_bytes(b"x" * 40)
    report = DiskReport(10_000)
    keep(tmp_path, 10_000, unused_s=1, stop=stop, report=report)
    assert not (tmp_path / "old.bin").exists()
    assert report.deleted == 40
    assert kinds(report) == [DISK_FULL], "others have the disk"


@pytest.mark.parametrize("page", [b"", b"[]", b"{}", b"null", b'{"faults": 1}', b'{"deletedBytes": "1"}', b"\xff"])
def test_pages_that_are_no_report(page: bytes) -> None:
    assert read_report(page) is None


def test_faults_that_are_not_known_are_left_out() -> None:
    report: dict[str, Any] = {**DiskReport(10).fields(), "faults": [["disk-full", ""], ["made-up", "x"]]}
    state = read_report(json.dumps(report).encode())
    assert state is not None
    assert state.faults == ((DISK_FULL, ""),)


def test_heartbeats_carry_faults() -> None:
    record = WorkerRecord("a", "decode", "http://x:1", 1, 1, kv_tier_faults=((DISK_FAILED, "bad\x00" + "x" * 500),))
    stored = read_fields(record.fields())
    assert stored is not None
    ((kind, words),) = stored.kv_tier_faults
    assert kind == DISK_FAILED
    assert words.startswith("bad?x")
    old = {key: value for key, value in record.fields().items() if key != "kvTierFaults"}
    without = read_fields(old)
    assert without is not None
    assert without.kv_tier_faults == (), "sidecars of an older version say nothing of it"


def port_of(server: ThreadingHTTPServer) -> int:
    return int(server.server_address[1])


@pytest.mark.component
def test_the_report_is_served_on_loopback() -> None:
    report = DiskReport(10)
    server = serve(report, 0)
    try:
        with urlopen(f"http://127.0.0.1:{port_of(server)}/", timeout=30) as answer:
            assert json.load(answer)["limitBytes"] == 10
    finally:
        server.shutdown()
        server.server_close()


def watch_of(port: int, pool: ConnectionPool, **parts: Any) -> KvDiskWatch:
    parts = {"serves": lambda: True, "metrics": Metrics().kv_disk, "on_change": lambda: None, **parts}
    return KvDiskWatch(pool, port, **parts)


@pytest.mark.component
async def test_the_worker_reports_what_its_disk_sidecar_says() -> None:
    report, metrics, changes = DiskReport(100), Metrics(), list[str]()
    pool = ConnectionPool(connect_s=5.0, keepalive_s=3.0)
    server = serve(report, 0)
    watch = watch_of(port_of(server), pool, metrics=metrics.kv_disk, on_change=lambda: changes.append("changed"))
    worker = WorkerRecord("a", "decode", "http://x:1", 1, 1)
    try:
        report.found(70, allowed=40, free=7)
        report.deleted = 5
        await watch.look()
        assert watch.describe(worker).kv_tier_faults == ((DISK_FULL, ""),)
        page = metrics.render()[0].decode()
        assert 'weft_router_kv_disk_bytes{kind="used"} 70' in page
        assert 'weft_router_kv_disk_faults{fault="disk-full"} 1' in page
        assert "weft_router_kv_disk_deleted_bytes_total 5" in page
        report.found(70, allowed=100, free=70)
        await watch.look()
        assert watch.describe(worker).kv_tier_faults == ()
        assert changes == ["changed", "changed"]
    finally:
        await pool.close()
        server.shutdown()
        server.server_close()


@pytest.mark.component
async def test_a_disk_sidecar_that_is_silent_for_long_while_the_engine_serves_is_a_fault() -> None:
    clock, healthy = Clock(), [False]
    server = serve(DiskReport(1), 0)
    port = port_of(server)
    server.shutdown()
    server.server_close()
    pool = ConnectionPool(connect_s=5.0, keepalive_s=3.0)
    watch = watch_of(port, pool, serves=lambda: healthy[0], clock=clock)
    worker = WorkerRecord("a", "decode", "http://x:1", 1, 1)
    try:
        clock.now += SILENT_S + 1
        await watch.look()
        assert watch.describe(worker).kv_tier_faults == (), "the pod may still be starting"
        healthy[0] = True
        await watch.look()
        assert watch.describe(worker).kv_tier_faults == ()
        clock.now += SILENT_S + 1
        await watch.look()
        assert watch.describe(worker).kv_tier_faults[0][0] == DISK_SILENT
    finally:
        await pool.close()
