"""An event loop whose clock jumps to the next timer when there is nothing else to do: minutes pass in milliseconds."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

PATIENCE_S = 0.001
"""Real time that is given to threads before the clock jumps."""


class _Jumping(selectors.DefaultSelector):
    """A selector that waits for nothing but work of other threads; what it was to wait for is added to ``passed``."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        events = super().select(PATIENCE_S)
        if not events:
            self.passed += timeout
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop on virtual time, which begins at 0."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._jumping.passed


def run_virtual(scenario: Coroutine[Any, Any, Result]) -> Result:
    """Run a scenario to its end on virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario)
