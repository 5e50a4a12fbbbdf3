"""Estimate, for the live router, how long a prefill takes on its decode worker and on every prefill worker.

Between two decisions one or two workers change. So each worker's figures are cached until its view changes, and a
decision computes only those that depend on the task: T_pre and T_kv, equal for all workers of one pool and degree.
"""

import math
from collections.abc import Mapping
from typing import Final

from weft_core.cost import CostProfile, CostProfileError, TransferCost
from weft_core.parallelism import Degree, batches_of, parallelism_of
from weft_core.policies.finish import remote_work
from weft_core.policies.inputs import RemoteFigures
from weft_core.policies.slices import Slicing
from weft_core.policies.snapshot import NOTHING, UNMEASURED, PrefillTask, PrefillWorkerView
from weft_core.timing import (
    chunked_seconds,
    pause_between_chunks,
    prefill_seconds,
    queue_history,
    step_seconds,
    transfer_seconds,
)
from weft_core.transfers import transfer_between

UNKNOWN: Final = TransferCost(math.nan, math.nan)


def prefill_pieces(profile: CostProfile, degree: Degree) -> tuple[float, ...] | None:
    """Return the figures of T_pre, None when the profile does not know the degree."""
    costs = profile.degrees.get(degree)
    return None if costs is None else costs.prefill_figures


class EngineEstimate:
    """Predicted times of an engine of one profile and degree, in seconds; NaN for degrees that the profile lacks.

    An engine of several batches (``parallelism.py``) has them equally full, and each takes its share of what waits.
    """

    __slots__ = ("_prefill", "batches", "least", "ranks", "slicing", "steps")

    def __init__(self, profile: CostProfile, degree: Degree, slicing: Slicing | None) -> None:
        costs = profile.degrees.get(degree)
        self._prefill = prefill_pieces(profile, degree)
        self.steps: tuple[float, ...] = () if costs is None else costs.step_figures
        self.batches = float(batches_of(degree))
        self.ranks = parallelism_of(degree).dp
        self.slicing = slicing
        self.least = slicing.least_tokens(self.steps) if slicing is not None and self.steps else 1

    def prefill(self, history: float, increment: float) -> float:
        """Return T_pre."""
        return math.nan if self._prefill is None else prefill_seconds(self._prefill, history, increment)

    def step(self, batch: float, context: float) -> float:
        """Return T_dec of a batch, of one sequence at least."""
        if not self.steps:
            return math.nan
        return step_seconds(self.steps, max(1.0, batch / self.batches), context / self.batches)

    def beside(self, batch: float, context: float, history: float, tokens: float) -> tuple[float, float]:
        """Return the least and the most seconds until a prefill is done that is sent to an engine that also decodes.

        Engines compute it alone, or in a step with the batch. The step that runs when it is sent ends at once, or
        started just then: which of these, a router cannot know.
        """
        alone = self.prefill(history, tokens)
        if not self.steps:
            return math.nan, math.nan
        batch, context = batch / self.batches, context / self.batches
        mixed = step_seconds(self.steps, batch, context, tokens, history)
        running = step_seconds(self.steps, max(1.0, batch), context) if batch else 0.0
        return min(alone, mixed), running + max(alone, mixed)

    def queue(self, seconds: float) -> float:
        """Return the wait behind prefills that take so many seconds together."""
        return seconds / self.batches

    def chunked(
        self, batch: float, context: float, history: float, tokens: float, itl_slo: float, slowdown: float = 1.0
    ) -> float:
        """Return the seconds of a chunked prefill beside a batch; infinite where prefills are not sliced.

        Chunks of an engine that is ``slowdown`` times slower than its profile are shorter, too.
        """
        slicing = self.slicing
        if slicing is None or not self.steps:
            return math.inf if slicing is None else math.nan
        batch, context = batch / self.batches, context / self.batches
        limit = slicing.limit(itl_slo, batch) / slowdown
        return slowdown * chunked_seconds(
            self.steps, batch, context, history, tokens, limit, slicing.most, self.least,
            pause_between_chunks(self.steps, batch, context, slicing.overhead_s),
        )  # fmt: skip

    def chunked_queue(
        self, batch: float, context: float, tokens: float, work: float, itl_slo: float, slowdown: float = 1.0
    ) -> float:
        """Return the seconds until a queue of ``tokens`` is done in chunks; ``work`` as in ``queue_history``."""
        if tokens <= 0 and self.slicing is not None:
            return 0.0
        share = tokens / self.batches
        return self.chunked(batch, context, queue_history(tokens, work), share, itl_slo, slowdown)


class WorkerKind:
    """Predicted times of the current task on workers of one pool and degree, with KV transfers to one decode worker."""

    __slots__ = ("_back", "_read", "back_s", "engine", "link_rate", "prefill_s", "read_s")

    def __init__(self, engine: EngineEstimate, read: TransferCost, back: TransferCost, bytes_per_token: int) -> None:
        self.engine = engine
        self._read = read
        self._back = back
        self.link_rate = bytes_per_token / back.per_token if back.per_token != 0 else math.inf
        self.prefill_s = self.read_s = self.back_s = math.nan

    def estimate(self, history: int, increment: int, back: int) -> None:
        """Compute T_pre of a task, T_kv of its history to these workers and of ``back`` tokens from them."""
        self.prefill_s = self.engine.prefill(history, increment)
        self.read_s = self.read(history)
        self.back_s = transfer_seconds(self._back.alpha, self._back.per_token, back)

    def read(self, tokens: float) -> float:
        """Return T_kv of tokens that are read from the decode worker."""
        return transfer_seconds(self._read.alpha, self._read.per_token, tokens)


class _Worker:
    """The cached figures of one prefill worker's view."""

    __slots__ = ("figures", "kind", "view")

    def __init__(self, view: PrefillWorkerView, kind: WorkerKind) -> None:
        self.view = view
        self.kind = kind
        windowed = math.nan if view.windowed_ttft is None else view.windowed_ttft
        self.figures = RemoteFigures(
            kind.engine.queue(view.queue_s),
            math.nan,
            math.nan,
            math.nan,
            windowed,
            view.queued,
            0.0,
            view.kv_use,
            view.used_at,
            kind.link_rate,
            0.0,
            view.sessions,
            view.batch,
        )


class RemoteEstimates:
    """The policy inputs of all prefill workers for one decode worker.

    A router slices the prefills of its own sessions only. So those of others run whole, as far as the engine takes them
    whole, on workers that also decode, too: a prefill in slices has no estimate here.
    """

    def __init__(
        self,
        home: CostProfile,
        degree: Degree,
        *,
        pools: Mapping[str, CostProfile],
        fallback: CostProfile,
    ) -> None:
        """Predict for a decode worker of a profile and degree; workers of unknown pools use ``fallback``."""
        self._home = home
        self._degree = degree
        self._pools = pools
        self._fallback = fallback
        self._views: tuple[PrefillWorkerView, ...] = ()
        self._workers: list[_Worker] = []
        self._figures: list[RemoteFigures] = []
        self._kinds: dict[tuple[str, Degree], WorkerKind] = {}

    def figures(
        self,
        task: PrefillTask,
        views: tuple[PrefillWorkerView, ...],
        *,
        cached: Mapping[str, int],
        sent: Mapping[str, int] = NOTHING,
        readable: bool = True,
        link_rates: Mapping[str, float] = UNMEASURED,
        below: int = 0,
        load_s: float = 0.0,
    ) -> list[RemoteFigures]:
        """Return every worker's figures for a task, valid until the next call.

        A history that is not ``readable`` is computed there, but for what the worker has ``cached``; the decode worker
        has it, so that only the increment comes back, and what a tier has ``below`` its GPU memory. One that is
        readable is read after ``load_s``, in which that is loaded. ``link_rates`` are measured ones, by worker, in
        place of the profile's.
        """
        if views is not self._views:
            self._take(views)
        back = task.increment
        if not readable:
            back += below
            load_s = 0.0
            task = PrefillTask(0, task.history + task.increment)
        for kind in self._kinds.values():
            kind.estimate(task.history, task.increment, back)
        for worker in self._workers:
            figures, kind = worker.figures, worker.kind
            figures.prefill_s = kind.prefill_s * worker.view.slowdown
            figures.read_s = kind.read_s
            figures.back_s = kind.back_s
            if cached or figures.cached:
                # Of several ranks the engine chooses one by itself, which may have nothing.
                figures.cached = float(cached.get(worker.view.worker, 0)) if kind.engine.ranks == 1 else 0.0
                if figures.cached:
                    known, tokens, read = remote_work(task.history, task.history + task.increment, figures.cached)
                    figures.read_s = kind.read(read)
                    if known > task.history:
                        figures.prefill_s = kind.engine.prefill(known, tokens) * worker.view.slowdown
            figures.read_s += load_s
            if sent or figures.sent:
                figures.sent = float(sent.get(worker.view.worker, 0))
            if link_rates is not UNMEASURED:
                figures.link_rate = link_rates.get(worker.view.worker, kind.link_rate)
        return self._figures

    def _take(self, views: tuple[PrefillWorkerView, ...]) -> None:
        known = self._workers
        self._views = views
        self._workers = [
            known[i] if i < len(known) and known[i].view is view else self._worker(view) for i, view in enumerate(views)
        ]
        self._figures = [worker.figures for worker in self._workers]

    def _worker(self, view: PrefillWorkerView) -> _Worker:
        kind = self._kinds.get((view.pool, view.degree))
        if kind is None:
            kind = self._kinds[view.pool, view.degree] = self._new_kind(view.pool, view.degree)
        return _Worker(view, kind)

    def _new_kind(self, pool: str, degree: Degree) -> WorkerKind:
        home, profile = self._home, self._pools.get(pool, self._fallback)
        if profile is home:
            read = home.transfers.get((self._degree, degree, "inter-node"), UNKNOWN)
            back = home.transfers.get((degree, self._degree, "inter-node"), UNKNOWN)
        else:
            try:
                read = transfer_between(
                    home, profile, source_degree=self._degree, destination_degree=degree, link="inter-node"
                )
                back = transfer_between(
                    profile, home, source_degree=degree, destination_degree=self._degree, link="inter-node"
                )
            except CostProfileError:
                read = back = UNKNOWN
        engine = EngineEstimate(profile, degree, None)
        return WorkerKind(engine, read, back, profile.kv_bytes_per_token)
