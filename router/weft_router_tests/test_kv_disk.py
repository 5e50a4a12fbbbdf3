"""Room for KV on a disk: what was unused for longest goes, what is in use or of others stays."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_router import kv_disk
from weft_router.kv_disk import MARKER, Room, allowed_bytes, files, keep, make_room, remove_unused, touch

HUGE = 10**9


def roomy(_: Path) -> tuple[int, int]:
    """Return a disk with much free space, which others use, too."""
    return HUGE, HUGE // 2


def block(folder: Path, name: str, size: int, *, used: float) -> Path:
    """Write a file as engines do, in a folder of its hash."""
    path = folder / "model_0123456789ab_r0" / name[:3] / f"{name}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (used, used))
    return path


def test_what_was_unused_for_longest_is_deleted(tmp_path: Path) -> None:
    made = [block(tmp_path, f"{number:03}", 100, used=number * 3600) for number in range(10)]
    read = made[0]
    os.utime(read, (20 * 3600, 0))  # written first and read last
    room = make_room(tmp_path, 600, roomy)
    assert room == Room(used=1000, deleted=500), "a tenth more than needed, in whole files"
    assert [path for path in made if path.exists()] == [read, *made[6:]]


def test_nothing_is_deleted_within_the_limit(tmp_path: Path) -> None:
    made = [block(tmp_path, f"{number:03}", 100, used=number) for number in range(10)]
    assert make_room(tmp_path, 1000, roomy) == Room(1000)
    assert all(path.exists() for path in made)


def test_no_file_is_looked_at_where_the_whole_disk_holds_less(tmp_path: Path) -> None:
    block(tmp_path, "000", 100, used=0)
    assert make_room(tmp_path, 50, lambda _: (HUGE, HUGE - 40)) == Room(40)


def test_other_files_stay_and_count_nothing(tmp_path: Path) -> None:
    config = tmp_path / "model_0123456789ab" / "config.json"
    config.parent.mkdir()
    config.write_bytes(b"x" * 500)
    os.utime(config, (0, 0))
    block(tmp_path, "000", 100, used=1)
    assert make_room(tmp_path, 10, roomy) == Room(100, 100)
    assert config.exists()
    assert not list(files(tmp_path))


def test_files_behind_links_are_not_reached(tmp_path: Path) -> None:
    outside = tmp_path / "other"
    theirs = block(outside, "000", 100, used=0)
    own = tmp_path / "own"
    own.mkdir()
    (own / "link").symlink_to(outside)
    (own / "linked.bin").symlink_to(theirs)
    assert make_room(own, 1, roomy) == Room(0)
    assert theirs.exists()


def test_a_nearly_full_disk_makes_room_before_the_limit(tmp_path: Path) -> None:
    for number in range(10):
        block(tmp_path, f"{number:03}", 100, used=number * 3600)
    room = make_room(tmp_path, HUGE, lambda _: (4000, 100))  # 200 stay free
    assert room == Room(used=1000, deleted=200)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**6))
@settings(max_examples=200, deadline=None)
def test_what_is_allowed_leaves_a_twentieth_of_the_disk(limit: int, used: int, total: int, free: int) -> None:
    allowed = allowed_bytes(limit, used, total=total, free=free)
    assert 0 <= allowed <= limit
    if 0 < allowed < used:
        assert free + used - allowed >= min(total // 20, free + used - limit)


def test_folders_of_former_pods_go_and_those_in_use_stay(tmp_path: Path) -> None:
    own, running, gone, unknown = (tmp_path / name for name in ("r1-w0", "r1-w1", "r0-w0", "notes"))
    for folder in (own, running, gone):
        touch(folder)
        block(folder, "000", 10, used=0)
    unknown.mkdir()
    (tmp_path / "file").write_text("x")
    os.utime(gone / MARKER, (0, 0))
    assert remove_unused(own, 3600) == ["r0-w0"]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["file", "notes", "r1-w0", "r1-w1"]


def test_a_folder_is_kept_in_use(tmp_path: Path) -> None:
    folder = tmp_path / "default" / "demo" / "r1-w0"
    touch(folder)
    os.utime(folder / MARKER, (0, 0))
    touch(folder)
    assert time.time() - (folder / MARKER).stat().st_mtime < 3600


def test_a_folder_that_is_not_writable_ends_it_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(kv_disk, "touch", refused)
    assert keep(tmp_path, 1, unused_s=1, stop=Event()) == 1
    assert f"let user {os.getuid()} write there" in capsys.readouterr().out


def test_a_volume_that_is_away_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(folder: Path) -> None:
        raise OSError(116, "Stale file handle", str(folder))

    monkeypatch.setattr(kv_disk, "touch", away)
    stop = Event()
    stop.set()
    assert keep(tmp_path, 1, unused_s=1, stop=stop) == 0
    assert "Stale file handle" in capsys.readouterr().out


@pytest.mark.component
def test_the_program_makes_room_and_ends_on_sigterm(tmp_path: Path) -> None:
    folder = tmp_path / "r1-w0"
    old = block(folder, "000", 100, used=0)
    new = block(folder, "111", 100, used=time.time())
    words = [f"--folder={folder}", "--bytes=150", "--unused-seconds=86400"]
    process = subprocess.Popen([sys.executable, "-m", "weft_router.kv_disk", *words], stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while old.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert '"kv_disk_room_made"' in said
    assert new.exists()
