"""Keep sessions going in the background while something is done to the service."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from weft_e2e.replay.client import Deadlines, Target, Transcript, open_http, run_session, session_texts
from weft_e2e.replay.records import RoundRecord
from weft_e2e.replay.sessions import PlannedRound, PlannedSession
from weft_e2e.waiting import until
from weft_mock.tokenizer import filler


@dataclass(slots=True)
class Background:
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
    round_deadline_s: float = 30.0
    transcripts: list[Transcript] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def records(self) -> list[RoundRecord]:
        """Return every round so far."""
        return [r for t in list(self.transcripts) for r in list(t.records)]

    def served(self) -> int:
        """Return how many rounds have succeeded so far."""
        return sum(r.ok for r in self.records)

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

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        async with open_http() as http, asyncio.TaskGroup() as group:

            async def lane(number: int) -> None:
                count = 0
                while not self._stop.is_set():
                    session = PlannedSession(f"lane{number}-{count}", 0.0, self.rounds)
                    transcript = Transcript(session=session.name)
                    self.transcripts.append(transcript)
                    await run_session(
                        session,
                        self.target,
                        http=http,
                        texts=session_texts(session, filler=filler, salt=number * 1000 + count),
                        deadlines=Deadlines(round_s=self.round_deadline_s, silence_s=self.round_deadline_s),
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
    failure: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(background._main())
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread below
            failure.append(error)

    thread = threading.Thread(target=work, name="background-sessions", daemon=True)
    thread.start()
    try:
        yield background
    finally:
        background._stop.set()
        longest_gap_s = max(planned.gap_s for planned in background.rounds)
        thread.join(timeout=background.round_deadline_s + longest_gap_s + 10)
    if thread.is_alive():
        raise TimeoutError("the background sessions did not end")
    if failure:
        raise failure[0]
