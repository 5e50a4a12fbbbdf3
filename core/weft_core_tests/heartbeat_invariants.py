"""What must hold for any bytes that somebody writes where a worker's heartbeat is kept.

The tests and the fuzz target (core/fuzz) share these.
"""

import json
import math

from weft_core.heartbeat import WorkerRecord, read_fields, scale_down_order
from weft_core_tests.picker import Picker
from weft_core_tests.test_heartbeat import FULL

VALUES: tuple[object, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 1e308, -1e308, math.nan, math.inf, -math.inf),
    *("", "x", "x" * 100_000, "\x00", "\ud800", "http://attacker", "prefill", "decode"),
    *([], {}, [[]], [[1, 2]], [[1, 2, "a"]] * 3, [["a", "b", "c"]], [[math.inf, 1, "a"]], {"a": 1}, [None]),
)


def parse(raw: bytes) -> WorkerRecord | None:
    """Return the record that stored bytes are, as a reader of Redis does; None where they are none."""
    try:
        return read_fields(json.loads(raw))
    except (ValueError, RecursionError):
        return None


def records_are_read_or_refused(data: bytes) -> None:
    """Check one input: bytes as they are, or a good record of which some fields were changed."""
    picker = Picker(data)
    if picker.number(1):
        raw = picker.rest()
    else:
        body: dict[str, object] = dict(FULL.fields())
        for _ in range(1 + picker.number(3)):
            name = picker.choice([*body, "unknown"])
            if picker.number(7):
                body[name] = picker.choice(VALUES) if picker.number(1) else picker.real()
            else:
                body.pop(name, None)
        raw = json.dumps(body).encode()
    record = parse(raw)
    if record is None:
        return
    assert scale_down_order([record, FULL])
    again = parse(json.dumps(record.fields()).encode())
    assert again is not None, "what is read is not written as it could be read"
    assert again.worker == record.worker
