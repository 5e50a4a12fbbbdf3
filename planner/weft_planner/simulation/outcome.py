"""Hold what one simulated run did: a figure per round and per worker, and totals."""

import hashlib
from dataclasses import dataclass, fields

import numpy as np

from weft_core.policies.inputs import LOCAL
from weft_planner.simulation.layout import Layout, PolicyChoice, SloClass
from weft_planner.simulation.options import Options
from weft_planner.simulation.records import NOT_ROUTED
from weft_planner.workload.distributions import Floats
from weft_planner.workload.sessions import Ints, Sample


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Every worker's state at ``at`` (seconds): arrays of shape (times, workers)."""

    at: Floats
    queued: Ints
    batch: Ints
    kv: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One run. Per row of the sample (round) and per worker (prefill workers first); times in seconds.

    ``ttft`` is infinite for rounds that were not served. ``itl_mean`` and ``itl_max`` are over the round's gaps (0
    without gaps), ``itl_over`` is the share of them above the class's ITL SLO, ``gaps`` their number. ``route`` is
    LOCAL, the index of the worker that prefilled, or NOT_ROUTED; ``reason`` is the routing rule's code. ``counted``
    marks the rounds of the sessions between warm-up and cool-down. ``busy`` is the share of the observed window that a
    worker computed, ``kv_peak`` its largest KV use in tokens, ``queue_mean`` its mean number of queued and running
    prefills. ``cut_short``: the run was ended by a limit on events, as no work got done any more (memory so overloaded
    that sequences only displace one another). Tokens moved: history read by prefill workers, KV sent back, KV of
    sessions that changed workers, and history loaded from tiers below the GPUs.
    """

    sample: Sample
    layout: Layout
    policy: PolicyChoice
    slo: tuple[SloClass, ...]
    options: Options
    seed: int
    arrival: Floats
    ttft: Floats
    finished: Floats
    itl_mean: Floats
    itl_over: Floats
    itl_max: Floats
    gaps: Ints
    route: Ints
    reason: Ints
    state: Ints
    counted: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
    busy: Floats
    kv_peak: Floats
    kv_capacity: Floats
    queue_mean: Floats
    events: int
    cut_short: bool
    end: float
    read_tokens: float
    back_tokens: float
    moved_tokens: float
    loaded_tokens: float
    recomputed_tokens: float
    preemptions: int
    evictions: int
    retransmissions: int
    timeline: Timeline | None

    @property
    def local_share(self) -> float:
        """Return the share of routed rounds that were prefilled on their own decode worker; NaN without any."""
        routed = self.counted & (self.route != NOT_ROUTED)
        return float((self.route[routed] == LOCAL).mean()) if routed.any() else float("nan")

    def digest(self) -> str:
        """Return a hash over every measured figure: equal digests mean the same run, byte for byte."""
        running = hashlib.sha256()
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, np.ndarray):
                running.update(np.ascontiguousarray(value).tobytes())
            elif isinstance(value, int | float):
                running.update(repr(value).encode())
        return running.hexdigest()
