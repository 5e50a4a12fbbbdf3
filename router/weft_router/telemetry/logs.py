"""Write log records as one JSON object a line: an event name and its facts, never prompts, bodies or tokens.

Of an exception that nobody expected only the place is told, and its message only where Python's own words hold no value
that a client could have sent: ``int('my secret')`` quotes what it was given.

They go to standard error through the same sink as the access lines: a reader that stands still holds up no request.
"""

import json
import logging
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import TracebackType

import orjson

from weft_core.log_lines import facts
from weft_router.telemetry.log_sink import LogSink
from weft_router.telemetry.log_targets import Descriptor

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
_PLAIN = (OSError, TypeError, AttributeError, NameError, IndexError, ArithmeticError, AssertionError, MemoryError)
"""Errors whose messages are of types, names and numbers; what all others say may quote a request."""


class JsonLines(logging.Formatter):
    """Format a record as JSON; everything given as ``extra`` becomes a field."""

    def format(self, record: logging.LogRecord) -> str:
        line = facts(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json_line(line).decode()

    def formatException(self, ei: ExceptionInfo) -> str:  # noqa: N802 - the name is logging's
        """Return where an exception came from, without what it may quote."""
        lines: list[str] = []
        error, seen = ei[1], set[int]()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            lines += ["caused by"] if lines else []
            lines.append(_said(error))
            for frame in traceback.extract_tb(error.__traceback__):
                lines.append(f"  {Path(frame.filename).name}:{frame.lineno} in {frame.name}")
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\n".join(lines)


def _said(error: BaseException) -> str:
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, _PLAIN) else name


class SinkHandler(logging.Handler):
    """Give records to a sink."""

    def __init__(self, sink: LogSink) -> None:
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
def standard() -> LogSink:
    """Return the process's sink to standard error."""
    return LogSink(Descriptor(2), note=dropped_line)


def configure(level: str) -> None:
    """Send all records of this process to standard error as JSON lines."""
    handler = SinkHandler(standard())
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
