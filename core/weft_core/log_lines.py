"""Put the facts of a log record in order: when, how grave, who, one event name, and what was said beside it."""

import logging
from datetime import UTC, datetime

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; all else was given as ``extra``."""


def facts(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of a structured log line, those given as ``extra`` last; exceptions are the caller's."""
    return {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": record.getMessage(),
        **{name: value for name, value in vars(record).items() if name not in _PLAIN},
    }
