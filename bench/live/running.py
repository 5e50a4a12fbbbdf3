"""Make the runs, as many beside each other as the machine bears, and leave out early who cannot win.

Every contender of a cell is tried with one seed until the goal lies between two rates (round one). One of which the
simulator expects far less than of the best of its kind, Weft's rules or peers, is first run near the goodput of that
best, with few sessions, and left out when it does not hold that. Those that matter go on with all seeds (round two):
Weft's default, and at two rates the best peer and AMPD's rule. Where the default and the best other are close, further
seeds with more sessions decide (round three): the other was chosen by what it showed, which flatters it.
"""

import asyncio
import logging
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from statistics import fmean

from bench.live.aims import result_of
from bench.live.cells import CELLS
from bench.live.contenders import AMPD, DEFAULT, PEERS, contenders_of
from bench.live.prediction import default_policy, predicted_goodput
from bench.live.record import Record, Row
from bench.live.rows import Task, run
from bench.live.search import Goodput, Shares, goodput_of, highest_held, next_step, rate_of, step_of
from bench.paper.goodputs import GOAL

from weft_e2e.stack_config import Front

log = logging.getLogger("bench.live")

SLOWER = 2.0
"""A run for which the machine was too busy is made once more with everything this many times as long, unless it was
made so already."""
RESOLUTION = 2
"""Steps of the ladder between which the goal lies in the end."""
HOPELESS = 0.75
"""Of the best goodput of Weft's rules, or of peers, by the simulator: one of which it expects less is left out when it
does not hold ``BEHIND`` of that goodput."""
BEHIND = 0.85
"""Of the highest rate that one of Weft's rules, or of the peers, held live: who fails at a lower one is left out."""
CLOSE = 1.3
"""A default that is at least so many times as good as the best other needs no further seeds."""
MORE = 1.6
"""Times the sessions in a run with a further seed: attainment falls faster with the rate in longer runs."""
LONGEST_S = 300.0
"""Longest time over which the sessions of a run arrive: lower rates are not tried."""
MOST = 5
"""Rates at most that a contender is tried at in a round."""
FEW = 1 / 3
"""Of a run's sessions, where the simulator expects that it holds nothing near the goal."""
CPU_PER_SESSION_S, TAIL_S = 0.35, 35.0
"""CPU seconds of all processes of a run per session, and how long a run lasts after the last session's arrival: found
in a run of the default in cell ``balanced``."""
BUSY = 0.9
"""Of the machine's cores that runs beside each other may keep busy."""
STARVED = 3
"""After so many runs in a row that were starved, fewer are made at a time; a single one is made slower."""
FEWER = 0.85
"""Of the cores that were used before, after such runs."""
SLOWEST = 2.0


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is run: cells, contenders (all where none is named), seeds, and how many runs beside each other.

    ``share`` is that of each cell's sessions that a run has, ``compiled`` the folder of Weft's compiled modules.
    ``further`` are seeds that decide between the default and the best other where they are close. No run is started
    that would end after ``minutes``.
    """

    cells: tuple[str, ...]
    seeds: tuple[int, ...]
    share: float
    at_once: int
    minutes: float
    only: tuple[str, ...] = ()
    front: Front = "sidecars"
    slow: float = 1.0
    compiled: str = ""
    further: tuple[int, ...] = ()


def measure(extent: Extent, *, before: Record | None = None, keep: Callable[[Record], None] = lambda _: None) -> Record:
    """Make all runs; ``keep`` gets the record after each of them.

    Runs of ``before``, an earlier record of the same seeds and share of sessions, are not made again.

    Raises:
        ValueError: the earlier record has other seeds, or another share of the sessions.
    """
    record = before or Record(seeds=extent.seeds, share=extent.share)
    if (record.seeds, record.share) != (extent.seeds, extent.share):
        raise ValueError(f"the earlier runs have seeds {record.seeds} and {record.share:g} of the sessions")
    record.further = extent.further
    record.complete = True
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="weft-bench-live-", ignore_cleanup_errors=True) as folder,
        ProcessPoolExecutor(extent.at_once, mp_context=context) as pool,
    ):
        return asyncio.run(_Runs(extent, record, pool, folder, keep).all())


class _Runs:
    """The runs of one measurement, and their order: cells as they are named, then as they come."""

    def __init__(
        self,
        extent: Extent,
        record: Record,
        pool: ProcessPoolExecutor,
        folder: str,
        keep: Callable[[Record], None],
    ) -> None:
        self._extent = extent
        self._folder = folder
        self._pool = pool
        self._keep = keep
        self._record = record
        self._ends = time.monotonic() + 60 * extent.minutes
        self._waiting: asyncio.PriorityQueue[tuple[int, int, Task, asyncio.Future[Row | None]]] = (
            asyncio.PriorityQueue()
        )
        self._count = 0
        self._starved = 0
        self._slow = extent.slow
        self._loads: list[float] = []
        self._most_busy = BUSY * (os.cpu_count() or 1)
        self._next = asyncio.Lock()
        self._room_changed = asyncio.Condition()

    async def all(self) -> Record:
        # All predictions come before the first run, which would have to share the cores with them.
        predicted = await asyncio.gather(*(self._predict(name) for name in self._extent.cells))
        log.info("goodputs of %d contenders predicted", sum(map(len, predicted)))
        runners = [asyncio.create_task(self._runner()) for _ in range(self._extent.at_once)]
        try:
            await asyncio.gather(
                *(
                    self._cell(place, name, found)
                    for place, (name, found) in enumerate(zip(self._extent.cells, predicted, strict=True))
                )
            )
        finally:
            for runner in runners:
                runner.cancel()
            await asyncio.gather(*runners, return_exceptions=True)
        return self._record

    async def _predict(self, name: str) -> dict[str, float | None]:
        """Return the goodput that the simulator expects of each contender; None where it does not know it."""
        cell, extent, record = CELLS[name], self._extent, self._record
        default = await self._elsewhere(default_policy, cell)
        record.defaults[name] = default
        known = contenders_of(cell, default)
        names = [one for one in known if all(not only or one in only for only in (extent.only, cell.only))]
        sessions = self._sessions(name)
        predict = [self._elsewhere(_predicted, name, one, default, extent.seeds, sessions) for one in names]
        found = dict(zip(names, await asyncio.gather(*predict), strict=True))
        simulated = {one: rate for one, rate in found.items() if rate is not None}
        record.predicted[name] = record.predicted.get(name, {}) | simulated
        return found

    def _sessions(self, name: str) -> int:
        return max(2, round(self._extent.share * CELLS[name].sessions))

    async def _cell(self, place: int, name: str, found: dict[str, float | None]) -> None:
        """Make the runs of a cell: ``found`` are its contenders and their predicted goodputs."""
        cell, extent, record = CELLS[name], self._extent, self._record
        sessions, default, names = self._sessions(name), record.defaults[name], list(found)
        simulated = {one: rate for one, rate in found.items() if rate is not None}
        fallback = simulated.get(DEFAULT) or 1.0  # of co-located peers
        lowest = step_of(sessions / LONGEST_S)
        first = extent.seeds[:1]

        def shares_of(one: str, count: int = sessions) -> Shares:
            """Return the attainment of a contender in runs of at least so many sessions."""
            return record.shares(name, one) if any(len(row.met) >= count for row in record.rows_of(name, one)) else {}

        async def settle(
            one: str, seeds: Sequence[int], start: int, most: int, *, of: float = 1.0, decides: bool = False
        ) -> None:
            count = max(2, round(of * sessions))
            while True:
                shares = shares_of(one, count)
                step = next_step(shares, seeds, start=start, resolution=RESOLUTION, most=most)
                if step is None or step < lowest or one in record.broken:
                    return
                if not decides and one not in (*always, *cell.only) and failed_at(shares) < BEHIND * held(one in PEERS):
                    return
                task = Task(
                    name, one, default, step, 0, count, extent.slow, extent.front, self._folder, extent.compiled
                )
                lacking = [seed for seed in seeds if seed not in shares.get(step, {})]
                order = place + len(CELLS) * decides
                rows = await asyncio.gather(*(self._row(order, replace(task, seed=seed)) for seed in lacking))
                if None in rows:
                    return

        def held(peer: bool) -> float:
            """Return the highest rate that any of Weft's rules, or of the peers, was seen to hold."""
            tried = [shares_of(one) for one in names if (one in PEERS) is peer]
            steps = [step for shares in tried for step, of in shares.items() if fmean(of.values()) >= GOAL]
            return rate_of(max(steps)) if steps else 0.0

        always = (DEFAULT, AMPD)
        best = {
            peer: max((rate for one, rate in simulated.items() if (one in PEERS) is peer), default=0.0)
            for peer in (True, False)
        }
        hopeless = {
            one for one, rate in simulated.items() if rate < HOPELESS * best[one in PEERS] and one not in always
        }

        async def sift(one: str) -> None:
            if one in hopeless:
                start = step_of(BEHIND * best[one in PEERS])
                await settle(one, first, start, 1, of=FEW)
                if record.shares(name, one).get(start, {}).get(first[0], 0.0) < GOAL:
                    return
                hopeless.discard(one)
            await settle(one, first, max(lowest, step_of(found[one] or fallback)), MOST)

        await asyncio.gather(*(sift(one) for one in names))
        tried = {one: goodput_of(shares) for one in names if (shares := record.shares(name, one))}
        finalists = kept({one: found for one, found in tried.items() if one not in hopeless}, pair=not extent.further)
        log.info("%s: %s go on", name, ", ".join(finalists))
        await asyncio.gather(
            *(
                settle(one, extent.seeds, highest_held(record.shares(name, one)), most)
                for one, most in finalists.items()
            )
        )
        close = closest(record, name)
        if not close or not extent.further or not set(close) <= set(names):
            return
        log.info("%s: further seeds decide between %s", name, " and ".join(close))
        start = highest_held(record.shares(name, DEFAULT))
        await asyncio.gather(*(settle(one, extent.further, start, MOST, of=MORE, decides=True) for one in close))

    async def _row(self, order: int, task: Task) -> Row | None:
        """Return what a run shows, in turn: of two that wait the one of lower ``order`` is first."""
        if task.contender in self._record.broken or self._too_late(task):
            return None
        self._count += 1
        future: asyncio.Future[Row | None] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((order, self._count, task, future))
        return await future

    def _too_late(self, task: Task) -> bool:
        """Return whether a run would end too late; without one of the first seeds the record is not complete."""
        late = time.monotonic() + seconds_of(task) > self._ends
        if late and task.seed in self._extent.seeds:
            self._record.complete = False
        return late

    async def _runner(self) -> None:
        """Make one run after another."""
        while True:
            _, _, task, future = await self._waiting.get()
            try:
                future.set_result(await self._kept(task))
            except Exception as error:  # noqa: BLE001 - it is raised where the run is waited for
                future.set_exception(error)
            if self._starved >= STARVED:
                self._starved = 0
                self._most_busy *= FEWER
                log.warning("the machine is too busy: runs for %.1f cores at a time from now on", self._most_busy)
                if self._most_busy < cores_of(task):
                    self._slow = max(self._slow, SLOWEST)
                    log.warning("the machine is too busy: everything takes %g times as long from now on", self._slow)

    @asynccontextmanager
    async def _room(self, task: Task) -> AsyncIterator[None]:
        """Wait until the machine has cores for a run beside the others; one alone needs no room.

        One run waits at a time: small ones would take the room of large ones for ever.
        """
        cores = cores_of(task)
        async with self._next, self._room_changed:
            await self._room_changed.wait_for(lambda: not self._loads or sum(self._loads) + cores <= self._most_busy)
            self._loads.append(cores)
        try:
            yield
        finally:
            async with self._room_changed:
                self._loads.remove(cores)
                self._room_changed.notify_all()

    async def _kept(self, task: Task) -> Row | None:
        """Make a run and keep what it showed; None where it cannot be made, or the time is over."""
        async with self._room(task):
            if task.contender in self._record.broken or self._too_late(task):
                return None
            extent = self._extent
            row = await self._once_more(replace(task, slow=self._slow, front=extent.front, compiled=extent.compiled))
        if row is not None:
            self._record.rows.append(row)
            self._keep(self._record)
        return row

    async def _once_more(self, task: Task) -> Row | None:
        row = await self._try(task)
        if row is None or not row.starved:
            self._starved = 0
            return row
        self._starved += 1
        log.warning("%s: the machine was too busy: %s", _name(task), "; ".join(row.starved))
        again = replace(task, slow=SLOWER * task.slow, attempt=task.attempt + 1)
        if task.slow >= SLOWEST or time.monotonic() + seconds_of(again) > self._ends:
            return row
        return await self._try(again) or row

    async def _try(self, task: Task) -> Row | None:
        """Make a run; one that fails is made once more, then its contender is left out."""
        for attempt in range(2):
            try:
                row: Row = await self._elsewhere(run, replace(task, attempt=task.attempt + 10 * attempt))
            except Exception as error:  # noqa: BLE001 - whatever ends a run must not end the others
                why = f"{type(error).__name__}: {error}"
                log.warning("%s failed: %s", _name(task), why)
            else:
                log.info(
                    "%s: %.0f %% within the SLO (%s), TTFT P95 %.2f s, ITL %.1f ms, %.0f s",
                    _name(task), 100 * row.share,
                    "not simulated" if row.predicted is None else f"simulated {100 * row.predicted.met:.0f} %",
                    row.ttft_p95, 1e3 * row.itl_p50, row.wall_s,
                )  # fmt: skip
                return row
        self._record.broken[task.contender] = why[:500]
        return None

    def _elsewhere(self, work: Callable[..., object], *given: object) -> "Awaitable":  # type: ignore[type-arg]
        return asyncio.get_running_loop().run_in_executor(self._pool, work, *given)


def _predicted(cell: str, contender: str, default: str, seeds: Sequence[int], sessions: int) -> float | None:
    one = contenders_of(CELLS[cell], default)[contender]
    return predicted_goodput(CELLS[cell], one, seeds=seeds, sessions=sessions)


def _name(task: Task) -> str:
    slower = "" if task.slow == 1 else f", {task.slow:g} times slower"
    return f"{task.cell}, {task.contender}, step {task.step}, seed {task.seed}{slower}"


def failed_at(shares: Shares) -> float:
    """Return the lowest rate at which a contender missed the goal, infinity where there is none."""
    missed = [step for step, of in shares.items() if fmean(of.values()) < GOAL]
    return rate_of(min(missed)) if missed else math.inf


def seconds_of(task: Task) -> float:
    """Return how long a run takes."""
    return task.slow * (task.sessions / rate_of(task.step) + TAIL_S)


def cores_of(task: Task) -> float:
    """Return how many cores a run keeps busy on average."""
    return CPU_PER_SESSION_S * task.sessions / seconds_of(task)


def kept(tried: dict[str, Goodput], *, pair: bool = False) -> dict[str, int]:
    """Return who goes on to round two by what round one found, and at how many rates at most.

    ``pair``: the best other does so like the default, as no further seeds compare them.
    """
    ranked = sorted(tried, key=lambda one: -_strength(tried[one]))
    firm = [DEFAULT, *[one for one in ranked if pair and one != DEFAULT][:1]]
    others = [AMPD, *[one for one in ranked if one in PEERS][:1]]
    most = dict.fromkeys(others, 2) | dict.fromkeys(firm, MOST)
    return {one: most[one] for one in ranked if one in most}


def closest(record: Record, cell: str) -> tuple[str, ...]:
    """Return the default and the best other contender of a cell, nothing where the default is far ahead."""
    found = result_of(record, cell)
    if found.best is None or found.of_best is None or found.of_best.value >= CLOSE:
        return ()
    return DEFAULT, found.best


def _strength(found: Goodput) -> float:
    return -math.inf if found.bound == "<" else found.rate
