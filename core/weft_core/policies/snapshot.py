"""What a scheduling rule may look at: one frozen picture of tasks and workers, and the decision it gives back.

Lengths are tokens, times are seconds. A snapshot holds no references to live state, so the same
rule can run in the router, in a simulation and in a test.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PrefillTask:
    """One prefill to do: ``increment`` new tokens on top of ``history`` cached ones (0 for the first round)."""

    history: int
    increment: int


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """A task waiting in a prefill queue, with the counter of Algorithm 2: how often it was postponed so far."""

    history: int
    increment: int
    enqueued_at: float
    postponed: int = 0


@dataclass(frozen=True, slots=True)
class PrefillWorkerView:
    """A prefill worker as the router sees it; ``queue`` includes the running task.

    ``windowed_ttft`` is the mean TTFT of the statistics window, None when it holds no sample.
    """

    worker: str
    degree: int
    queue: tuple[PrefillTask, ...]
    windowed_ttft: float | None


@dataclass(frozen=True, slots=True)
class DecodeWorkerView:
    """A decode worker as the router sees it; ``queue`` holds its own local prefills, KV figures are tokens.

    ``windowed_itl`` is the mean ITL of the statistics window, None when it holds no sample.
    """

    worker: str
    degree: int
    queue: tuple[PrefillTask, ...]
    windowed_itl: float | None
    kv_used: int
    kv_capacity: int
    sessions: int
    batch: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a prefill runs: on worker ``remote``, or locally on the bound decode worker when it is None.

    ``costs`` holds the predicted seconds of every option that the rule had to estimate, by option
    name ("local" or the worker's name); it is empty when the rule decided without estimates.
    """

    remote: str | None
    reason: str
    costs: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reordering:
    """The new order of a queue's head window and whom it delays, both as indices into that queue."""

    order: tuple[int, ...]
    postponed: tuple[int, ...]
