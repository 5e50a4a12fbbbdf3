"""Profile a live engine: time every shape of a grid within a budget.

Every shape is timed in several rounds, so that an interrupted run has a bit of everything. ``engine_timer.py`` times
one shape.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from weft_planner.profiling.engine_errors import EngineError, NotMeasurable, TooSlow
from weft_planner.profiling.engine_timer import EngineTimer
from weft_planner.profiling.measurements import GridCell, Measurement, Measurements
from weft_planner.profiling.validation import NOISE, contradicting_cells

log = logging.getLogger(__name__)

_TRANSFER_SHARE = 0.3
"""Of the budget: transfers are shorter than anything else, and as noisy."""
_LONG_ENOUGH_S = 2.0
"""For one timing of a transfer: long ones are less noisy, and need no more pairs."""
_MORE_ROUNDS = 4
"""For shapes that contradict others."""

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


SaveMeasurements = Callable[[Measurements], None]
ReportProgress = Callable[[ProfilingProgress], None]


class EngineProfiler:
    """Time the cells of a grid, in rounds, within a budget."""

    def __init__(self, timer: EngineTimer, settings: ProfilingSettings) -> None:
        """Measure with ``timer``."""
        self._timer = timer
        self._settings = settings

    async def run(
        self,
        start: Measurements,
        cells: Sequence[GridCell],
        *,
        save: SaveMeasurements,
        progress: ReportProgress,
        spare: Sequence[OptionalTiming] = (),
    ) -> ProfilingRun:
        """Time every cell as often as wanted, those that ``start`` has already counted in; ``save`` gets every state.

        What is ``spare`` is timed in its order while there is time for it, and while the engine does not fail at it.

        Raises:
            EngineError: the engine fails or does not cache prefixes; what was measured before has been kept.
        """
        have = Counter(row.cell for row in start.rows)
        record = _MeasurementLog(replace(start, planned=tuple(cells)), save)
        todo = [(r, cell) for r in range(self._settings.repeats) for cell in cells if have[cell] <= r]
        began = monotonic()
        ends = began + self._settings.budget_s
        if todo:
            await self._timer.warm_up()
            await self._open_transfers(cells)
        for done, (_, cell) in enumerate(todo):
            elapsed = monotonic() - began
            progress(ProfilingProgress(done, len(todo), elapsed, cell))
            if elapsed > self._settings.budget_s:
                left = f"stopped after {elapsed:.0f} s with {len(todo) - done} timings left"
                record.notes.append(f"{left}; resume the run")
                return ProfilingRun(await self._noted(record), complete=False, notes=tuple(record.notes))
            await self._add(cell, record)
        try:
            await self._retime_contradicting(record, ends=ends)
            for done, one in enumerate(spare):
                if monotonic() + one.seconds < ends:
                    progress(ProfilingProgress(len(todo) + done, len(todo) + len(spare), monotonic() - began, one.cell))
                    await self._add(one.cell, record)
            if spare:
                await self._retime_contradicting(record, ends=ends)
        except EngineError as error:
            record.notes.append(f"ended early, with all that was wanted: {error}")
        if self._timer.cache_unreported:
            record.notes.append(_UNREPORTED)
        return ProfilingRun(
            await self._noted(record), complete=True, notes=tuple(record.notes), dropped=frozenset(record.dropped)
        )

    async def _add(self, cell: GridCell, record: "_MeasurementLog") -> None:
        """Time a cell and record it, or why it cannot be timed.

        Raises:
            EngineError: the engine failed.
        """
        if cell in record.dropped:
            return
        try:
            smaller = next((one for one in record.slow if _within(one, cell)), None)
            if smaller is not None and not record.has(cell):
                raise NotMeasurable(f"is no smaller than {smaller}, for which the engine took too long")
            seconds = await self._timer.time_cell(cell)
        except NotMeasurable as reason:
            record.drop(cell, reason)
        except EngineError as error:
            raise EngineError(f"{cell}: {error}") from error
        else:
            record.add(cell, seconds)

    async def _retime_contradicting(self, record: "_MeasurementLog", *, ends: float) -> None:
        """Time shapes that contradict others again, as far as the budget goes."""
        for _ in range(_MORE_ROUNDS):
            for cell in contradicting_cells(record.state, noise=self._settings.noise):
                if monotonic() > ends:
                    return
                try:
                    record.add(cell, await self._timer.time_cell(cell))
                except TooSlow:
                    return  # the engine is busy with something else, and each more would take as long
                except NotMeasurable:
                    continue

    async def _noted(self, record: "_MeasurementLog") -> Measurements:
        """Return what was measured, with notes on how."""
        state = record.state
        more: dict[str, str] = {}
        if self._timer.cache_unreported:
            more["prefixCache"] = _UNREPORTED
        moved = await self._timer.kv_bytes_per_token()
        if moved is not None:
            more["kvBytesMoved"] = f"{moved:.6g} a token, by the reading engine"
        if more:
            record.replace_state(replace(state, about=replace(state.about, notes={**state.about.notes, **more})))
        return record.state

    async def _open_transfers(self, cells: Sequence[GridCell]) -> None:
        """Prepare the transfers, where any is to be timed; their timings share a part of the budget."""
        wanted = [cell for cell in cells if cell.function == "transfer"]
        if wanted:
            shapes = len({cell.tokens for cell in wanted})
            share = _TRANSFER_SHARE * self._settings.budget_s / (shapes * self._settings.repeats)
            await self._timer.open_transfers(wanted, timing_s=min(_LONG_ENOUGH_S, share))


class _MeasurementLog:
    """What a run has measured so far, and what it could not."""

    def __init__(self, state: Measurements, save: SaveMeasurements) -> None:
        self.state = state
        self.notes: list[str] = []
        self.dropped: set[GridCell] = set()
        self.slow: list[GridCell] = []
        self._save = save

    def replace_state(self, state: Measurements) -> None:
        self.state = state
        self._save(state)

    def add(self, cell: GridCell, seconds: float) -> None:
        rows, planned = self.state.rows, self.state.planned
        row = Measurement(cell, seconds, f"rows[{len(rows)}]")
        # What is timed with time to spare is planned from then on.
        planned = planned if cell in planned else (*planned, cell)
        self.replace_state(replace(self.state, rows=(*rows, row), planned=planned))

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
        self.replace_state(replace(self.state, planned=tuple(other for other in self.state.planned if other != cell)))


def _within(small: GridCell, large: GridCell) -> bool:
    """Return whether a cell of the same kind is no larger than another one in any length."""
    return (small.function, small.way) == (large.function, large.way) and all(
        getattr(small, name) <= getattr(large, name)
        for name in ("history", "increment", "batch", "context", "chunk", "tokens")
    )
