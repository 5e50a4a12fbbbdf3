"""Keep sessions going in the background while something is done to the service."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from weft_e2e.replay.client import SessionTranscript, Target, open_http, run_session, session_texts
from weft_e2e.replay.sessions import PlannedRound, PlannedSession
from weft_e2e.scenarios.load import Load, deadlines, in_background
from weft_mock.tokenizer import filler


@dataclass(slots=True)
class Background(Load):
    """Sessions that run one after another in each of some lanes until told to stop, which they do between rounds."""

    BRISK: ClassVar[tuple[PlannedRound, ...]] = (
        PlannedRound(300, 24, 0.0),
        PlannedRound(80, 24, 0.2),
        PlannedRound(120, 24, 0.2),
        PlannedRound(60, 24, 0.2),
    )

    target: Target
    lanes: int = 4
    rounds: tuple[PlannedRound, ...] = BRISK
    others: tuple[tuple[PlannedRound, ...], ...] = ()
    """Rounds of other kinds of sessions: lanes take the kinds in turn."""
    round_deadline_s: float = 30.0
    _stop: threading.Event = field(default_factory=threading.Event)

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        async with open_http() as http, asyncio.TaskGroup() as group:
            kinds = (self.rounds, *self.others)

            async def lane(number: int) -> None:
                count = 0
                rounds = kinds[number % len(kinds)]
                while not self._stop.is_set():
                    session = PlannedSession(f"lane{number}-{count}", 0.0, rounds)
                    transcript = SessionTranscript(session=session.name)
                    self.transcripts.append(transcript)
                    await run_session(
                        session,
                        self.target,
                        http=http,
                        texts=session_texts(session, filler=filler, salt=number * 1000 + count),
                        deadlines=deadlines(self.round_deadline_s),
                        start=time.perf_counter(),
                        transcript=transcript,
                        leaves=self._stop.is_set,
                    )
                    count += 1
                    if not all(r.ok for r in transcript.records):
                        # A client that was refused asks again after a moment, not in a tight loop.
                        await loop.run_in_executor(None, self._stop.wait, 0.5)

            for number in range(self.lanes):
                group.create_task(lane(number))


@contextmanager
def background_sessions(background: Background) -> Iterator[Background]:
    """Run the sessions in a thread of their own; on leaving, let running rounds end and wait for them."""
    longest_gap_s = max(planned.gap_s for kind in (background.rounds, *background.others) for planned in kind)
    within_s = background.round_deadline_s + longest_gap_s + 10
    with in_background(background._main, name="background sessions", end=background._stop.set, within_s=within_s):
        yield background
