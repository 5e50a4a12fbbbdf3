"""Define what policies read: figures by name, for one task, its decode worker and every prefill worker.

A policy is a plain function in the subset of Python that numba compiles. The live router fills these classes from its
snapshot (``weft_core.policies.live``); the simulator has record arrays with the same names, derived from these fields.
Both call the same function. Times are seconds, lengths tokens; NaN says "not known".
"""

from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

LOCAL: Final = -1
"""The choice "on the bound decode worker"; 0 .. k - 1 are the prefill workers."""


@dataclass(slots=True)
class TaskFigures:
    """One prefill task."""

    history: float
    """Tokens whose KV exists on the bound decode worker."""
    increment: float
    """Tokens to prefill."""
    waited_s: float
    """Since the round reached the router."""
    ttft_slo: float
    itl_slo: float
    round: float
    """0 is the session's first."""
    answer: float
    """Expected tokens of the answer."""
    rate: float
    """Observed new sessions per second of the whole service: PPD's QPS counts conversations (section 4.2)."""
    uniform: float
    """A random number in [0, 1), drawn by the caller."""
    priority: float
    """0 is the ordinary class, higher is more important."""
    now: float
    """The clock of ``RemoteFigures.used_at``."""
    session: float
    """A hash of the session's name in [0, 1), the same for all its rounds; NaN: not known."""


@dataclass(slots=True)
class LocalFigures:
    """The bound decode worker."""

    queue_s: float
    """The wait for a place in its batch, and T_pre of its queued and running local prefills, each run whole; T_load of
    what a tier has of its history, where that is longer."""
    prefill_s: float
    """T_pre of this task on it, run whole."""
    chunked_queue_s: float
    """The same when run in SLO-sized chunks; infinite when it cannot."""
    chunked_s: float
    """This task in SLO-sized chunks after that; infinite when no chunk keeps the ITL SLO."""
    windowed_itl: float
    """Mean of the statistics window; NaN: no sample."""
    batch: float
    """Sequences decoding now."""
    context: float
    """Their tokens in total."""
    step_s: float
    """One decode step of that batch."""
    kv_free: float
    queued: float
    """Its queued and running local prefills."""


@dataclass(slots=True)
class RemoteFigures:
    """One prefill worker."""

    queue_s: float
    """Sum of T_pre over its queued and running prefills."""
    prefill_s: float
    """T_pre of this task on it."""
    read_s: float
    """T_kv of the history, decode worker -> prefill worker, after T_load of what a tier has of it."""
    back_s: float
    """T_kv of the increment, prefill worker -> decode worker."""
    windowed_ttft: float
    """Mean of the statistics window; NaN: no sample."""
    queued: float
    """Queued and running prefills."""
    cached: float
    """Tokens of this prompt in its prefix cache."""
    kv_use: float
    """Share of its KV capacity in use."""
    used_at: float
    """When it was last chosen."""
    link_rate: float
    """Bytes per second of its link to the decode worker."""
    sent: float
    """Tokens of this prompt that were sent there in an earlier round, whether or not it still has them."""
    sessions: float
    """Sessions whose first prefill it was given; NaN: not known."""
    decoding: float
    """Sequences that it decodes itself; a prefill for another worker's session stalls them."""


class RoutingInputs(NamedTuple):
    """What a routing policy decides from, and ``costs``, which it writes.

    ``order`` is a random permutation of the prefill workers' places. ``gap_sums`` and ``gap_counts`` describe the
    sessions that decode on the local worker (``weft`` says how). ``costs`` takes the policy's own cost of local at 0
    and of worker i at 1 + i; NaN where it estimated none.
    """

    task: TaskFigures
    local: LocalFigures
    remote: Sequence[RemoteFigures]
    order: Sequence[int]
    params: Sequence[float]
    gap_sums: Sequence[float]
    gap_counts: Sequence[float]
    costs: MutableSequence[float]


class BindingInputs(NamedTuple):
    """What a binding chooses from: a session's ``needed_kv`` in tokens, and a column per figure of the workers.

    ``prefix_hit`` are the prompt's tokens in a worker's prefix cache, fewer where they have to be loaded from a tier
    (``finish.hit_worth``), ``in_memory`` those in its GPU memory, which need no room. ``load`` are its requests running
    or waiting; ``cursor`` is the place behind the last chosen worker.
    """

    needed_kv: float
    kv_free: Sequence[float]
    kv_capacity: Sequence[float]
    sessions: Sequence[float]
    prefix_hit: Sequence[float]
    load: Sequence[float]
    cursor: int
    in_memory: Sequence[float]


class QueueInputs(NamedTuple):
    """A queue of at least one prefill task, a column per figure, in order of arrival.

    ``seconds`` are predicted, ``postponed`` counts how often a task was passed over (in and out), ``lost`` is 1 where
    the session has missed its SLO already, ``cap`` bounds how often the oldest is passed over. ``head``, of length
    MAX_WINDOW, is written by orders that rearrange the first ``window`` tasks: their new order.
    """

    now: float
    seconds: Sequence[float]
    enqueued: Sequence[float]
    ttft_slo: Sequence[float]
    postponed: MutableSequence[int]
    lost: Sequence[int]
    window: int
    cap: int
    head: MutableSequence[int]


MAX_WINDOW: Final = 6
"""6! = 720 orderings of 6 tasks are about a millisecond; 7! would hold up the queue (the paper uses 2..5)."""
