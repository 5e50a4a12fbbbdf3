"""Simulate the prefill pool alone: k equal servers, each task to the one that frees first, decoding idealised."""

import heapq

import numpy as np

from weft_planner.workload.distributions import Floats
from weft_planner.workload.sessions import WARM_UP, Sample


def simulate_prefill(
    sample: Sample,
    starts: Floats,
    *,
    service: Floats,
    read: Floats,
    back: Floats,
    think: Floats,
    workers: int,
    warm_up: float = WARM_UP,
) -> Floats:
    """Return the TTFT of every round that begins in the observed window, in seconds.

    A task's history is read (``read``) while it waits, so an idle worker still waits for it; then the worker is
    busy for ``service``; ``back`` is the way of the new KV to the decode worker. ``think`` after it begins the
    session's next round. With known service times first-come-first-served queues joined by least remaining
    work are one queue with k servers, which is what is simulated.
    """
    rows = np.flatnonzero(starts >= 0)  # of every session those to come
    session = sample.session[rows]
    begins = np.append(True, session[1:] != session[:-1])
    last = np.append(begins[1:], True).tolist()
    events = [(float(starts[rows[row]]), row) for row in np.flatnonzero(begins).tolist()] if len(rows) else []
    heapq.heapify(events)
    free = [0.0] * workers
    begin, end = warm_up * sample.window, sample.window
    service_of, read_of = service[rows].tolist(), read[rows].tolist()
    back_of, think_of = back[rows].tolist(), think[rows].tolist()
    observed: list[float] = []
    pop, push, replace = heapq.heappop, heapq.heappush, heapq.heapreplace
    while events:
        now, row = pop(events)
        if now > end:
            break
        ready = now + read_of[row]
        idle = free[0]
        done = (idle if idle > ready else ready) + service_of[row]
        replace(free, done)
        first_token = done + back_of[row]
        if now >= begin:
            observed.append(first_token - now)
        if not last[row]:
            push(events, (first_token + think_of[row], row + 1))
    return np.array(observed)
