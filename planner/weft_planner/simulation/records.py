"""Name every figure of the simulator's state: record arrays that the compiled event loop reads and writes.

``SimulationState`` holds them all. A *row* is a round of the sample; its number identifies it in lists and events.
Times are seconds from the window's beginning, lengths tokens; -1 stands for none.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
    f8="chunk_fraction slice_turn window_s itl_least begin finish",
    # options as numbers; lengths and addresses behind them
    i8="rearranges window cap slices chunk_limit chunk_floor links reads unreadable caches pull oracle symmetric "
    "want_windows want_gaps itl_statistic ring peaks slots workers classes sessions events ticks params "
    "prefill_figures step_figures decide choose place",
)
"""One record: the run's settings. ``slots`` is the length of the ring of finishing steps, a power of 2;
``sessions``, ``events``, ``ticks``, ``params``, ``…_figures``: lengths of these tables; ``decide``, ``choose``,
``place``: addresses of the policies' machine code."""

TOTALS = _record(
    f8="now read back moved recomputed net_at net_time tick_s rate_from need",
    i8="sequence events most heap room dirty random cursor preemptions evictions resent net arrivals "
    "arrivals_before ticks error asked decoding",
)
"""One record: counters (``most`` events end a run), the clock, and what a rule is asked: how many workers or tasks,
with how many sessions decoding or how many tokens of ``need``."""

CLASSES = _record(f8="ttft_slo itl_slo priority decode")

ROWS = _record(
    f8="history increment gap noise chunk_noise "
    "arrival first finished ttft max_gap since seconds task_history task_tokens done back scratch read present kept",
    i8="session read_sends back_sends state where route reason over gaps left join_step over_base over_so_far "
    "whole ready reading postponed resumed generated idle starts",
)
"""Per round. Inputs, then: times; the prefill task as its worker sees it (``task_history`` cached, ``task_tokens`` to
compute, ``done`` of them, ``seconds`` predicted, ``back`` tokens to send, ``scratch`` KV held at a helping worker,
``read`` history still to be read there, ``reading`` 1 while it is, ``present`` tokens that its decode worker had); what
is ``kept`` of its prompt in its prefill worker's prefix cache; the answer (``left`` steps to go, joined at worker step
``join_step``, ``over_base`` the worker's count of late steps then; ``over_so_far``: late gaps from before a preemption;
``starts`` 1 until the first token of an answer that begins with a step of its own)."""

SESSION = _record(
    f8="arrival prefix reserve held gap_s hash",
    i8="first rounds kind bound moving parked missed gaps over",
)
"""Per session: ``kind`` is its class, ``hash`` a random number in [0, 1), ``held`` the KV that its decode worker keeps
for it, ``parked`` 1 while its next round waits for KV that moves between workers, ``missed`` 1 once a TTFT was late."""

WORKERS = _record(
    f8="kv_capacity kv_used kv_peak idle_held context last_end began queue_s queue_tokens queue_work out_free in_free "
    "last_chosen busy queue_area queue_since switch_s kept slice_from",
    i8="role draining target keep colocated mode batch steps current ahead chunk dirty sessions peaks starting sending "
    "receiving waking assigned",
)
"""Per worker. ``queue_s``: predicted seconds of its queued and running prefills; ``queue_tokens``, ``queue_work``:
tokens still to compute there, and the same weighted by what their sequences will hold on average; ``ahead``: the
prefill to run after ``current`` whose history is read already; ``starting``: of its batch, those whose first token is
yet to come; ``kept``: tokens of prompts in its prefix cache beside ``kv_used``; ``assigned``: sessions whose first
prefill it was given; ``slice_from``: when it has the next slice, ``waking`` 1 while an event waits for that."""

PER_CLASS = _record(i8="over active cached")
"""Per worker and class: steps with a gap over the class's ITL SLO so far, sequences decoding, prefix cached."""

EVENTS = _record(f8="time", i8="sequence kind subject")
LIST = _record(i8="kind first last length")
"""A list of rows by its ends; -1 where it is empty."""
LINK = _record(f8="alpha per_token rate")
WINDOW = _record(i8="start end")
SAMPLE = _record(f8="time total count")
"""A statistics window of a worker, and a sample in its ring; the places count on, the ring is reused."""
PEAKS = _record(f8="gap", i8="step")
TRANSFERS = _record(f8="left share", i8="source destination kind row")
CHANGES = _record(f8="at delay", i8="worker target keep")
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

NOT_ROUTED = -2
"""Stands in a round's route beside the places of workers and the policies' LOCAL."""

# Events, in no order of precedence: equal times are taken in the order they were set.
ARRIVE = 0  # a round reaches the router; row
PREFILL_END = 1  # worker
READ_END = 2  # the history is where the prefill will run; row
BACK_END = 3  # the KV of a remote prefill is with its decode worker; row
STEP_END = 4  # worker
NET = 5  # the earliest shared transfer may be done
MOVED = 6  # a session's KV is with its new worker; row
CHANGE = 7
SWITCH = 8  # worker
TICK = 9
SLICE = 10  # the next slice is with its engine; worker

# Lists of rows; each worker has one of every kind, UNBOUND there is one.
QUEUE = 0  # prefill tasks in order of arrival, the running one included
JOINING = 1  # ready to decode from the next step on
FRESH = 2  # in their first step
WAITING = 3  # rounds that wait for room in the KV cache
ACTIVE = 4  # decoding, in order of joining
EVICTABLE = 5  # idle sessions whose KV is still there, the longest idle first, by their next row
PULL = 6  # prefilled elsewhere; the engine fetches their KV from its next step on
KEPT = 7  # prompts in a prefill worker's prefix cache, the least recently used first
SLOT = 8  # decoding, by the step at which they finish
LISTS = 9

# Places in ``options.LINKS``, where "none" is 0.
FIFO_LINKS = 1
FAIR_LINKS = 2

FULL_HEAP = 1


class SimulationState(NamedTuple):
    """All state of one run; see each record's own words.

    ``lists`` has the ends of every list; ``after`` and ``before`` are its links, by kind of list and row.
    ``prefill``, ``step``: flat cost figures per worker. Then comes what a policy is asked with: ``task``, ``local`` and
    ``remote`` for routing, whose ``candidates`` are workers, and what every worker has ``cached`` of the prompt and was
    ``sent``; a figure per task of a queue, whose ``queued`` are rows;
    a figure per worker for bindings, whose ``places`` are workers.
    """

    rules: Records
    totals: Records
    classes: Records
    rows: Records
    sessions: Records
    workers: Records
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


TABLES: Mapping[str, tuple[Any, int]] = {
    **dict.fromkeys(("after", "before"), (np.int64, 2)),
    **dict.fromkeys(("dirty", "order", "candidates", "postponed", "lost", "queued", "head", "places"), (np.int64, 1)),
    **dict.fromkeys(("prefill", "step"), (np.float64, 2)),
    **dict.fromkeys(
        (
            "params", "costs", "gap_sums", "gap_counts", "seconds", "enqueued", "ttft_slo", "kv_free", "kv_capacity",
            "bound", "prefix_hit", "load", "cached", "sent",
        ),
        (np.float64, 1),
    ),
    "rules": (RULES, 1),
    "totals": (TOTALS, 1),
    "classes": (CLASSES, 1),
    "rows": (ROWS, 1),
    "sessions": (SESSION, 1),
    "workers": (WORKERS, 1),
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
