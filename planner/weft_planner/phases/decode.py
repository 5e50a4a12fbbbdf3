"""Simulate the decode pool alone: continuous batching on k workers, prefills idealised, KV held by running rounds.

The batch of a worker changes only when a sequence joins or ends, so all steps between two changes are taken at
once; a sequence that comes in mid-step joins at the next step, as in an engine.
"""

import heapq
import math
from collections import deque

import numpy as np

from weft_core.cost import DegreeCosts
from weft_planner.workload.distributions import Floats
from weft_planner.workload.sessions import WARM_UP, Sample


class _Worker:
    """One decode worker: its clock, the step it is at, the running batch and the KV that is not reserved."""

    __slots__ = ("batch", "context", "ends", "free", "index", "line", "now", "steps", "version", "waiting")

    def __init__(self, index: int, free: float) -> None:
        self.index = index
        self.now = 0.0
        self.steps = 0
        self.batch = 0
        self.context = 0.0
        self.free = free
        self.version = 0
        self.ends: list[tuple[int, int, int, float]] = []  # (step at which it ends, row, tokens, when it was ready)
        self.waiting: list[tuple[int, int, float]] = []  # (row, tokens, ready), for the step in progress to end
        self.line: deque[tuple[int, int, float]] = deque()  # the same, for KV of this worker to get free


def simulate_decode(
    sample: Sample,
    costs: DegreeCosts,
    *,
    prefill_s: Floats,
    pace: float,
    workers: int,
    sequences: int | None = None,
    warm_up: float = WARM_UP,
) -> Floats:
    """Return the mean inter-token gap of every round that begins to decode in the observed window, in seconds.

    A session is bound, at its first round, to the worker with the most KV left, and stays there. Each round holds its
    final context while it decodes, for engines evict what idle sessions hold; without room it waits, and the wait
    counts in that round's gaps, as does the wait for a place in a batch of at most ``sequences``. ``pace`` places the
    sessions that are under way at time 0.
    """
    pool = _DecodePool(sample, costs, prefill_s=prefill_s, pace=pace, workers=workers, sequences=sequences)
    return pool.run(warm_up)


class _DecodePool:
    def __init__(
        self,
        sample: Sample,
        costs: DegreeCosts,
        *,
        prefill_s: Floats,
        pace: float,
        workers: int,
        sequences: int | None,
    ) -> None:
        steps = np.maximum(sample.tokens - 1, 0)
        ready = sample.starts(prefill_s + steps * pace + sample.gap) + prefill_s
        ends = ready + steps * pace
        last = np.append(sample.first_row[1:], sample.rows) - 1
        under_way = (ends[last] > 0) | (ready[last] >= 0)
        rows = np.flatnonzero(under_way[sample.session])  # most sessions of a sample are over by time 0
        self._window = sample.window
        self._pace = pace
        self._ready_at, self._ends = ready[rows], ends[rows]
        self._sessions = sample.session[rows]
        self._pieces = costs.decode
        self._workers = [_Worker(i, float(costs.kv_capacity_tokens)) for i in range(workers)]
        self._sequences = math.inf if sequences is None else sequences
        self._lines: dict[int, list[tuple[float, float]]] = {}
        self._context = (sample.history + sample.increment + 1)[rows].tolist()
        self._tokens = steps[rows].astype(np.int64).tolist()
        between = sample.gap + np.append(prefill_s[1:], 0.0)  # to the next round's first token
        self._between = between[rows].tolist()
        self._session = self._sessions.tolist()
        self._need = (sample.history + sample.increment + sample.tokens)[rows].tolist()
        self._bound: dict[int, _Worker] = {}
        self._queue: deque[tuple[int, int, float]] = deque()
        self._events: list[tuple[float, int, int]] = []  # (time, worker or -1 for a round, version or row)
        self._begin = 0.0
        self._gaps: list[float] = []

    def run(self, warm_up: float) -> Floats:
        end = self._window
        self._begin = warm_up * end
        self._start()
        events, pool = self._events, self._workers
        while events:
            now, index, mark = heapq.heappop(events)
            if now > end:
                break
            if index < 0:
                self._ready(mark, self._tokens[mark], now)
            elif pool[index].version == mark:
                self._finish(index, now)
        self._cut(end)
        return np.array(self._gaps)

    def _start(self) -> None:
        """Place sessions under way at time 0: in a gap, or in mid-answer with the rest of their tokens to go."""
        ready, ends = self._ready_at, self._ends
        current = np.flatnonzero((ready < 0) & (ends > 0))
        for row in current.tolist():
            left = max(1, math.ceil(ends[row] / self._pace))
            self._ready(row, min(left, self._tokens[row]), 0.0, resumed=True)
        busy = set(self._sessions[current].tolist())
        due = np.flatnonzero(ready >= 0)
        sessions, where = np.unique(self._sessions[due], return_index=True)
        for session, row in zip(sessions.tolist(), due[where].tolist(), strict=True):
            if session in busy:
                continue
            if row > 0 and self._session[row - 1] == session:  # between two rounds
                self._bound[session] = self._workers[session % len(self._workers)]
            heapq.heappush(self._events, (float(ready[row]), -1, row))

    def _take(self, row: int) -> _Worker | None:
        """Hold a round's KV on its session's worker, or on the one with most room; None when there is no room."""
        need = self._need[row]
        worker = self._bound.get(self._session[row]) or max(self._workers, key=lambda w: w.free)
        running = worker.batch + len(worker.waiting)
        if running >= self._sequences or (worker.free < need and running > 0):
            return None  # a worker that is empty takes it whatever it needs: nothing would get free
        worker.free -= need
        self._bound[self._session[row]] = worker
        return worker

    def _ready(self, row: int, tokens: int, now: float, *, resumed: bool = False) -> None:
        if tokens == 0:
            self._follow(row, now)
            return
        worker = self._take(row)
        if worker is not None:
            self._join(worker, row, tokens, ready=-math.inf if resumed else now, now=now)
            return
        home = self._bound.get(self._session[row])
        (self._queue if home is None else home.line).append((row, tokens, now))

    def _join(self, worker: _Worker, row: int, tokens: int, *, ready: float, now: float) -> None:
        if worker.batch == 0:
            worker.now = max(now, worker.now)
        elif now > worker.now:
            steps = math.ceil((now - worker.now) / self._step(worker.batch, worker.context))
            if steps >= worker.ends[0][0] - worker.steps:
                worker.waiting.append((row, tokens, ready))
                return
            self._advance(worker, steps)
        self._enter(worker, row, tokens, ready)
        self._schedule(worker)

    def _enter(self, worker: _Worker, row: int, tokens: int, ready: float) -> None:
        heapq.heappush(worker.ends, (worker.steps + tokens, row, tokens, ready))
        worker.batch += 1
        worker.context += self._context[row] + (self._tokens[row] - tokens)

    def _finish(self, index: int, now: float) -> None:
        worker = self._workers[index]
        self._advance(worker, worker.ends[0][0] - worker.steps)
        worker.now = now
        while worker.ends and worker.ends[0][0] <= worker.steps:
            _, row, _, ready = heapq.heappop(worker.ends)
            worker.batch -= 1
            worker.context -= self._context[row] + self._tokens[row]
            if ready >= self._begin:
                self._gaps.append((now - ready) / self._tokens[row])
            worker.free += self._need[row]
            self._follow(row, now)
        waiting, worker.waiting = worker.waiting, []
        for row, tokens, ready in waiting:
            self._enter(worker, row, tokens, ready)
        for line in (worker.line, self._queue):
            while line:
                row, tokens, ready = line[0]
                taken = self._take(row)
                if taken is None:
                    break
                line.popleft()
                self._join(taken, row, tokens, ready=ready, now=now)
        if worker.batch:
            self._schedule(worker)

    def _follow(self, row: int, now: float) -> None:
        """Begin the session's next round after its gap, or forget where the session was."""
        following = row + 1
        if following < len(self._session) and self._session[following] == self._session[row]:
            heapq.heappush(self._events, (now + self._between[row], -1, following))
        else:
            self._bound.pop(self._session[row], None)

    def _step(self, batch: int, context: float) -> float:
        lines = self._lines.get(batch)
        if lines is None:  # at a given batch every piece that applies is a line in the context
            pieces = [piece for piece in self._pieces if batch >= piece.from_batch]
            lines = [(piece.seconds(batch, 0), piece.per_context_token) for piece in pieces]
            self._lines[batch] = lines
        longest = 0.0
        for base, slope in lines:
            seconds = base + slope * context
            if seconds > longest:
                longest = seconds
        return longest

    def _steps_seconds(self, worker: _Worker, steps: int) -> float:
        """Return the time of several steps of one batch: the context grows evenly, so the middle step is the mean."""
        return steps * self._step(worker.batch, worker.context + worker.batch * (steps - 1) / 2)

    def _advance(self, worker: _Worker, steps: int) -> None:
        worker.now += self._steps_seconds(worker, steps)
        worker.steps += steps
        worker.context += worker.batch * steps

    def _schedule(self, worker: _Worker) -> None:
        worker.version += 1
        done = worker.now + self._steps_seconds(worker, worker.ends[0][0] - worker.steps)
        heapq.heappush(self._events, (done, worker.index, worker.version))

    def _cut(self, end: float) -> None:
        """Count the rounds still under way at the end by what they have done: leaving them out would hide the slow."""
        for worker in self._workers:
            if worker.batch and worker.now < end:
                step = self._step(worker.batch, worker.context)
                behind = max(0, min(math.floor((end - worker.now) / step), worker.ends[0][0] - worker.steps - 1))
                self._advance(worker, behind)
            for ends, row, tokens, ready in worker.ends:
                done = tokens - (ends - worker.steps)
                if ready >= self._begin and done > 0 and self._tokens[row] == tokens:
                    self._gaps.append((worker.now - ready) / done)
        for row, tokens, ready in self._queue:
            if ready >= self._begin and tokens:
                self._gaps.append((end - ready) / self._tokens[row])
