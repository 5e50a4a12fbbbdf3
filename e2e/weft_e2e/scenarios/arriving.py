"""Sessions that arrive at a rate, whatever becomes of those before them: load that does not wait for the service."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from weft_e2e.replay.client import SessionTranscript, Target, open_http, run_session, session_texts
from weft_e2e.replay.sessions import PlannedRound, PlannedSession
from weft_e2e.scenarios.load import Load, deadlines, in_background
from weft_mock.tokenizer import filler


@dataclass(frozen=True, slots=True)
class Traffic:
    """What arrives: sessions a second, evenly spaced, and the rounds that each of them has."""

    sessions_per_s: float
    rounds: tuple[PlannedRound, ...]


@dataclass(slots=True)
class Arrivals(Load):
    """Sessions that arrive in the background; ``turn_to`` changes what arrives from now on."""

    target: Target
    round_deadline_s: float = 60.0
    turned_at: float = 0.0
    """When (``time.monotonic``) the traffic was last changed."""
    _traffic: Traffic | None = None
    _news: threading.Event = field(default_factory=threading.Event)
    _ended: threading.Event = field(default_factory=threading.Event)

    def turn_to(self, traffic: Traffic | None) -> None:
        """Let other sessions arrive from now on; None: no more."""
        self._traffic = traffic
        self.turned_at = time.monotonic()
        self._news.set()

    def end(self) -> None:
        """Let no more sessions arrive, and those that are there end after their round."""
        self._ended.set()
        self.turn_to(None)

    async def _main(self) -> None:
        start = time.perf_counter()
        async with open_http() as http, asyncio.TaskGroup() as group:
            count, due = 0, time.monotonic()
            while not self._ended.is_set():
                traffic = self._traffic
                due += 1 / traffic.sessions_per_s if traffic is not None else 3600.0
                wait_s = due - time.monotonic()
                if await asyncio.to_thread(self._news.wait, max(0.0, wait_s)):
                    self._news.clear()
                    due = time.monotonic()
                    continue
                if traffic is None:
                    continue
                session = PlannedSession(f"arrival{count}", 0.0, traffic.rounds)
                transcript = SessionTranscript(session=session.name)
                self.transcripts.append(transcript)
                group.create_task(
                    run_session(
                        session,
                        self.target,
                        http=http,
                        texts=session_texts(session, filler=filler, salt=count),
                        deadlines=deadlines(self.round_deadline_s),
                        start=start,
                        transcript=transcript,
                        leaves=self._ended.is_set,
                    )
                )
                count += 1


@contextmanager
def arriving(arrivals: Arrivals) -> Iterator[Arrivals]:
    """Let sessions arrive in a thread of their own; on leaving, let running rounds end and wait for them.

    Raises:
        TimeoutError: the rounds did not end within their deadline.
    """
    within_s = arrivals.round_deadline_s + 15
    with in_background(arrivals._main, name="arriving sessions", end=arrivals.end, within_s=within_s):
        yield arrivals
