"""Bind a new session to the decode worker with the most KV memory to spare (AMPD section 3, step 1).

Headroom is the share of a worker's own KV memory that stays free once the session's tokens are in it. Among like
workers that is the order of free tokens, as the paper has it; among unlike ones free tokens alone would give every
session to the largest worker until it is down to what a small one has in total, while the small ones idle. Hand-worked
example (test_policy_bindings.py): 500, 500 and 10 of 1,000 tokens free, need 100, sessions 2, 1, 0: the second. 500 of
1,000 against 600 of 4,000 free: the first keeps 40 %, the second 12.5 %.
"""

SOURCE = "AMPD, section 3, step 1"


def headroom(need: float, kv_free: float, kv_capacity: float) -> float:
    """Return the share of a worker's KV memory that is free once ``need`` tokens are taken."""
    return (kv_free - need) / max(kv_capacity, 1.0)


def bind_kv_headroom(need: float, kv_free: list[float], kv_capacity: list[float], sessions: list[float]) -> int:
    """Return the worker with the most headroom among those with room for ``need``, -1 without one.

    Ties go to the worker with fewest sessions, then to the first. ``headroom`` is written out: every new session asks.
    """
    best = -1
    most = 0.0
    for i in range(len(kv_free)):
        free = kv_free[i]
        if free < need:
            continue
        capacity = kv_capacity[i]
        spare = (free - need) / (capacity if capacity > 1.0 else 1.0)
        if best < 0 or spare > most or (spare == most and sessions[i] < sessions[best]):
            best = i
            most = spare
    return best
