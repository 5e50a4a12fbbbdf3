"""Bind a new session to the decode worker with the most free KV memory (AMPD section 3, step 1).

Hand-worked example (test_policy_bindings.py): 500, 500 and 10 tokens free, need 100, sessions 2, 1, 0: the second.
"""

from collections.abc import Sequence

SOURCE = "AMPD, section 3, step 1"


def bind_kv_headroom(need: float, kv_free: Sequence[float], sessions: Sequence[float]) -> int:
    """Return the worker with the most free KV tokens among those with room for ``need``, -1 without one.

    Ties go to the worker with fewest sessions, then to the first.
    """
    best = -1
    for i in range(len(kv_free)):
        if kv_free[i] < need:
            continue
        if best < 0 or kv_free[i] > kv_free[best] or (kv_free[i] == kv_free[best] and sessions[i] < sessions[best]):
            best = i
    return best
