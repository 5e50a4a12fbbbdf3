"""Write one JSON object per line to standard error: an event name and its facts, never prompts or tokens."""

import logging
import sys

import orjson

from weft_core.log_lines import facts


class EventLines(logging.Formatter):
    """Format a record with its extra fields as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = facts(record)
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def configure() -> None:
    """Send every record of level info and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EventLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
