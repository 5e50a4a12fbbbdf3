"""Access lines: what they say, and that a reader who stands still costs lines, counted, but never time."""

import asyncio
import json
import logging
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import orjson
import pytest

from weft_router.config import AccessLogConfig
from weft_router.telemetry import log_sink as sinks
from weft_router.telemetry import logs
from weft_router.telemetry.access_log import AccessLog, open_access_log
from weft_router.telemetry.log_sink import LogSink
from weft_router.telemetry.log_targets import Descriptor, RotatedFile
from weft_router.telemetry.metrics import Metrics
from weft_router_tests.canary import KEY, PROMPT, assert_no_secrets

FACTS: dict[str, object] = {
    "path": "/v1/chat/completions", "status": 200, "seconds": 0.1234, "trace": "a" * 32, "tenant": "acme",
    "class": "gold", "prompt_tokens": 1200, "completion_tokens": 64, "ttft": 0.031, "route": "remote",
    "reason": "interference", "worker": "d0", "prefill_worker": "p1", "attempts": 1,
}  # fmt: skip


@dataclass
class Pipe:
    """A pipe whose reader reads when it is told to."""

    read: int
    write: int

    def lines(self) -> list[dict[str, Any]]:
        """Return what is in the pipe now."""
        os.set_blocking(self.read, False)
        data = b""
        try:
            while part := os.read(self.read, 1 << 20):
                data += part
        except BlockingIOError:
            pass
        assert data == b"" or data.endswith(b"\n")
        return [orjson.loads(line) for line in data.splitlines()]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe(*os.pipe())
    yield made
    for fd in (made.read, made.write):
        try:
            os.close(fd)
        except OSError:
            continue


def access(fd: int, **options: Any) -> tuple[AccessLog, LogSink]:
    sink = LogSink(Descriptor(fd), note=logs.dropped_line)
    return AccessLog(sink, role="standalone", **options), sink


async def until(done: "Any", *, seconds: float = 60.0) -> None:
    end = monotonic() + seconds
    while not done():
        assert monotonic() < end, "not in time"
        await asyncio.sleep(0.005)


def test_a_line_has_the_facts_and_when_where_and_what(pipe: Pipe) -> None:
    log, sink = access(pipe.write)
    log.write(FACTS)
    sink.flush()
    (line,) = pipe.lines()
    assert {**line, **FACTS} == line
    assert (line["event"], line["level"], line["role"]) == ("request", "info", "standalone")
    assert len(line["time"]) == len("2026-11-21T23:51:15.123+00:00")


@pytest.mark.parametrize("value", ["half a \udc80 pair", {"a": {1, 2}}, float("nan"), Path("/x"), 2**80])
def test_whatever_a_fact_is_the_line_is_json(pipe: Pipe, value: object) -> None:
    log, sink = access(pipe.write)
    log.write({"status": 200, "odd": value})
    sink.flush()
    (line,) = pipe.lines()
    assert line["status"] == 200
    assert "odd" in line


async def test_lines_go_out_in_batches(pipe: Pipe) -> None:
    pieces: list[int] = []

    class Counting(Descriptor):
        def put(self, data: bytes) -> int:
            pieces.append(data.count(b"\n"))
            return super().put(data)

    target = Counting(pipe.write)
    log = AccessLog(LogSink(target, note=logs.dropped_line), role="decode")
    log.start(asyncio.get_running_loop())
    for _ in range(100):
        log.write(FACTS)
    assert pieces == []  # nothing yet: the requests go first
    await until(lambda: sum(pieces) == 100)
    assert max(pieces) > 5
    assert len(pipe.lines()) == 100
    log.close()


def test_the_last_lines_are_written_at_the_end(pipe: Pipe) -> None:
    log, _ = access(pipe.write)
    log.write(FACTS)
    assert pipe.lines() == []
    log.close()
    assert len(pipe.lines()) == 1


async def test_a_reader_who_stands_still_costs_lines_but_no_time(pipe: Pipe) -> None:
    log, sink = access(pipe.write)
    metrics = Metrics()
    sink.count_in(metrics.lines_dropped.labels())
    log.start(asyncio.get_running_loop())
    began = monotonic()
    for k in range(10_000):
        log.write({**FACTS, "number": k})
    assert monotonic() - began < 5  # a write that blocks would never end
    lost = sink.dropped
    assert 0 < lost < 10_000
    assert metrics.lines_dropped.labels().value == lost
    seen: list[dict[str, Any]] = []

    def read_on() -> bool:
        seen.extend(pipe.lines())
        return seen[-1]["event"] == "log_lines_dropped" if seen else False

    await until(read_on)
    assert seen[-1]["lines"] == lost
    assert [line["number"] for line in seen[:-1]] == list(range(10_000 - lost))  # in order, none twice
    log.write({**FACTS, "number": -1})
    await until(lambda: [line["number"] for line in pipe.lines()] == [-1])
    log.close()


def test_the_mode_of_the_descriptor_stays_as_it_was(pipe: Pipe) -> None:
    access(pipe.write)
    assert os.get_blocking(pipe.write)


def test_without_a_description_of_its_own_it_asks_first(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "not yours")

    with monkeypatch.context() as patch:
        patch.setattr("weft_router.telemetry.log_targets.os.open", refuse)
        log, sink = access(pipe.write)
    began = monotonic()
    for k in range(2000):
        log.write({**FACTS, "number": k})
    assert monotonic() - began < 5
    seen = pipe.lines()
    for _ in range(100):
        sink.flush()
        seen += pipe.lines()
    assert [line["number"] for line in seen] == list(range(2000))


def test_a_reader_who_is_gone_hurts_nobody(pipe: Pipe) -> None:
    log, sink = access(pipe.write)
    os.close(pipe.read)
    for _ in range(500):
        log.write(FACTS)
    log.close()
    assert sink.dropped >= 500


def test_processes_that_share_a_pipe_do_not_cut_into_each_others_lines(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from weft_router.telemetry import logs\n"
        "from weft_router.telemetry.access_log import AccessLog\n"
        "log = AccessLog(logs.standard(), role=sys.argv[1])\n"
        "for k in range(2000):\n"
        "    log.write({'status': 200, 'number': k, 'filler': 'x' * (k % 700)})\n"
        "    while logs.standard()._size > 60_000: logs.standard().flush()\n"
        "log.close()\n"
    )
    read, write = os.pipe()
    processes = [subprocess.Popen([sys.executable, "-c", code, name], stderr=write) for name in ("a", "b")]
    os.close(write)
    with os.fdopen(read, "rb") as reader:
        lines = [json.loads(line) for line in reader]
    assert [process.wait(10) for process in processes] == [0, 0]
    for name in ("a", "b"):
        assert [line["number"] for line in lines if line["role"] == name] == list(range(2000))


def test_successful_requests_are_sampled_and_failures_never(pipe: Pipe) -> None:
    log, sink = access(pipe.write, keep=0.0)
    for status in (200, 204, 400, 429, 499, 503):
        log.write({"status": status})
    sink.flush()
    assert [line["status"] for line in pipe.lines()] == [400, 429, 499, 503]


def test_files_are_rotated_and_the_oldest_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="weft_router")
    path = tmp_path / "access.jsonl"
    config = AccessLogConfig.model_validate({"to": str(path), "maxBytes": 2**16, "files": 2})
    log = open_access_log(config, role="coordinator", metrics=Metrics())
    for k in range(1000):
        log.write({**FACTS, "number": k})
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["access.jsonl", "access.jsonl.1"]
    assert all(file.stat().st_size <= 2**16 for file in files)
    assert all(stat.S_IMODE(file.stat().st_mode) & 0o007 == 0 for file in files)
    numbers = [orjson.loads(line)["number"] for file in reversed(files) for line in file.read_bytes().splitlines()]
    assert numbers == list(range(numbers[0], 1000))


def test_a_full_disk_is_counted_and_writing_goes_on_when_there_is_room(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    sink = LogSink(RotatedFile(folder / "a.jsonl", max_bytes=2**20, files=1), note=logs.dropped_line)
    log = AccessLog(sink, role="prefill")
    log.write(FACTS)
    sink.flush()
    lost = sink.dropped
    assert lost >= 1
    folder.mkdir()
    log.write(FACTS)
    sink.flush()
    events = [orjson.loads(line)["event"] for line in (folder / "a.jsonl").read_bytes().splitlines()]
    assert events == ["request", "log_lines_dropped"]


def test_the_configuration_and_the_log_level_say_where_lines_go(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()

    def opened(to: str) -> AccessLog:
        return open_access_log(AccessLogConfig.model_validate({"to": to}), role="decode", metrics=metrics)

    caplog.set_level(logging.INFO, logger="weft_router")
    assert opened("off")._sink is None
    assert opened("stdout")._sink is not None
    caplog.set_level(logging.WARNING, logger="weft_router")
    assert opened("stdout")._sink is None


def test_log_records_go_the_same_way(pipe: Pipe) -> None:
    sink = LogSink(Descriptor(pipe.write), note=logs.dropped_line)
    logger = logging.getLogger("weft_router.test_of_the_sink")
    logger.propagate = False
    handler = logs.SinkHandler(sink)
    handler.setFormatter(logs.JsonLines())
    logger.addHandler(handler)
    threads = [threading.Thread(target=lambda: logger.warning("worker_gone", extra={"worker": "p0"})) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    try:
        try:
            Path("/nowhere/at/all").read_bytes()
        except OSError as error:
            raise ValueError(PROMPT + KEY) from error
    except ValueError:
        logger.exception("turn_failed", extra={"odd": "half a \udc80 pair"})
    lines = pipe.lines()
    assert [line["event"] for line in lines] == ["worker_gone"] * 8 + ["turn_failed"]
    first, *rest = lines[-1]["exception"].splitlines()
    assert (first, rest[1]) == ("ValueError", "caused by")  # a message may quote what it was about
    assert "test_access_log.py:" in rest[0]
    assert rest[2] == "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/at/all'"
    assert_no_secrets(str(lines))
    assert lines[0]["level"] == "warning"


def test_logging_never_blocks_either(pipe: Pipe) -> None:
    sink = LogSink(Descriptor(pipe.write), note=logs.dropped_line)
    began = monotonic()
    for _ in range(5000):
        sink.say(b"x" * 1000 + b"\n")
    assert monotonic() - began < 10
    assert sink.dropped > 0
    assert sink._size <= sinks.MOST + 1001


def test_lines_follow_the_role(pipe: Pipe) -> None:
    log, sink = access(pipe.write)
    log.write(FACTS)
    log.set_role("decode")
    log.write(FACTS)
    sink.flush()
    assert [line["role"] for line in pipe.lines()] == ["standalone", "decode"]
