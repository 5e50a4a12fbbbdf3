"""Write log records as one JSON object a line: an event name and its facts, never prompts, bodies or tokens."""

import logging
import sys

import orjson

from weft_core.log_lines import facts


class JsonLines(logging.Formatter):
    """Format a record as JSON; everything given as ``extra`` becomes a field."""

    def format(self, record: logging.LogRecord) -> str:
        line = facts(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def configure(level: str) -> None:
    """Send all records of this process to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
