"""Blocks whose files were deleted: named by their files, numbered, and read by the router's sidecar."""

from collections.abc import Sequence
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from weft_router import kv_disk_blocks
from weft_router.http.pool import ConnectionPool
from weft_router.kv_disk import make_room
from weft_router.kv_disk_blocks import DeletedBlocks
from weft_router.kv_disk_report import DiskReport, serve
from weft_router.telemetry.metrics import Metrics
from weft_router.workers.kv_disk_watch import KvDiskWatch, read_deleted

FOLDER = "/kv-cache/default/demo/r1-w0/model_0123456789ab_r0"


def file_of(block: int, group: int = 0) -> str:
    """Return the path of a block's file, as vLLM names it."""
    name = f"{'ab' * 24}{block:016x}"
    return f"{FOLDER}/{name[:3]}/{name[3:5]}_g{group}/{name}.bin"


def test_blocks_are_read_from_the_names_of_files() -> None:
    deleted = DeletedBlocks()
    for path in (file_of(7), file_of(2**64 - 1), file_of(9, group=1), file_of(8)[:-4] + ".bin.tmp"):
        deleted.add(path)
    assert deleted.page(0) == {"run": deleted.run, "first": 0, "hashes": [7, 2**64 - 1]}
    assert deleted.page(1)["hashes"] == [2**64 - 1]
    assert deleted.page(2)["hashes"] == []
    assert deleted.count == 2


def test_after_a_file_whose_name_says_no_block_readers_know_of_none_before_it() -> None:
    deleted = DeletedBlocks()
    for path in (file_of(1), f"{FOLDER}/model-0123abcd.bin", file_of(2)):
        deleted.add(path)
    assert (deleted.page(0)["first"], deleted.page(0)["hashes"]) == (2, [2])
    assert deleted.count == 3


def test_memory_is_bounded_and_numbers_go_on() -> None:
    deleted = DeletedBlocks(kept=4)
    for block in range(21):
        deleted.add(file_of(block))
    assert deleted.count == 21
    page: Any = deleted.page(0)
    assert page["first"] == 16
    assert page["hashes"] == [16, 17, 18, 19, 20]
    assert deleted.page(18)["hashes"] == [18, 19, 20]


def test_what_makes_room_says_which_files_it_deletes(tmp_path: Path) -> None:
    for block in range(10):
        path = tmp_path / Path(file_of(block)).relative_to(FOLDER)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 100)
    deleted = DeletedBlocks()
    make_room(tmp_path, 600, lambda _: (10**9, 10**9 // 2), deleted.add)
    assert deleted.count == 5
    left = {int(path.stem[-16:], 16) for path in tmp_path.rglob("*.bin")}
    hashes: Any = deleted.page(0)["hashes"]
    assert left == set(range(10)) - set(hashes)


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"[]",
        b"{}",
        b'{"run":"a","first":0,"hashes":1}',
        b'{"run":"a","first":-1,"hashes":[]}',
        b'{"run":"a","first":0,"hashes":["1"]}',
        b'{"run":"a","first":0,"hashes":[-1]}',
        b'{"run":1,"first":0,"hashes":[]}',
    ],
)
def test_pages_that_are_none(page: bytes) -> None:
    assert read_deleted(page) is None


@pytest.mark.component
async def test_the_index_forgets_what_the_sidecar_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block by block; all of the disk after a restart of the sidecar, or where it deleted more than it remembers."""
    monkeypatch.setattr(kv_disk_blocks, "PAGE", 2)
    forgotten: list[Sequence[int] | None] = []

    async def forget(hashes: Sequence[int] | None) -> None:
        forgotten.append(hashes)

    reports = [DiskReport(100), DiskReport(100)]
    pool = ConnectionPool(connect_s=5.0, keepalive_s=3.0)
    servers: list[ThreadingHTTPServer] = [serve(report, 0) for report in reports]
    ports = [int(server.server_address[1]) for server in servers]
    watch = KvDiskWatch(
        pool, ports[0], serves=lambda: True, metrics=Metrics().kv_disk, on_change=lambda: None, forget=forget
    )
    try:
        await watch.look()
        assert forgotten == [], "nothing was deleted"
        for block in (1, 2, 3):
            reports[0].blocks.add(file_of(block))
        await watch.look()
        await watch.look()
        assert forgotten == [[1, 2], [3]]
        reports[0].blocks.add("other.bin")
        reports[0].blocks.add(file_of(4))
        forgotten.clear()
        await watch.look()
        assert forgotten == [None, [4]]
        watch._port = ports[1]
        forgotten.clear()
        await watch.look()
        assert forgotten == [None]
    finally:
        await pool.close()
        for server in servers:
            server.shutdown()
            server.server_close()
