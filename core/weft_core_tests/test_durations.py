import math

import pytest

from weft_core.durations import format_seconds, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5s", 5.0),
        ("50ms", 0.05),
        ("1m30s", 90.0),
        ("1h", 3600.0),
        ("1.5s", 1.5),
        ("250us", 0.00025),
        (2, 2.0),
        (0, 0.0),
    ],
)
def test_durations_are_read(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "5x", "-5s", "1s!", None, True, math.nan, math.inf, -1, ["5s"]])
def test_anything_else_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is not a duration; write 5s"):
        parse_duration(text)


def test_durations_are_shown_with_three_digits() -> None:
    shown = [format_seconds(x) for x in (0.0164, 0.64312, 4.251, 1234.5, math.inf)]
    assert shown == ["16.4 ms", "643 ms", "4.25 s", "1234 s", "unbounded"]
