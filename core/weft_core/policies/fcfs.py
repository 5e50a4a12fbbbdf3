"""Run prefills in the order in which they came: the baseline of every other order."""

SOURCE = "baseline"


def next_fcfs() -> int:
    """Return the first place of the queue."""
    return 0
