"""Write one JSON object per line to standard error: an event name and its facts, never prompts or tokens."""

import logging
import sys
from datetime import UTC, datetime

import orjson

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class EventLines(logging.Formatter):
    """Format a record with its extra fields as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def configure() -> None:
    """Send every record of level info and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EventLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
