"""Wait for something to become true, with a deadline and a reason when it does not."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class WaitedTooLong(TimeoutError):  # noqa: N818 - reads as what happened
    """Report what did not become true in time, and what was seen last."""


def until(
    probe: Callable[[], T | None],
    *,
    what: str,
    timeout_s: float,
    every_s: float = 0.5,
    last: Callable[[], str] = lambda: "",
) -> T:
    """Return the first value of ``probe`` that is neither None nor False.

    Raises:
        WaitedTooLong: it did not come within ``timeout_s``; ``last`` tells what was seen last.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = probe()
        if found is not None and found is not False:
            return found
        if time.monotonic() >= deadline:
            seen = last()
            raise WaitedTooLong(f"{what} did not come within {timeout_s:g} s{': ' + seen if seen else ''}")
        time.sleep(every_s)
