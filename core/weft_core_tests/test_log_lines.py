"""What a log line holds: the event, who said it and when, and everything that was said beside it."""

import logging

from weft_core.log_lines import facts


def test_a_line_holds_the_event_and_what_was_said_beside_it() -> None:
    record = logging.makeLogRecord(
        {"name": "weft.router", "levelname": "WARNING", "msg": "worker_lost", "created": 86400.25, "worker": "p4-0"}
    )
    assert facts(record) == {
        "time": "1970-01-02T00:00:00.250+00:00",
        "level": "warning",
        "logger": "weft.router",
        "event": "worker_lost",
        "worker": "p4-0",
    }
