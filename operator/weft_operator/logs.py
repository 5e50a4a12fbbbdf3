"""Structured logging: one JSON object per line, one event name per fact, never prompts, tokens or bodies."""

import json
import logging
import sys
from datetime import UTC, datetime

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_FOREIGN = ("settings", "k8s_skip", "k8s_ref")


class JsonLines(logging.Formatter):
    """Formats a record with its extra fields as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD and name not in _FOREIGN:
                line[name] = value if isinstance(value, int | float | bool | None) else str(value)
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure(level: str) -> None:
    """Send all logs to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("kopf").setLevel(max(logging.INFO, logging.getLogger().level))
    logging.getLogger("urllib3").setLevel(logging.WARNING)
