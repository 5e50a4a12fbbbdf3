"""Write log records as one JSON object a line: an event name and its facts, never prompts, bodies or tokens.

They go to standard error through the same sink as the access lines: a reader that stands still holds up no request.
"""

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache

import orjson

from weft_core.log_lines import facts
from weft_router.signals.sink import Sink
from weft_router.signals.targets import Descriptor


class JsonLines(logging.Formatter):
    """Format a record as JSON; everything given as ``extra`` becomes a field."""

    def format(self, record: logging.LogRecord) -> str:
        line = facts(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json_line(line).decode()


class SinkHandler(logging.Handler):
    """Give records to a sink."""

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record now, or as soon as the reader goes on."""
        try:
            self._sink.say(self.format(record).encode() + b"\n")
        except Exception:  # noqa: BLE001 - what cannot be logged must not end a request
            self.handleError(record)

    def close(self) -> None:
        """Write what is left: the process ends."""
        self._sink.drain()
        super().close()


def json_line(line: Mapping[str, object]) -> bytes:
    """Return an object as JSON on one line, whatever is in it."""
    try:
        return orjson.dumps(line, default=str)
    except TypeError:  # half a surrogate pair, or a number too large for others to read
        return json.dumps(line, default=str, ensure_ascii=False).encode("utf-8", "replace")


def dropped_line(lines: int) -> bytes:
    """Return the line that says how many lines were lost so far."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    event = {"time": now, "level": "warning", "logger": __name__, "event": "log_lines_dropped", "lines": lines}
    return orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE)


@cache
def standard() -> Sink:
    """Return the process's sink to standard error."""
    return Sink(Descriptor(2), note=dropped_line)


def configure(level: str) -> None:
    """Send all records of this process to standard error as JSON lines."""
    handler = SinkHandler(standard())
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
