"""What a router knows when it decides: tasks and workers as frozen values, and the decision it gets back.

Lengths are tokens, times are seconds, NaN says "not known". A snapshot holds no references to live state.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PrefillTask:
    """One prefill to do: ``increment`` new tokens on top of ``history`` cached ones (0 for the first round)."""

    history: int
    increment: int


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What else is known of a task.

    ``waited_s`` since the round came, ``later`` that it is not the session's first, ``answer`` the expected tokens of
    its answer, ``rate`` the rounds per second of the whole service, ``cached`` the tokens of this prompt that prefill
    workers may hold, by their names.
    """

    waited_s: float = 0.0
    later: bool = False
    answer: float = math.nan
    rate: float = math.nan
    priority: int = 0
    cached: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrefillWorkerView:
    """A prefill worker as the router sees it.

    ``queue_s`` is the sum of T_pre over its queued and running tasks, ``queued`` their number; ``windowed_ttft`` the
    mean TTFT of the statistics window, None without a sample; ``kv_use`` the share of its KV in use; ``used_at`` when
    this router last chose it, on the clock of ``Routing.decide``; ``pool`` its GPU pool.
    """

    worker: str
    degree: int
    queue_s: float
    queued: int
    windowed_ttft: float | None
    kv_use: float = math.nan
    used_at: float = -math.inf
    pool: str = ""


@dataclass(frozen=True, slots=True)
class DecodeWorkerView:
    """The bound decode worker as the router sees it; ``queue_s`` and ``queued`` are its own local prefills.

    ``windowed_itl`` is the mean ITL of the statistics window, None without a sample; ``context`` the tokens of the
    sequences decoding now. ``gap_sums`` and ``gap_counts`` hold, for each of their sessions, the seconds (or, for a P95
    or largest-gap SLO, the number over the SLO) and the number of its gaps between tokens so far.
    """

    worker: str
    degree: int
    queue_s: float
    queued: int
    windowed_itl: float | None
    kv_used: int
    kv_capacity: int
    batch: int
    context: int
    gap_sums: Sequence[float] = ()
    gap_counts: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class BindingView:
    """A decode worker as a binding sees it: KV in tokens, sessions bound to it, requests running or waiting."""

    worker: str
    kv_used: int
    kv_capacity: int
    sessions: int
    load: float


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a prefill runs: on worker ``remote``, or locally on the bound decode worker when it is None.

    ``costs`` holds what the rule estimated for each option, by option name ("local" or the worker's name); it is empty
    when the rule decided without estimates. Its unit is the rule's own: seconds for AMPD and the shortest queue,
    expected missed SLOs for ``weft``, a score for ``latency-cost``.
    """

    remote: str | None
    reason: str
    costs: Mapping[str, float] = field(default_factory=dict)
