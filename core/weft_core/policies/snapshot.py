"""What a router knows when it decides: tasks and workers as values that never change, and the decision it gets back.

Lengths are tokens, times are seconds, NaN says "not known". A snapshot holds no references to live state. What is made
for every request is not frozen, though nothing changes it: a frozen dataclass takes three times as long to make.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

from weft_core.parallelism import Degree
from weft_core.policies.inputs import TaskFigures

NOTHING: Mapping[str, int] = MappingProxyType({})
UNMEASURED: Mapping[str, float] = MappingProxyType({})


@dataclass(slots=True)
class PrefillTask:
    """One prefill to do: ``increment`` new tokens on top of ``history`` known ones (0 for the first round).

    ``read`` of the history have to be read from the decode worker first.
    """

    history: int
    increment: int
    read: int = 0


@dataclass(slots=True)
class Circumstances:
    """What else is known of a task.

    ``waited_s`` since the round came, ``later`` that it is not the session's first, ``answer`` the expected tokens of
    its answer, ``rate`` the new sessions per second of the whole service, ``cached`` the tokens of this prompt that
    prefill workers may hold, by their names, ``sent`` those that they were sent in earlier rounds, ``session`` a hash
    of the session's name in [0, 1); ``sliceable`` whether a local prefill can be run in slices: its exact token ids are
    known and the engine's adapter can send them; ``readable`` whether prefill workers can read the history: one
    that cannot be read is recomputed there, and only there. ``link_rates`` are bytes per second over the KV paths from
    prefill workers, as far as they were measured. ``below`` tokens of the history are in tiers below the decode
    worker's GPU memory, and take ``load_s`` to load.
    """

    waited_s: float = 0.0
    later: bool = False
    answer: float = math.nan
    rate: float = math.nan
    priority: int = 0
    cached: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    sliceable: bool = True
    readable: bool = True
    sent: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    session: float = math.nan
    link_rates: Mapping[str, float] = field(default_factory=lambda: UNMEASURED)
    below: int = 0
    load_s: float = 0.0


@dataclass(slots=True)
class PrefillWorkerView:
    """A worker that may prefill, as the router sees it.

    ``queue_s`` is the sum of T_pre over its queued and running tasks, ``queued`` their number; ``windowed_ttft`` the
    mean TTFT of the statistics window, None without a sample; ``kv_use`` the share of its KV in use; ``used_at`` when
    this router last chose it, on the clock of ``Routing.decide``; ``pool`` its GPU pool; ``slowdown`` the observed over
    the predicted seconds of its prefills, which ``queue_s`` includes; ``sessions`` how many sessions it was given, NaN
    where nobody counts them. One with sessions of its own, beside which it prefills for others, decodes ``batch``
    sequences.
    """

    worker: str
    degree: Degree
    queue_s: float
    queued: int
    windowed_ttft: float | None
    kv_use: float = math.nan
    used_at: float = -math.inf
    pool: str = ""
    slowdown: float = 1.0
    sessions: float = math.nan
    batch: int = 0


@dataclass(slots=True)
class DecodeWorkerView:
    """The bound decode worker as the router sees it; ``queue_s`` and ``queued`` are its own local prefills.

    ``windowed_itl`` is the mean ITL of the statistics window, None without a sample; ``context`` the tokens of the
    sequences decoding now. ``gap_sums`` and ``gap_counts`` hold, for each of their sessions, the seconds (or, for a P95
    or largest-gap SLO, the number over the SLO) and the number of its gaps between tokens so far. ``queue_tokens`` are
    those still to prefill locally and ``queue_work`` the same, each times what its sequence holds on average meanwhile;
    ``itl_slo`` is the strictest ITL SLO among those decoding, NaN for the service's; ``pool`` its GPU pool, empty for
    the one that routes; ``slowdown`` is its engine's, which ``queue_s`` includes; ``places`` how many sequences its
    engine runs at most, of which ``batch`` and the local prefills take one each, or wait for one; ``gaps_left`` the
    gaps that the rest of each answer is expected to have, for policies that delay prefills.
    """

    worker: str
    degree: Degree
    queue_s: float
    queued: int
    windowed_itl: float | None
    kv_used: int
    kv_capacity: int
    batch: int
    context: int
    gap_sums: list[float] = field(default_factory=list)
    gap_counts: list[float] = field(default_factory=list)
    queue_tokens: float = 0.0
    queue_work: float = 0.0
    itl_slo: float = math.nan
    pool: str = ""
    slowdown: float = 1.0
    places: float = math.inf
    gaps_left: list[float] = field(default_factory=list)


class BindingView(NamedTuple):
    """A decode worker as a binding sees it: KV in tokens, sessions bound to it, requests running or waiting."""

    worker: str
    kv_used: int
    kv_capacity: int
    sessions: int
    load: float


class RoutingOption(NamedTuple):
    """One option of a decision: ``local`` (whole), ``local-chunked``, or a worker's name.

    ``ttft_s`` is the TTFT predicted for it, from the round's arrival; ``itl_cost`` by how much it raises the expected
    number of sessions that miss their ITL; ``cost`` the rule's own figure, NaN where it made none.
    """

    option: str
    ttft_s: float
    itl_cost: float
    cost: float


class Evidence(Protocol):
    """What a decision was made from; explanations are computed on demand."""

    def figures(self) -> TaskFigures:
        """Return the task as policies read it."""

    def alternatives(self) -> tuple[RoutingOption, ...]:
        """Return every option that there was."""

    def costs(self) -> Mapping[str, float]:
        """Return the rule's own figure of each option it estimated."""

    def hedge(self, choice: str | None, risk: float, *, only_local: bool) -> str | None:
        """Return the option to race against the choice, None for none; ``only_local`` leaves out the workers."""

    def best_ttft(self) -> float:
        """Return the least TTFT that any option promises, infinite when nothing is known."""

    def itl_s(self) -> float:
        """Return the decode worker's predicted step with this round in its batch, NaN when it is unknown."""

    def answers(self) -> tuple[float, int]:
        """Return the expected tokens of an answer, NaN when they are unknown, and how many answers are decoded now."""


@dataclass(slots=True)
class Decision:
    """Where a prefill runs: on worker ``remote``, or locally on the bound decode worker when it is None.

    ``chunked`` asks for slices (``Routing.next_slice``); ``ttft_s`` is the TTFT predicted for what was chosen, from the
    round's arrival, ``uncorrected_s`` the same without the correction of predictions that proved wrong
    (``weft_core.policies.trust``).
    """

    remote: str | None
    reason: str
    chunked: bool = False
    ttft_s: float = math.nan
    evidence: Evidence | None = None
    uncorrected_s: float = math.nan

    def because(self, reason: str) -> "Decision":
        """Return the same choice, made for another reason."""
        return Decision(self.remote, reason, self.chunked, self.ttft_s, self.evidence, self.uncorrected_s)

    def alternatives(self) -> tuple[RoutingOption, ...]:
        """Return every option with its predicted TTFT and cost; worked out now, not when it was decided."""
        return self.evidence.alternatives() if self.evidence is not None else ()

    @property
    def costs(self) -> Mapping[str, float]:
        """Return what the rule estimated for each option, by name ("local" or the worker's).

        Empty when the rule decided without estimates. Its unit is the rule's own: seconds for AMPD and the shortest
        queue, expected missed SLOs for ``weft``, a score for ``latency-cost``.
        """
        return self.evidence.costs() if self.evidence is not None else {}

    @property
    def short(self) -> tuple[str | None, str]:
        """Return the choice and its reason."""
        return self.remote, self.reason
