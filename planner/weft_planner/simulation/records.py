"""Name every figure of the simulator's state: record arrays that the compiled event loop reads and writes.

``SimulationState`` holds them all. A *row* is a round of the sample; its number identifies it in lists and events.
Times are seconds from the window's beginning, lengths tokens; -1 stands for none.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft_core.kv_tiers import TIER_NAMES
from weft_core.policies.inputs import LocalFigures, RemoteFigures, TaskFigures

Records: TypeAlias = NDArray[np.void]
Record: TypeAlias = Any
"""One record of an array; its fields are attributes in compiled code."""
Numbers: TypeAlias = Any
"""An array of floats or integers: the policies' rules take it for the sequence that they ask for."""


def _record(**groups: str) -> np.dtype[np.void]:
    """Return a record type from names by type: ``f8="a b"``, ``i8="c"``."""
    return np.dtype([(name, kind) for kind, names in groups.items() for name in names.split()])


RULES = _record(
    f8="chunk_fraction slice_turn shared_work least_hit window_s strictest_itl counted_from counted_until",
    # options as numbers, then lengths and addresses
    i8="rearranges window cap slices chunk_limit chunk_floor prefill_tokens decode_tokens links reads unreadable "
    "caches pull oracle ttl by_value on_eviction reads_windows reads_order reads_gaps delays itl_statistic ring peaks "
    "slots workers helpers classes sessions events ticks params prefill_figures step_figures tiers evicts_tokens "
    "keeps_ended decide choose place",
)
"""One record: the run's settings. ``least_hit``: the share of a prompt from which on a binding counts what is cached.
Utilisation counts from ``counted_from`` to ``counted_until``; ``slots`` is the
length of the ring of finishing steps, a power of 2; ``ttl``: 1 where idle sessions' KV has a time to live,
``by_value``: 1 where the KV that is worth least is evicted first; ``on_eviction``: 1 where tiers get KV when the GPUs
lose it;
``prefill_tokens``, ``decode_tokens``: the most tokens of a step of a worker with this role, NO_LIMIT where its engine
has none; ``tiers``: 1 where engines have memory below the GPUs'; ``evicts_tokens``: 1 where idle
sessions lose no more of their KV than others need; ``keeps_ended``: 1 where the KV of sessions that ended stays while
there is room; ``helpers``: so many of the workers, from the first on, may prefill for others; ``sessions``, ``events``,
``ticks``, ``params``, ``…_figures``: lengths of these tables; ``decide``, ``choose``, ``place``: addresses of the
policies' machine code."""

TOTALS = _record(
    f8="now read_tokens returned_tokens moved_tokens recomputed loaded net_at net_time tick_s rate_from needed_kv "
    "evicted_wait_s rounds_done rounds_left done_squares left_squares round_products",
    i8="sequence events event_limit heap kv_freed dirty random cursor preemptions evictions resent net arrivals "
    "arrivals_before ticks error choices decoding evicted_waits round_points",
)
"""One record: counters (``event_limit`` ends a run), the clock, and the sizes of a policy's inputs: ``choices`` workers
or tasks, ``decoding`` sessions, ``needed_kv`` tokens. ``arrivals`` counts new sessions. ``kv_freed`` is 1 when rounds
that wait may have room now; ``net``: shared transfers under way, and ``net_at`` when the earliest of them may end.
``evicted_wait_s``, ``evicted_waits``: how long rounds whose KV was evicted waited for memory; ``rounds_…``,
``…_squares``, ``round_…``: sums over the rounds of ended sessions, for ``rounds_memory``."""

CLASSES = _record(f8="ttft_slo itl_slo priority decode", i8="gaps")
"""Per class: ``gaps`` between rounds that were observed."""

ROWS = _record(
    f8="history increment gap noise chunk_noise arrival first_token_at finished ttft max_gap last_token_at seconds "
    "task_history task_tokens done part back scratch_kv read present kept kept_at kept_until",
    i4="session read_sends back_sends state prefill_worker route reason late_gaps gaps steps_left join_step late_base "
    "late_before whole ready reading postponed resumed generated evictable evicted first_token_pending",
)
"""Per round: its inputs, its times, its prefill and its decode.

* Prefill task: ``task_history`` tokens cached and ``task_tokens`` to compute, ``done`` of them and ``part`` in the step
  that runs, in ``seconds`` as predicted; ``ready`` says where it is; ``back`` tokens of KV to return to the decode
  worker; ``scratch_kv`` tokens held at a worker that prefills for another; ``read`` tokens of history still to read,
  ``reading`` 1 while they are read; ``present``: tokens that its decode worker had when it was routed; ``kept``: tokens
  of its prompt in its prefill worker's prefix cache, since ``kept_at``.
* Decode: ``steps_left`` from worker step ``join_step`` on; ``late_base`` is the worker's count of late steps at that
  time, ``late_before`` the late gaps from before a preemption; ``first_token_pending`` is 1 until the first token of an
  answer that begins with a decode step.
* ``evictable`` is 1 while the KV of its session, idle before this round, may be evicted, after ``kept_until`` only;
  ``evicted`` is 1 from when it was until the round has memory.
"""

SESSION = _record(
    f8="arrival prefix reserve kv_tokens kv_before gap_s hash below below_size idle_since",
    i4="first_row rounds slo_class bound moving awaits_kv missed_ttft gaps late_gaps tier below_at",
)
"""Per session: ``hash`` is a random number in [0, 1), ``kv_tokens`` its KV on its decode worker, ``moving`` 1 while
that KV is sent to another worker, ``kv_before`` what it brings there of rounds that the sample does not have,
``awaits_kv`` 1 while its next round waits for that, ``missed_ttft`` 1 once a TTFT was late. The last ``below_size`` of
its first ``below`` tokens are in tier ``tier`` of worker ``below_at``, 0 for none. ``idle_since``: when its last round
ended, infinite while one is there."""

WORKERS = _record(
    f8="kv_capacity kv_used kv_peak evictable_kv ended_kv context last_end work_start work_s queue_s queue_tokens "
    "queue_work out_free in_free last_chosen busy queue_area queue_since switch_s kept next_slice_at",
    i8="role draining target sends_sessions both mode batch steps current ahead chunk running dirty sessions "
    "peaks first_tokens_pending sending receiving slice_event_set assigned prefill_places decode_places in_steps "
    "first_rank ranks busy_ranks end_kind first_batch stages alone costs_of",
)
"""Per worker. ``kv_used``: tokens of KV, of which ``evictable_kv`` are of sessions without a round, and of these
``ended_kv`` of sessions that ended; ``kv_peak``: the most of ``kv_used`` without these. ``queue_s``: seconds of its
queued and running prefills as predicted when they were routed; ``queue_tokens``, ``queue_work``: tokens still to
compute there, and the same weighted by the mean length of their sequences; ``ahead``: the prefill to run after
``current`` whose history is read already; ``running``: tokens still to compute of the prefill, or slice, that the
engine of a decode worker has among its sequences; ``prefill_places``, ``decode_places``: prefills that the engine has
at a time as a prefill worker, and sequences as a decode worker, NO_LIMIT without a limit; ``in_steps``: 1 where
prefills of a prefill worker run in steps (``prefill_steps``), not each by itself; ``first_rank``: the first of the
``ranks`` workers that step together with this one, ``busy_ranks`` of which (as the first counts) have not ended their
step, and ``end_kind``, ``work_s``: what this one does in it; ``stages``: pipeline stages that it shares with the
others of its replica, of which ``first_batch`` is the first; ``alone``: 1 if its replica has one batch;
``first_tokens_pending``: sequences of its batch without a first token; ``kept``: tokens of prompts in its prefix
cache beside ``kv_used``; ``assigned``: sessions whose first prefill it was given; ``next_slice_at``: when the next
slice arrives, ``slice_event_set`` 1 while an event is set for it; ``sends_sessions``: 1 if a worker that drains sends
its sessions' KV to others; ``both``: 1 if as a decode worker it prefills for the sessions of others, too;
``costs_of``: the first worker of its pool and degree."""

TIERS = _record(f8="capacity used latency per_token free_at")
"""Per worker and tier below its GPUs' memory, in tokens and seconds; ``free_at``: when the last load from it ends."""

PER_CLASS = _record(i4="late_steps active cached")
"""Per worker and class: steps with a gap over the class's ITL SLO so far, sequences decoding, prefix cached."""

EVENTS = _record(f8="time", i8="sequence kind subject")
LIST = _record(i4="kind first last length")
"""A list of rows by its ends; -1 where it is empty."""
LINK = _record(f8="alpha per_token rate")
WINDOW = _record(i8="start end")
SAMPLE = _record(f8="time total count")
"""A statistics window of a worker, and a sample in its ring; the places count on, the ring is reused."""
PEAKS = _record(f8="gap", i8="step")
TRANSFERS = _record(f8="left share", i8="source destination kind row")
CHANGES = _record(f8="at delay", i8="worker target sends_sessions")
TICKS = _record(f8="kv", i8="queued batch")
TASK, LOCAL_WORKER, REMOTE_WORKER = (
    _record(f8=" ".join(field.name for field in fields(figures)))
    for figures in (TaskFigures, LocalFigures, RemoteFigures)
)
"""What routing policies read, by the names of the core's own classes."""

REASON_BITS = 8
"""A routing policy's answer is its choice shifted by these, plus the reason's number."""

# Roles and what a worker is doing.
OFF = 0
PREFILL = 1
DECODE = 2

IDLE = 0
STEPPING = 1
WHOLE = 2

# What became of a round. Those after one that was dropped never arrive.
NEVER_ARRIVED = 0
SERVED = 1
TOO_LONG = 2  # dropped: its context exceeds the KV cache of every decode worker
UNPLACED = 3  # dropped: no worker could take it until the end

NO_LIMIT = 1 << 40
"""Stands for the sequences or tokens of a step where nothing limits them."""

# Where a prefill task is.
READING = 0  # queued; its history is read
READY = 1  # queued
IN_ENGINE = 2  # in the list ENGINE

NOT_ROUTED = -2
"""Stands in a round's route beside the places of workers and the policies' LOCAL."""

# Events, in no order of precedence: equal times are taken in the order they were set.
ARRIVE = 0  # a round reaches the router; row
PREFILL_END = 1  # worker
READ_END = 2  # the history has reached the worker of the prefill; row
BACK_END = 3  # the KV of a remote prefill has reached its decode worker; row
STEP_END = 4  # worker
NET = 5  # the earliest shared transfer may be done
MOVED = 6  # a session's KV has reached its new worker; row
CHANGE = 7
SWITCH = 8  # worker
TICK = 9
SLICE = 10  # the next slice has reached its engine; worker
EXPIRE = 11  # the time to live of an idle session's KV is over; worker
LOADED = 12  # a session's KV is back from a tier below the GPUs; row
RANKS_END = 13  # the ranks of a worker have ended their common step; first rank

# Lists of rows; each worker has one of every kind, UNBOUND there is one.
QUEUE = 0  # prefill tasks in order of arrival, the running one included
JOINING = 1  # ready to decode from the next step on
FRESH = 2  # in their first step
WAITING = 3  # rounds that wait for room in the KV cache
ACTIVE = 4  # decoding, in order of joining
EVICTABLE = 5  # idle sessions whose KV is still there, the longest idle first, by their next row
PULL = 6  # prefilled elsewhere; the engine fetches their KV from its next step on
KEPT = 7  # prompts in the prefix cache of a worker that prefills for others, the least recently used first
ENGINE = 8  # prefills in the engine of a prefill worker that computes them in steps, in the order they came
BELOW = 9  # a list for each tier: sessions with KV there, the least recently used first, by their first row
SLOT = BELOW + len(TIER_NAMES)  # decoding, by the step at which they finish
LISTS = SLOT + 1

# Places in ``options.LINKS``, where "none" is 0.
FIFO_LINKS = 1
FAIR_LINKS = 2

FULL_HEAP = 1


class SimulationState(NamedTuple):
    """All state of one run; each record type above documents its fields.

    ``lists`` has the ends of every list; ``after`` and ``before`` are its links, by row and kind of list.
    ``prefill``, ``step``: flat cost figures per worker. Then come the inputs of policies: ``task``, ``local`` and
    ``remote`` for routing, whose ``candidates`` are workers, and what every worker has ``cached`` of the prompt and was
    ``sent``; a figure per task of a queue, whose ``queued`` are rows;
    a figure per worker for bindings, whose ``places`` are workers. ``stages``: by first batch and pipeline stage, when
    that is free. ``recent_gaps``, ``ordered_gaps``: a class's gaps between rounds, as they came and ascending;
    ``returns``: the same, counted in buckets.
    """

    rules: Records
    totals: Records
    classes: Records
    rows: Records
    sessions: Records
    workers: Records
    tiers: Records
    per_class: Records
    events: Records
    links: Records
    windows: Records
    samples: Records
    peaks: Records
    transfers: Records
    changes: Records
    ticks: Records
    after: Numbers
    before: Numbers
    lists: Records
    dirty: Numbers
    prefill: Numbers
    step: Numbers
    params: Numbers
    task: Records
    local: Records
    remote: Records
    costs: Numbers
    gap_sums: Numbers
    gap_counts: Numbers
    gaps_left: Numbers
    recent_gaps: Numbers
    ordered_gaps: Numbers
    returns: Numbers
    order: Numbers
    candidates: Numbers
    cached: Numbers
    sent: Numbers
    seconds: Numbers
    enqueued: Numbers
    ttft_slo: Numbers
    postponed: Numbers
    lost: Numbers
    queued: Numbers
    head: Numbers
    kv_free: Numbers
    kv_capacity: Numbers
    bound: Numbers
    prefix_hit: Numbers
    load: Numbers
    places: Numbers
    stages: Numbers


TABLES: Mapping[str, tuple[Any, int]] = {
    **dict.fromkeys(("after", "before"), (np.int32, 2)),
    **dict.fromkeys(("dirty", "order", "candidates", "postponed", "lost", "queued", "head", "places"), (np.int64, 1)),
    **dict.fromkeys(("prefill", "step", "stages", "recent_gaps", "ordered_gaps", "returns"), (np.float64, 2)),
    **dict.fromkeys(
        (
            "params", "costs", "gap_sums", "gap_counts", "gaps_left", "seconds", "enqueued", "ttft_slo", "kv_free",
            "kv_capacity", "bound", "prefix_hit", "load", "cached", "sent",
        ),
        (np.float64, 1),
    ),
    "rules": (RULES, 1),
    "totals": (TOTALS, 1),
    "classes": (CLASSES, 1),
    "rows": (ROWS, 1),
    "sessions": (SESSION, 1),
    "workers": (WORKERS, 1),
    "tiers": (TIERS, 2),
    "per_class": (PER_CLASS, 2),
    "events": (EVENTS, 1),
    "links": (LINK, 2),
    "samples": (SAMPLE, 2),
    "peaks": (PEAKS, 2),
    "transfers": (TRANSFERS, 1),
    "changes": (CHANGES, 1),
    "ticks": (TICKS, 2),
    "lists": (LIST, 1),
    "windows": (WINDOW, 2),
    "task": (TASK, 1),
    "local": (LOCAL_WORKER, 1),
    "remote": (REMOTE_WORKER, 1),
}  # fmt: skip
"""What an element of each table is, and its dimensions."""
