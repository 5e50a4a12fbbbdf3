"""Keep the figures of the workers that may prefill as the flat vector that rules read, and change only what changed.

A router decides for every request, and between two decisions one or two of its workers change. So each worker's row is
written when its view changes, and a decision writes the four columns that depend on the task, once per kind of worker:
degree, pool and link to the decode worker that asks.
"""

import math
from collections.abc import Mapping
from typing import Final

from weft_core.cost import CostProfile, CostProfileError, TransferCost
from weft_core.policies.features import (
    REMOTE_BACK_S,
    REMOTE_CACHED,
    REMOTE_IDLE_S,
    REMOTE_KV_USE,
    REMOTE_PREFILL_S,
    REMOTE_QUEUE_S,
    REMOTE_QUEUED,
    REMOTE_RATE,
    REMOTE_READ_S,
    REMOTE_SIZE,
    REMOTE_WINDOWED_TTFT,
)
from weft_core.policies.slices import Slicing
from weft_core.policies.snapshot import PrefillTask, PrefillWorkerView
from weft_core.timing import STEP_FIELDS, chunked_seconds, prefill_seconds, step_seconds
from weft_core.transfers import transfer_between

UNKNOWN = TransferCost(math.nan, math.nan)
TYPICAL: Final = 1024
"""Tokens of a prefill by which such workers are put in the order in which they are looked at."""
MOST_STEPS: Final = 1024
"""Batches of one context whose steps are remembered."""
ROUNDING: Final = 1e-6
"""A slice may be a token longer than the inverted regime says, by rounding."""
BELOW: Final = 1.0 - 1e-9
"""Keeps a sum with a bound below the true one, however they are rounded: equals are never told apart by it."""


def prefill_pieces(profile: CostProfile, degree: int) -> tuple[float, ...] | None:
    """Return the figures of T_pre, None when the profile does not know the degree."""
    costs = profile.degrees.get(degree)
    return None if costs is None else costs.prefill_figures


class Engine:
    """What one kind of worker takes for prefills, whole and in slices; NaN where its profile does not know it."""

    __slots__ = ("_context", "_steps_of", "_whole", "least", "pieces", "slicing", "steps")

    def __init__(self, profile: CostProfile, degree: int, slicing: Slicing | None) -> None:
        costs = profile.degrees.get(degree)
        self._whole = -1.0, -1.0, math.nan
        self._context = math.nan
        self._steps_of: dict[float, float] = {}
        self.pieces = None if costs is None else costs.prefill_figures
        self.steps: tuple[float, ...] = () if costs is None else costs.step_figures
        self.slicing = slicing
        self.least = slicing.least_tokens(self.steps) if slicing is not None and self.steps else 1

    def whole(self, history: float, increment: float) -> float:
        """Return T_pre; a decision asks for that of its own worker and for that of others of the same kind."""
        tokens, new, seconds = self._whole
        if history == tokens and increment == new:
            return seconds
        seconds = math.nan if self.pieces is None else prefill_seconds(self.pieces, history, increment)
        self._whole = history, increment, seconds
        return seconds

    def step(self, batch: float, context: float) -> float:
        """Return T_dec of a batch, of one sequence at least; a worker looks at its context from time to time."""
        if context != self._context or len(self._steps_of) > MOST_STEPS:
            self._context = context
            self._steps_of.clear()
        seconds = self._steps_of.get(batch)
        if seconds is None:
            seconds = step_seconds(self.steps, max(1.0, float(batch)), context) if self.steps else math.nan
            self._steps_of[batch] = seconds
        return seconds

    def chunked(self, batch: float, context: float, history: float, tokens: float, itl_slo: float) -> float:
        """Return the seconds of computing tokens in slices beside a batch; infinite where there are no slices."""
        slicing = self.slicing
        if slicing is None:
            return math.inf
        if not self.steps:
            return math.nan
        return chunked_seconds(
            self.steps, batch, context, history, tokens, slicing.limit(itl_slo, batch), slicing.most, self.least,
            slicing.turn(self.steps, batch, context),
        )  # fmt: skip

    def chunked_queue(self, batch: float, context: float, tokens: float, work: float, itl_slo: float) -> float:
        """Return the seconds until a queue of ``tokens`` is done in slices: as one prefill of their sum."""
        if tokens <= 0:
            return 0.0 if self.slicing is not None else math.inf
        return self.chunked(batch, context, max(0.0, work / tokens - tokens / 2), tokens, itl_slo)


class Kind:
    """Workers of one degree and pool, as seen from one decode worker."""

    __slots__ = ("_back", "_back_each", "_read", "_read_each", "engine", "rate")

    def __init__(self, engine: Engine, read: TransferCost, back: TransferCost, bytes_per_token: int) -> None:
        self.engine = engine
        self._read, self._read_each = read.alpha, read.per_token
        self._back, self._back_each = back.alpha, back.per_token
        self.rate = bytes_per_token / back.per_token if back.per_token != 0 else math.inf

    def figures(self, history: int, increment: int) -> tuple[float, float, float]:
        """Return T_pre of a task there, T_kv of its history there and of its increment back."""
        return (
            self.engine.whole(history, increment),
            self._read + self._read_each * history if history > 0 else 0.0,
            self._back + self._back_each * increment if increment > 0 else 0.0,
        )


class Helper:
    """A worker that decodes, too, as it is until its view changes."""

    __slots__ = ("bases", "batch", "context", "engine", "itl_slo", "limit", "queue_s", "turn", "view")

    def __init__(self, view: PrefillWorkerView, engine: Engine, itl_slo: float) -> None:
        self.view = view
        self.engine = engine
        self.itl_slo = itl_slo
        self.batch = batch = float(view.batch)
        self.context = context = float(view.context)
        self.queue_s = engine.chunked_queue(batch, context, view.queue_tokens, view.queue_work, itl_slo)
        self.limit = engine.slicing.limit(itl_slo, batch) if engine.slicing is not None else 0.0
        steps = engine.steps
        self.bases = [
            steps[at] + steps[at + 1] * batch + steps[at + 2] * context for at in range(0, len(steps), STEP_FIELDS)
        ]

        self.turn = self.queue_s + self.least(Regimes(engine, 1.5 * TYPICAL, TYPICAL), TYPICAL)

    def least(self, regimes: "Regimes", tokens: float) -> float:
        """Return a bound below what slices of ``tokens`` take: as many steps as the longest slice allows, at least.

        A slice is no longer than each regime's straight part lets it be, and each step takes that regime's time.
        """
        longest, limit = regimes.most, self.limit
        for base, (slope, held) in zip(self.bases, regimes.pieces, strict=True):
            if slope > 0:
                fits = (limit - base - held) / slope
                if fits < longest:
                    longest = fits
        floor = self.engine.least
        steps = math.ceil(tokens / (longest if longest > floor else floor) - ROUNDING) or 1
        bound = 0.0
        for base, (slope, held) in zip(self.bases, regimes.pieces, strict=True):
            seconds = steps * (base + held) + slope * tokens
            if seconds > bound:
                bound = seconds
        return bound


def _turn(turn: tuple[int, Helper]) -> float:
    return turn[1].turn


class Regimes:
    """The regimes of one kind of engine for one task: what each token of a slice takes there, and what it holds.

    ``floor`` is what the tokens take at least, whatever else the engine does.
    """

    __slots__ = ("floor", "most", "pieces")

    def __init__(self, engine: Engine, held: float, tokens: float) -> None:
        steps = engine.steps
        self.most = float(engine.slicing.most) if engine.slicing is not None else 1.0
        self.pieces = [
            (steps[at + 5] + steps[at + 7] + steps[at + 6] * held, steps[at + 7] * held)
            for at in range(0, len(steps), STEP_FIELDS)
        ]
        self.floor = max((slope for slope, _ in self.pieces), default=0.0) * tokens


class Fleet:
    """The workers that may prefill for one decode worker, as ``REMOTE_SIZE`` figures each, one after the other."""

    def __init__(
        self,
        home: CostProfile,
        degree: int,
        engine: Engine,
        *,
        pools: Mapping[str, CostProfile],
        fallback: CostProfile,
        slicing: Slicing | None,
        itl_slo: float,
    ) -> None:
        """Predict for a decode worker of a degree and profile; workers of no known pool cost as ``fallback`` says."""
        self._home = home
        self._degree = degree
        self._engine = engine
        self._pools = pools
        self._fallback = fallback
        self._slicing = slicing
        self._itl = itl_slo
        self._views: tuple[PrefillWorkerView, ...] = ()
        self._by_kind: dict[tuple[str, int], Kind] = {}
        self._keys: list[tuple[str, int]] = []
        self._kinds: list[Kind] = []
        self._of: list[int] = []
        self._helpers: list[int] = []
        self._states: dict[int, Helper] = {}
        self._turns: list[tuple[int, Helper]] | None = None
        self.rows: list[float] = []

    def write(
        self,
        task: PrefillTask,
        views: tuple[PrefillWorkerView, ...],
        *,
        sliced: bool,
        cached: Mapping[str, int] | None,
        now: float,
        exact: bool = False,
    ) -> list[float]:
        """Return the vector for a task; ``cached`` None leaves out what only ``latency-cost`` reads."""
        if views is not self._views:
            self._take(views)
        rows, history, increment = self.rows, task.history, task.increment
        workers = len(views)
        figures = [kind.figures(history, increment) for kind in self._kinds]
        if len(figures) == 1:
            own, read, back = figures[0]
            if workers == 1:
                rows[REMOTE_PREFILL_S] = own
                rows[REMOTE_READ_S] = read
                rows[REMOTE_BACK_S] = back
            else:
                rows[REMOTE_PREFILL_S::REMOTE_SIZE] = [own] * workers
                rows[REMOTE_READ_S::REMOTE_SIZE] = [read] * workers
                rows[REMOTE_BACK_S::REMOTE_SIZE] = [back] * workers
        elif figures:
            owns, reads, backs = zip(*figures, strict=True)
            of = self._of
            rows[REMOTE_PREFILL_S::REMOTE_SIZE] = [owns[k] for k in of]
            rows[REMOTE_READ_S::REMOTE_SIZE] = [reads[k] for k in of]
            rows[REMOTE_BACK_S::REMOTE_SIZE] = [backs[k] for k in of]
        if self._helpers:
            self._write_helpers(task, sliced=sliced, exact=exact)
        if cached is not None:
            for at, view in zip(range(0, workers * REMOTE_SIZE, REMOTE_SIZE), views, strict=True):
                rows[at + REMOTE_CACHED] = cached.get(view.worker, 0)
                rows[at + REMOTE_IDLE_S] = now - view.used_at
        return rows

    def _take(self, views: tuple[PrefillWorkerView, ...]) -> None:
        """Write the rows of those views that are not those of the last time."""
        before = self._views
        if len(before) != len(views):
            self.rows = [0.0] * (REMOTE_SIZE * len(views))
            self._keys = [("", -1)] * len(views)
            self._states.clear()
            before = ()
        self._views = views
        self._turns = None
        rows = self.rows
        regroup = False
        for i, view in enumerate(views):
            if before and before[i] is view:
                continue
            at = i * REMOTE_SIZE
            windowed = view.windowed_ttft
            rows[at + REMOTE_QUEUE_S] = view.queue_s
            rows[at + REMOTE_WINDOWED_TTFT] = math.nan if windowed is None else windowed
            rows[at + REMOTE_QUEUED] = view.queued
            rows[at + REMOTE_KV_USE] = view.kv_use
            key = view.pool, view.degree
            if self._keys[i] != key:
                self._keys[i] = key
                regroup = True
            if view.decodes or i in self._helpers:
                regroup = True
        if regroup or not views:
            self._group()

    def _group(self) -> None:
        """Find out again which workers are of one kind, and which of them decode, too."""
        places: dict[tuple[str, int], int] = {}
        self._of = [places.setdefault(key, len(places)) for key in self._keys]
        self._kinds = [self.kind(pool, degree) for pool, degree in places]
        self._helpers = [i for i, view in enumerate(self._views) if view.decodes]
        self.rows[REMOTE_RATE::REMOTE_SIZE] = [self._kinds[k].rate for k in self._of]

    def _write_helpers(self, task: PrefillTask, *, sliced: bool, exact: bool) -> None:
        """Write what workers that decode, too, would take: in slices beside their batch where slices are run.

        Only the first to finish matters to the rule that slices. So a worker that could not finish before the best so
        far, if its slices cost nothing but their tokens, gets that bound, and not the true figure, unless ``exact``.
        """
        rows, history, tokens, views = self.rows, task.history, task.increment, self._views
        if not sliced:
            for i in self._helpers:
                rows[i * REMOTE_SIZE + REMOTE_QUEUE_S] = views[i].queue_s
            return
        held = history + tokens / 2
        first = math.inf
        regimes: dict[int, Regimes] = {}
        of, kinds = self._of, self._kinds
        for i, helper in self._in_turn():
            at = i * REMOTE_SIZE
            queue, read = helper.queue_s, rows[at + REMOTE_READ_S]
            rows[at + REMOTE_QUEUE_S] = queue
            rest = (queue if queue >= read else read) + rows[at + REMOTE_BACK_S]
            if first < math.inf and not exact:
                mine = regimes.get(of[i])
                if mine is None:
                    mine = regimes[of[i]] = Regimes(kinds[of[i]].engine, held, tokens)
                least = mine.floor
                if (rest + least) * BELOW <= first:
                    least = helper.least(mine, tokens)
                if (rest + least) * BELOW > first:
                    rows[at + REMOTE_PREFILL_S] = least
                    continue
            own = helper.engine.chunked(helper.batch, helper.context, history, tokens, helper.itl_slo)
            rows[at + REMOTE_PREFILL_S] = own
            if rest + own < first:
                first = rest + own

    def _in_turn(self) -> list[tuple[int, Helper]]:
        """Return the workers that decode, too, as they would finish a typical task: the first is likely among these."""
        if self._turns is None:
            states = []
            for i in self._helpers:
                view, known = self._views[i], self._states.get(i)
                if known is None or known.view is not view:
                    known = self._states[i] = self._helper(i, view)
                states.append((i, known))
            self._turns = sorted(states, key=_turn)
        return self._turns

    def _helper(self, i: int, view: PrefillWorkerView) -> "Helper":
        engine = self._kinds[self._of[i]].engine
        return Helper(view, engine, view.itl_slo if view.itl_slo == view.itl_slo else self._itl)

    def kind(self, pool: str, degree: int) -> Kind:
        """Return what workers of a pool and a degree take, as seen from the decode worker."""
        kind = self._by_kind.get((pool, degree))
        if kind is None:
            kind = self._by_kind[pool, degree] = self._new_kind(pool, degree)
        return kind

    def _new_kind(self, pool: str, degree: int) -> Kind:
        home, profile = self._home, self._pools.get(pool, self._fallback)
        read = back = UNKNOWN
        try:
            if profile is home:
                home.t_kv(0, source=self._degree, destination=degree)
                home.t_kv(0, source=degree, destination=self._degree)
                read = home.transfers[self._degree, degree, "inter-node"]
                back = home.transfers[degree, self._degree, "inter-node"]
            else:
                read = transfer_between(
                    home, profile, source_degree=self._degree, destination_degree=degree, link="inter-node"
                )
                back = transfer_between(
                    profile, home, source_degree=degree, destination_degree=self._degree, link="inter-node"
                )
        except CostProfileError:
            read = back = UNKNOWN
        same = profile is home and degree == self._degree
        engine = self._engine if same else Engine(profile, degree, self._slicing)
        return Kind(engine, read, back, profile.kv_bytes_per_token)
