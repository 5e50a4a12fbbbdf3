"""Structured logging: one JSON object per line with an event name, never prompts, tokens or bodies."""

import json
import logging
import sys

from weft_core.log_lines import facts

_FOREIGN = ("settings", "k8s_skip", "k8s_ref")


class JsonLines(logging.Formatter):
    """Formats a record with its extra fields as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            name: value if isinstance(value, int | float | bool | None) else str(value)
            for name, value in facts(record).items()
            if name not in _FOREIGN
        }
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
