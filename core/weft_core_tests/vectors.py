"""Figures that policy tests share."""

import math
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from weft_core.policies.inputs import LocalFigures, RemoteFigures, RoutingInputs, TaskFigures
from weft_core.policies.registry import POLICIES, REASONS, parameters

INFINITE = math.inf
NOT_KNOWN = math.nan


def task(
    *, history: float = 2000, increment: float = 1000, waited: float = 0, ttft: float = 2.0, itl: float = 0.05,
    later: bool = True, answer: float = NOT_KNOWN, rate: float = NOT_KNOWN, uniform: float = 0.5, priority: float = 0,
    now: float = 1000.0, session: float = NOT_KNOWN,
) -> TaskFigures:  # fmt: skip
    """Return a task."""
    return TaskFigures(
        history, increment, waited, ttft, itl, float(later), answer, rate, uniform, priority, now, session
    )


def local(
    *, queue: float = 0, own: float = 1.0, chunked_queue: float = INFINITE, chunked: float = INFINITE,
    itl: float = NOT_KNOWN, batch: float = 0, context: float = 0, step: float = 0.02, free: float = 10_000,
    queued: float = 0,
) -> LocalFigures:  # fmt: skip
    """Return the bound decode worker."""
    return LocalFigures(queue, own, chunked_queue, chunked, itl, batch, context, step, free, queued)


def remote(
    *, queue: float = 0, own: float = 1.0, read: float = 0, back: float = 0, ttft: float = NOT_KNOWN, queued: float = 0,
    cached: float = 0, kv_use: float = 0, idle: float = INFINITE, rate: float = 1e9, sent: float = 0,
    sessions: float = NOT_KNOWN, decoding: float = 0,
) -> RemoteFigures:  # fmt: skip
    """Return one prefill worker, last chosen ``idle`` seconds before the task's time."""
    return RemoteFigures(
        queue, own, read, back, ttft, queued, cached, kv_use, 1000.0 - idle, rate, sent, sessions, decoding
    )


class Answer:
    """What a rule answered."""

    def __init__(self, choice: int, reason: int, costs: list[float]) -> None:
        self.choice = choice
        self.reason = REASONS[reason]
        self.costs = costs

    @property
    def short(self) -> tuple[int, str]:
        """Return choice and reason."""
        return self.choice, self.reason


def inputs(
    of: TaskFigures,
    here: LocalFigures,
    there: Sequence[RemoteFigures],
    params: Sequence[float] = (0.0,),
    *,
    order: Sequence[int] | None = None,
    gaps: Sequence[tuple[float, float]] = (),
) -> RoutingInputs:
    """Return what a routing policy reads; its costs begin as not known."""
    return RoutingInputs(
        of, here, there, range(len(there)) if order is None else order, params, [g[0] for g in gaps],
        [g[1] for g in gaps], [NOT_KNOWN] * (len(there) + 1),
    )  # fmt: skip


def ask(
    policy: str,
    of: TaskFigures,
    here: LocalFigures,
    there: Sequence[RemoteFigures],
    params: Sequence[float],
    *,
    order: Sequence[int] | None = None,
    gaps: Sequence[tuple[float, float]] = (),
) -> Answer:
    """Ask a routing policy."""
    asked = inputs(of, here, there, params, order=order, gaps=gaps)
    choice, reason = POLICIES[policy].route(asked)
    return Answer(choice, reason, list(asked.costs))


def ask_weft(
    mode: str,
    of: TaskFigures,
    here: LocalFigures,
    there: Sequence[RemoteFigures],
    *,
    gaps: Sequence[tuple[float, float]] = (),
    **params: float,
) -> Answer:
    """Ask ``weft`` in one of its modes."""
    return ask("weft", of, here, there, parameters("weft", mode, params), gaps=gaps)


seconds = st.floats(0, 5)
maybe = st.one_of(st.just(NOT_KNOWN), seconds)
counts = st.integers(0, 20).map(float)
shares = st.floats(0, 1)
tasks = st.builds(
    task, history=st.integers(0, 20_000).map(float), increment=st.integers(1, 9000).map(float), waited=seconds,
    ttft=st.floats(0.1, 10), itl=st.floats(0.005, 0.2), later=st.booleans(),
    answer=st.one_of(st.just(NOT_KNOWN), st.floats(1, 2000)), rate=st.one_of(st.just(NOT_KNOWN), st.floats(0, 50)),
    uniform=st.floats(0, 1, exclude_max=True), priority=st.integers(0, 3).map(float),
    session=st.one_of(st.just(NOT_KNOWN), st.floats(0, 1, exclude_max=True)),
)  # fmt: skip
locals_ = st.builds(
    local, queue=seconds, own=seconds, chunked_queue=st.one_of(st.just(INFINITE), seconds),
    chunked=st.one_of(st.just(INFINITE), seconds), itl=maybe, batch=counts, context=st.floats(0, 1e5),
    step=st.floats(0.001, 0.1), free=st.floats(0, 1e5), queued=counts,
)  # fmt: skip
remotes = st.builds(
    remote, queue=seconds, own=seconds, read=seconds, back=seconds, ttft=maybe, queued=counts, cached=counts,
    kv_use=shares, idle=st.one_of(st.just(INFINITE), st.floats(0, 200)), rate=st.floats(0, 1e11), sent=counts,
    sessions=st.one_of(st.just(NOT_KNOWN), counts), decoding=st.one_of(st.just(0.0), counts),
)  # fmt: skip
"""Workers whose predictions are all known; ``unknown_remotes`` lack one."""
unknown_remotes = st.builds(
    lambda worker, name: replace(worker, **{name: NOT_KNOWN}),
    remotes,
    st.sampled_from(["queue_s", "prefill_s", "read_s", "back_s"]),
)
fleets = st.lists(remotes, max_size=6)
gap_lists = st.lists(st.tuples(st.floats(0, 5), st.integers(0, 100).map(float)), max_size=5)
