"""Do what can wait once the bytes under way are written: whoever waits for them does not wait for the books."""

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class Afterwards:
    """Work of one turn of the loop, done at the next turn's beginning.

    What a turn has sent is written first (``wire.turn``), and the loop reads again only after the next one's beginning.
    So nothing that a client or an engine says in answer is read before the work is done.
    """

    def __init__(self) -> None:
        self._work: list[Callable[[], None]] = []

    def add(self, work: Callable[[], None]) -> None:
        """Do this soon, after what was added before."""
        if not self._work:
            asyncio.get_running_loop().call_soon(self.run)
        self._work.append(work)

    def run(self) -> None:
        """Do all that waits."""
        waiting, self._work = self._work, []
        for work in waiting:
            try:
                work()
            except Exception:
                log.exception("books_failed")
