"""Measure a live engine on a grid: time to first token, engine steps, mixed steps and KV transfers.

A *prefill* is the time to the first token of a prompt whose history is in the prefix cache. A *step* is the mean gap
between tokens of a batch that decodes together. A *mixed step* is the one gap of such a batch in which another prompt
was prefilled. A *transfer* is the time of a token on the reading engine, less that of the same prompt once its KV is
there; it is timed both ways (``engine_transfers.py``). Every shape is timed in several rounds, so that an interrupted
run has a bit of everything.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
from time import monotonic

from weft_planner.profiling.engine_budget import EngineSpeed
from weft_planner.profiling.engine_client import EngineClient, EngineFacts, PromptGenerator, TokenArrivals
from weft_planner.profiling.engine_errors import EngineError, NotMeasurable, TooSlow
from weft_planner.profiling.engine_grid import prompt_length
from weft_planner.profiling.engine_mixed import AloneError, FullError, mixed_step
from weft_planner.profiling.engine_transfers import Transfers
from weft_planner.profiling.measurements import GridCell, Measurement, Measurements
from weft_planner.profiling.validation import NOISE, contradicting_cells

log = logging.getLogger(__name__)

_ATTEMPTS = 3
_ALONE = 2
"""So many shapes whose prefill ran between two steps, and none within one, are taken for the engine's way."""
_TRANSFER_SHARE = 0.3
"""Of the budget: transfers are shorter than anything else, and as noisy."""
_MORE_ROUNDS = 4
"""For shapes that contradict others."""
_LONG_ENOUGH_S = 2.0
"""For one timing of a transfer: long ones are less noisy, and need no more pairs."""

_UNREPORTED = (
    "the engine does not say how much of a prompt it had cached, histories are taken as cached "
    "(vLLM: start it with --enable-prompt-tokens-details)"
)


@dataclass(frozen=True, slots=True)
class ProfilingSettings:
    """How to measure: ``steps`` decode steps a timing, ``repeats`` rounds, within ``budget_s`` seconds of wall time.

    Shapes that contradict others by more than ``noise`` are timed again, and left out if that does not mend them.
    """

    steps: int = 16
    repeats: int = 3
    budget_s: float = 1800.0
    seed: int = 0
    noise: float = NOISE


@dataclass(frozen=True, slots=True)
class ProfilingProgress:
    """How far a run is; seconds."""

    done: int
    total: int
    elapsed: float
    cell: GridCell

    @property
    def left(self) -> float:
        """Return the estimated seconds to the end."""
        return self.elapsed / max(self.done, 1) * (self.total - self.done)


@dataclass(frozen=True, slots=True)
class ProfilingRun:
    """What a run gave; ``complete`` is False when the time was up, ``notes`` say why some shapes were ``dropped``."""

    measurements: Measurements
    complete: bool
    notes: tuple[str, ...] = ()
    dropped: frozenset[GridCell] = frozenset()


@dataclass(frozen=True, slots=True)
class OptionalTiming:
    """A timing that is worth having where there is time for it, and about how long it takes."""

    cell: GridCell
    seconds: float


Keep = Callable[[Measurements], None]
Tell = Callable[[ProfilingProgress], None]


class EngineProfiler:
    """Time cells on one engine, and transfers from it to another."""

    def __init__(
        self,
        engine: EngineClient,
        facts: EngineFacts,
        *,
        settings: ProfilingSettings,
        reader: EngineClient | None = None,
    ) -> None:
        """Measure with these settings; ``reader`` is the decode engine that reads KV from this one."""
        self._engine = engine
        self._facts = facts
        self._settings = settings
        self._texts = PromptGenerator(facts.token_ids, seed=settings.seed)
        self._reader = reader
        self._transfers: Transfers | None = None
        self._both_ways = False
        self._read_before: float | None = None
        self._warm = False
        self._cached: dict[str, int] = {}
        self._alone = 0.0
        self._full = 0
        self._unreported = False

    def use(self, settings: ProfilingSettings) -> None:
        """Measure with other settings from now on."""
        self._settings = settings

    async def run(
        self,
        start: Measurements,
        cells: Sequence[GridCell],
        *,
        keep: Keep,
        tell: Tell,
        spare: Sequence[OptionalTiming] = (),
    ) -> ProfilingRun:
        """Time every cell as often as wanted, those that ``start`` has already counted in; ``keep`` gets every state.

        What is ``spare`` is timed in its order while there is time for it, and while the engine does not fail at it.

        Raises:
            EngineError: the engine fails or does not cache prefixes; what was measured before has been kept.
        """
        have = Counter(row.cell for row in start.rows)
        taken = _MeasurementLog(replace(start, planned=tuple(cells)), keep)
        todo = [(r, cell) for r in range(self._settings.repeats) for cell in cells if have[cell] <= r]
        began = monotonic()
        ends = began + self._settings.budget_s
        if todo:
            await self.warm_up()
            await self._open_transfers(cells)
        for done, (_, cell) in enumerate(todo):
            elapsed = monotonic() - began
            tell(ProfilingProgress(done, len(todo), elapsed, cell))
            if elapsed > self._settings.budget_s:
                left = f"stopped after {elapsed:.0f} s with {len(todo) - done} timings left"
                taken.notes.append(f"{left}; resume the run")
                return ProfilingRun(await self._told(taken), complete=False, notes=tuple(taken.notes))
            await self._add(cell, taken)
        try:
            await self._settle(taken, ends=ends)
            for done, one in enumerate(spare):
                if monotonic() + one.seconds < ends:
                    tell(ProfilingProgress(len(todo) + done, len(todo) + len(spare), monotonic() - began, one.cell))
                    await self._add(one.cell, taken)
            if spare:
                await self._settle(taken, ends=ends)
        except EngineError as error:
            taken.notes.append(f"ended early, with all that was wanted: {error}")
        if self._unreported:
            taken.notes.append(_UNREPORTED)
        return ProfilingRun(
            await self._told(taken), complete=True, notes=tuple(taken.notes), dropped=frozenset(taken.dropped)
        )

    async def _add(self, cell: GridCell, taken: "_MeasurementLog") -> None:
        """Time a cell and record it, or why it cannot be timed.

        Raises:
            EngineError: the engine failed.
        """
        if cell in taken.dropped:
            return
        try:
            smaller = next((one for one in taken.slow if _within(one, cell)), None)
            if smaller is not None and not taken.has(cell):
                raise NotMeasurable(f"is no smaller than {smaller}, for which the engine took too long")
            seconds = await self._time(cell)
        except NotMeasurable as reason:
            taken.drop(cell, reason)
        except EngineError as error:
            raise EngineError(f"{cell}: {error}") from error
        else:
            taken.add(cell, seconds)

    async def _settle(self, taken: "_MeasurementLog", *, ends: float) -> None:
        """Time shapes that contradict others again, as far as the budget goes."""
        for _ in range(_MORE_ROUNDS):
            for cell in contradicting_cells(taken.state, noise=self._settings.noise):
                if monotonic() > ends:
                    return
                try:
                    taken.add(cell, await self._time(cell))
                except TooSlow:
                    return  # the engine is busy with something else, and each more would take as long
                except NotMeasurable:
                    continue

    async def _told(self, taken: "_MeasurementLog") -> Measurements:
        """Return what was measured with what is to be known of how."""
        state = taken.state
        more: dict[str, str] = {}
        if self._unreported:
            more["prefixCache"] = _UNREPORTED
        if self._transfers is not None and self._reader is not None:
            counted = await self._reader.bytes_read()
            read = sum(-(-n // self._facts.block_size) * self._facts.block_size for n in self._transfers.tokens_read)
            if counted is not None and self._read_before is not None and read:
                more["kvBytesMoved"] = f"{(counted - self._read_before) / read:.6g} a token, by the reading engine"
        if more:
            taken.become(replace(state, about=replace(state.about, notes={**state.about.notes, **more})))
        return taken.state

    async def _open_transfers(self, cells: Sequence[GridCell]) -> None:
        """Bring the engines together, where any transfer is to be timed."""
        wanted = [cell for cell in cells if cell.function == "transfer"]
        if self._reader is None or not wanted:
            return
        self._both_ways = any(cell.way == "back" for cell in wanted)
        shapes = len({cell.tokens for cell in wanted})
        share = min(_LONG_ENOUGH_S, _TRANSFER_SHARE * self._settings.budget_s / (shapes * self._settings.repeats))
        self._transfers = Transfers(self._engine, self._reader, self._texts, share_s=share)
        await self._transfers.warm_up(back=self._both_ways, longest=max(cell.tokens for cell in wanted))
        self._transfers.tokens_read.clear()
        self._read_before = await self._reader.bytes_read()

    async def pace(self) -> EngineSpeed:
        """Return about how fast the engine is, by its shortest of a few requests."""
        await self.warm_up()
        limit = self._facts.max_model_len or 1 << 20
        short, long = 32, min(1024, limit // 2)
        times = {
            n: [(await self._engine.first_token(self._texts.fresh(n))).seconds for _ in "ab"] for n in (short, long)
        }
        first, second = min(times[short]), min(times[long])
        arrivals = TokenArrivals()
        await self._engine.decode([self._texts.fresh(8)], max_tokens=9, into=arrivals)
        at = arrivals.times.get(0, [0.0])
        return EngineSpeed(first, max(0.0, second - first) / (long - short), (at[-1] - at[0]) / max(1, len(at) - 1))

    async def warm_up(self) -> None:
        """Have the engine compile and open what it compiles and opens at first use, once."""
        if self._warm:
            return
        self._warm = True
        for length in (64, 1024):
            limit = self._facts.max_model_len or length + 2
            with suppress(NotMeasurable):
                await self._engine.first_token(self._texts.fresh(min(length, limit - 2)))
        beside = TokenArrivals()
        await self._engine.decode([self._texts.fresh(8) for _ in range(4)], max_tokens=8, into=beside)

    async def _time(self, cell: GridCell) -> float:
        if cell.function == "prefill":
            return await self._prefill(cell.history, cell.increment)
        if cell.function == "transfer":
            return await self._transfer(cell)
        return await (self._mixed(cell) if cell.chunk else self._step(cell))

    async def _prefill(self, history: int, increment: int) -> float:
        first = await self._engine.first_token(await self._after(history, increment))
        self._unreported |= first.cached is None and history > 0
        if first.cached is not None and first.cached != history:
            self._cached.pop("history", None)  # it was thrown out: fill it again, once
            first = await self._engine.first_token(await self._after(history, increment))
            if first.cached == 0 < history:
                raise EngineError("the engine caches no prefixes; start it with prefix caching to measure histories")
            if first.cached != history:
                raise NotMeasurable(f"the engine had {first.cached} tokens of it cached; is its KV block size known?")
        return first.seconds

    async def _after(self, history: int, increment: int) -> list[int]:
        """Return a prompt of new tokens behind a history that is in the prefix cache."""
        if history:
            await self._fill(["history"], history)
        return self._texts.base("history", history) + self._texts.fresh(increment)

    async def _fill(self, names: Sequence[str], length: int) -> None:
        """Have the first tokens of texts cached; what was filled before is sent again only where nobody would tell.

        An engine that does not say what it had cached may have thrown it out: sending it once more costs a token.
        """
        wanted = [name for name in names if self._unreported or self._cached.get(name, 0) < length]
        for name in wanted:
            await self._engine.prime([self._texts.base(name, length)])
            self._cached[name] = length

    async def _batch(self, cell: GridCell) -> list[list[int]]:
        """Return a batch of prompts of which everything but the last token is cached."""
        names = [f"sequence {i}" for i in range(cell.batch)]
        length = prompt_length(cell, self._settings.steps)
        await self._fill(names, length)
        return [self._texts.base(name, length) for name in names]

    async def _step(self, cell: GridCell) -> float:
        arrivals, steps = TokenArrivals(), self._settings.steps
        prompts = await self._batch(cell)
        # The first token comes from the prompt; some more let stragglers catch up.
        await self._engine.decode(prompts, max_tokens=steps + 1 + steps // 4, into=arrivals)
        if len(arrivals.times) < cell.batch or min(map(len, arrivals.times.values())) < 2:
            raise NotMeasurable("answers came in one piece; the engine does not stream token by token")
        begin = max(times[0] for times in arrivals.times.values())
        end = min(times[-1] for times in arrivals.times.values())
        together = [[at for at in times if begin <= at <= end] for times in arrivals.times.values()]
        gaps = [(times[-1] - times[0]) / (len(times) - 1) for times in together if len(times) > steps // 2]
        if len(gaps) < cell.batch:
            raise NotMeasurable(f"the engine does not decode {cell.batch} sequences together")
        per_event = arrivals.tokens / arrivals.events if arrivals.tokens else 1.0
        return median(gaps) / per_event

    async def _mixed(self, cell: GridCell) -> float:
        """Time a mixed step; on a machine that stutters it takes more than one attempt to tell it from its neighbours.

        Raises:
            NotMeasurable: no attempt showed one.
        """
        if 0 < self._full <= cell.batch:
            raise NotMeasurable(f"the engine takes no prefill beside a batch of {self._full}")
        if self._alone < _ALONE:
            for attempt in range(_ATTEMPTS):
                try:
                    seconds = await self._mixed_once(cell)
                except FullError:
                    self._full = cell.batch
                    raise
                except AloneError:
                    if attempt == _ATTEMPTS - 1:
                        self._alone += 1
                except NotMeasurable:
                    if attempt == _ATTEMPTS - 1:
                        raise
                else:
                    self._alone = -math.inf  # the engine has mixed steps, and noise hides some
                    return seconds
        if self._alone < _ALONE:
            raise NotMeasurable("its first token came between two steps; the engine prefills alone, or noise hid it")
        raise NotMeasurable("the engine prefills alone, decoding waits: it has no mixed steps")

    async def _mixed_once(self, cell: GridCell) -> float:
        prompts = await self._batch(cell)
        await self._fill(["history"], cell.history)
        beside = self._texts.base("history", cell.history) + self._texts.fresh(cell.chunk)
        return await mixed_step(self._engine, prompts, beside, limit=self._facts.max_model_len)

    async def _transfer(self, cell: GridCell) -> float:
        if self._transfers is None:
            raise NotMeasurable("there is no decode engine to read the KV")
        return await self._transfers.seconds(cell, back=self._both_ways)


class _MeasurementLog:
    """What a run has measured so far, and what it could not."""

    def __init__(self, state: Measurements, keep: Keep) -> None:
        self.state = state
        self.notes: list[str] = []
        self.dropped: set[GridCell] = set()
        self.slow: list[GridCell] = []
        self._keep = keep

    def become(self, state: Measurements) -> None:
        self.state = state
        self._keep(state)

    def add(self, cell: GridCell, seconds: float) -> None:
        rows, planned = self.state.rows, self.state.planned
        row = Measurement(cell, seconds, f"rows[{len(rows)}]")
        # What is timed with time to spare is planned from then on.
        planned = planned if cell in planned else (*planned, cell)
        self.become(replace(self.state, rows=(*rows, row), planned=planned))

    def has(self, cell: GridCell) -> bool:
        return any(row.cell == cell for row in self.state.rows)

    def drop(self, cell: GridCell, reason: NotMeasurable) -> None:
        """Leave a cell out, with the reason; one that was timed before stays as it is."""
        late = isinstance(reason, TooSlow)
        if self.has(cell):
            if late:
                self.dropped.add(cell)  # to wait as long for it once more would be no use
            return  # noise hid it this time
        self.dropped.add(cell)
        if late:
            self.slow.append(cell)
        log.info("cell_not_measurable", extra={"cell": str(cell), "reason": str(reason)})
        self.notes.append(f"{cell}: {reason}")
        self.become(replace(self.state, planned=tuple(other for other in self.state.planned if other != cell)))


def _within(small: GridCell, large: GridCell) -> bool:
    """Tell whether a cell of the same kind is no larger than another one in any length."""
    return (small.function, small.way) == (large.function, large.way) and all(
        getattr(small, name) <= getattr(large, name)
        for name in ("history", "increment", "batch", "context", "chunk", "tokens")
    )
