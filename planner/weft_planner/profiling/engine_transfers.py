"""Time KV on its way to a decode engine and back: each reading beside the same request once its KV is there.

There: the prefill engine computes a prompt and keeps its KV, the decode engine reads it. Back: the decode engine's
answer names the KV that it keeps, and the prefill engine, for which a cache salt made the prompt another one's, reads
it, as a later round of a bidirectional service does. KV that is not read is released, or it would fill the engines.

A reading takes milliseconds beside requests of tens: one timing is the median over several pairs, each of a reading
and its twin, for as long as its share of the budget lasts.
"""

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from time import monotonic

from weft_planner.profiling.engine_client import EngineClient, EngineError
from weft_planner.profiling.engine_errors import NotMeasurable
from weft_planner.profiling.measurements import GridCell, Way
from weft_planner.profiling.prompts import PromptGenerator

FEWEST_PAIRS = 3
MOST_PAIRS = 9
_WARM_TOKENS = 64
_COUNTED_S = 5.0
_POLL_S = 0.1
NOT_READ = "the prefill engine recomputed what it was to read back; start both with bidirectional transfers"
NO_HANDLE = "the decode engine's answers name no KV to read back; start both with bidirectional transfers"


@dataclass(frozen=True, slots=True)
class _Trip:
    """Seconds that reading took longer than finding the KV in the cache; ``back`` is None without a way back."""

    there: float
    back: float | None


class Transfers:
    """Time transfers between two engines, both ways at once where both are wanted."""

    def __init__(self, engine: EngineClient, reader: EngineClient, texts: PromptGenerator, *, share_s: float) -> None:
        """``share_s`` is how long one timing may go on once it has the fewest pairs."""
        self._engine = engine
        self._reader = reader
        self._texts = texts
        self._share_s = share_s
        self._waiting: dict[tuple[int, Way], list[float]] = {}
        self._closed = ""
        self._lost = ""
        self.tokens_read: list[int] = []

    async def warm_up(self, *, back: bool, longest: int) -> None:
        """Let the engines find one another: the first transfer of a pair takes seconds."""
        before = await self._engine.bytes_read() if back else None
        with suppress(NotMeasurable):
            trip = await self._attempt(min(_WARM_TOKENS * 4 + 1, longest), back=back)
            if trip.back is not None and before is not None and not await self._came_back(before):
                self._closed = NOT_READ

    async def _came_back(self, before: float) -> bool:
        """Return whether the prefill engine has read since; its counters follow its answers."""
        ends = monotonic() + _COUNTED_S
        while monotonic() < ends:
            if (await self._engine.bytes_read() or 0.0) > before:
                return True
            await asyncio.sleep(_POLL_S)
        return False

    async def seconds(self, cell: GridCell, *, back: bool) -> float:
        """Return one timing of a cell; with ``back`` that of the other way is kept for when it is asked for.

        Raises:
            NotMeasurable: the engines cannot show it, noise hid it, or one of them failed at it: then no transfer is
                tried again. What else is timed needs the first engine alone, and tells when that one has failed.
        """
        if self._lost:
            raise NotMeasurable(self._lost)
        if cell.way == "back" and self._closed:
            raise NotMeasurable(self._closed)
        kept = self._waiting.get((cell.tokens, cell.way))
        seconds = kept.pop(0) if kept else await self._both(cell, back=back or cell.way == "back")
        if seconds <= 0:
            raise NotMeasurable("reading the KV took no longer than finding it cached; measure longer prompts")
        return seconds

    async def _both(self, cell: GridCell, *, back: bool) -> float:
        trips: list[_Trip] = []
        began = monotonic()
        while len(trips) < FEWEST_PAIRS or (len(trips) < MOST_PAIRS and monotonic() - began < self._share_s):
            trips.append(await self._attempt(cell.tokens, back=back and not self._closed))
        found: dict[Way, float] = {"there": median(trip.there for trip in trips)}
        returned = [trip.back for trip in trips if trip.back is not None]
        if returned:
            found["back"] = median(returned)
        if cell.way not in found:
            raise NotMeasurable(self._closed or NO_HANDLE)
        for way, seconds in found.items():
            if way != cell.way and back:
                self._waiting.setdefault((cell.tokens, way), []).append(seconds)
        return found[cell.way]

    async def _attempt(self, tokens: int, *, back: bool) -> _Trip:
        try:
            return await self._trip(tokens, back=back)
        except NotMeasurable:
            raise
        except EngineError as error:
            self._lost = f"transfers ended when an engine failed: {error}"
            raise NotMeasurable(self._lost) from error

    async def _trip(self, tokens: int, *, back: bool) -> _Trip:
        prompt = self._texts.fresh(tokens)
        # Under a salt of its own the prompt stays unknown to the prefill engine's cache for the way back.
        handle = await self._engine.export(prompt, salt=secrets.token_hex(16) if back else "")
        try:
            read = await self._reader.answer(prompt, kv=handle)
        except EngineError:
            await self._release(self._reader, handle)
            raise
        self.tokens_read.append(tokens)
        again = await self._reader.answer(prompt)
        there = read.seconds - again.seconds
        if not back or read.handle is None:
            await self._release(self._engine, read.handle)
            if back:
                self._closed = NO_HANDLE
            return _Trip(there, None)
        returning = {**read.handle, "do_remote_decode": True, "do_remote_prefill": False}
        try:
            came = await self._engine.answer(prompt, kv=returning)
        except EngineError as error:
            self._closed = f"the prefill engine did not read it back: {error}"
            await self._release(self._engine, read.handle)
            return _Trip(there, None)
        await self._release(self._reader, came.handle)
        twin = await self._engine.answer(prompt)
        return _Trip(there, came.seconds - twin.seconds)

    async def _release(self, peer: EngineClient, handle: Mapping[str, object] | None) -> None:
        """Release KV that will not be read; ``peer`` is the engine that could have read it."""
        if handle is not None:
            await peer.release(handle)
