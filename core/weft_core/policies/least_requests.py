"""Bind a new session to the decode worker with the fewest active requests (book, Table 17-1).

Hand-worked example (test_policy_bindings.py): loads 3, 1, 1 with sessions 0, 5, 4: the third.
"""

from collections.abc import Sequence

SOURCE = "AI systems performance engineering, chapter 17, Table 17-1"


def bind_least_requests(need: float, kv_free: Sequence[float], sessions: Sequence[float], load: Sequence[float]) -> int:
    """Return the least loaded worker with room, ties by fewest sessions, then the first; -1 without one."""
    best = -1
    for i in range(len(kv_free)):
        if kv_free[i] < need:
            continue
        if best < 0 or load[i] < load[best] or (load[i] == load[best] and sessions[i] < sessions[best]):
            best = i
    return best
