"""What all load in the background has in common: what its sessions met so far, and a thread that lets them end."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from weft_e2e.replay.client import Deadlines, SessionTranscript
from weft_e2e.replay.records import RoundRecord
from weft_e2e.waiting import until

SESSION_S = 3600.0
"""No session is given up for having gone on for long."""


@dataclass(slots=True)
class Load:
    """The sessions that were begun so far."""

    transcripts: list[SessionTranscript] = field(default_factory=list, kw_only=True)

    @property
    def records(self) -> list[RoundRecord]:
        """Return every round so far."""
        return [record for one in list(self.transcripts) for record in list(one.records)]

    def served(self) -> int:
        """Return how many rounds have succeeded so far."""
        return sum(record.ok for record in self.records)

    def wait_served(self, more: int, *, timeout_s: float) -> None:
        """Wait until this many more rounds have succeeded."""
        goal = self.served() + more
        until(
            lambda: self.served() >= goal,
            what=f"{more} more served rounds",
            timeout_s=timeout_s,
            every_s=0.2,
            last=lambda: "; ".join(f"{r.session} {r.index} {r.outcome} {r.error}" for r in self.records[-3:]),
        )


def deadlines(round_s: float) -> Deadlines:
    """Return the deadlines of sessions whose rounds have this long each, silence included."""
    return Deadlines(round_s=round_s, silence_s=round_s, replay_s=SESSION_S)


@contextmanager
def in_background(
    work: Callable[[], Coroutine[object, object, None]], *, name: str, end: Callable[[], None], within_s: float
) -> Iterator[None]:
    """Do work in a thread of its own; on leaving call ``end`` and wait for it.

    Raises:
        TimeoutError: it did not end within ``within_s`` of that. What the work itself raised is raised, too.
    """
    failure: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread below
            failure.append(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end()
        thread.join(timeout=within_s)
    if thread.is_alive():
        raise TimeoutError(f"{name} did not end within {within_s:g} s")
    if failure:
        raise failure[0]
