"""Write one JSON line for each request: what was asked of whom, how it went and why it went there; never its content.

A line costs about 1.5 us; through ``logging`` it was 20. Fields of earlier versions keep their names.
"""

import asyncio
import logging
from datetime import UTC, datetime
from pathlib import Path
from random import random
from time import time

import orjson

from weft_router.config import AccessLogConfig
from weft_router.telemetry.log_sink import LogSink
from weft_router.telemetry.log_targets import Descriptor, RotatedFile
from weft_router.telemetry.logs import dropped_line, json_line, standard
from weft_router.telemetry.metrics import Metrics

_MILLISECONDS = tuple(b"%03d" % k for k in range(1000))
log = logging.getLogger(__name__)


class AccessLog:
    """The access lines of one process."""

    def __init__(self, sink: LogSink | None, *, role: str, keep: float = 1.0) -> None:
        """Write to a sink; ``keep`` is the share of the lines of requests that went well. None writes nothing."""
        self._sink = sink
        self._keep = keep
        self._tail = b""
        self.set_role(role)
        self._second = 0
        self._until = 0
        self._head = b""

    def set_role(self, role: str) -> None:
        """Write lines of another role from now on."""
        self._tail = b'+00:00","level":"info","event":"request","role":' + orjson.dumps(role) + b","

    def write(self, facts: dict[str, object]) -> None:
        """Write the line of a request; ``facts`` are its fields, at least ``status``.

        They are the caller's words, numbers and hashes. A client's own text has no place among them.
        """
        sink = self._sink
        if sink is None:
            return
        if self._keep < 1.0 and _well(facts) and random() >= self._keep:  # noqa: S311 - spreads load, guards nothing
            return
        now = time()
        if not self._second <= now < self._until:
            self._second = second = int(now)
            self._until = second + 1
            stamp = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
            self._head = b'{"time":"' + stamp.encode()
        try:
            body = orjson.dumps(facts, default=str, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError:
            body = json_line(facts) + b"\n"
        sink.write(self._head + _MILLISECONDS[int((now - self._second) * 1000)] + self._tail + body[1:])

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the loop write lines in batches, every 50 ms."""
        if self._sink is not None:
            self._sink.start(loop)

    def close(self) -> None:
        """Write what is left."""
        if self._sink is standard():
            self._sink.drain()  # other log lines go on
        elif self._sink is not None:
            self._sink.close()


def rounded(seconds: float) -> float:
    """Return seconds with four decimals; ``round`` takes three times as long."""
    return int(seconds * 1e4 + 0.5) / 1e4


def _well(facts: dict[str, object]) -> bool:
    status = facts.get("status")
    return isinstance(status, int) and status < 400


def open_access_log(config: AccessLogConfig, *, role: str, metrics: Metrics) -> AccessLog:
    """Return the access log that the configuration asks for; none when the log level is above ``info``."""
    if config.to == "off" or not log.isEnabledFor(logging.INFO):
        return AccessLog(None, role=role)
    if config.to == "stderr":
        sink = standard()
    elif config.to == "stdout":
        sink = LogSink(Descriptor(1), note=dropped_line)
    else:
        target = RotatedFile(Path(config.to), max_bytes=config.max_bytes, files=config.files)
        sink = LogSink(target, note=dropped_line)
    sink.count_in(metrics.lines_dropped.labels())
    return AccessLog(sink, role=role, keep=config.sample_ratio)
