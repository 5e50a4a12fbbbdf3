"""Bind a new session to the decode worker with the most KV memory to spare (AMPD section 3, step 1).

Headroom is the share of a worker's own KV memory that stays free once the session's tokens are in it. Among like
workers that is the order of free tokens, as the paper has it; among unlike ones free tokens alone would give every
session to the largest worker until it is down to what a small one has in total, while the small ones idle. Hand-worked
example (test_policy_bindings.py): 500, 500 and 10 of 1,000 tokens free, 100 needed, sessions 2, 1, 0: the second. 500
of 1,000 against 600 of 4,000 free: the first keeps 40 %, the second 12.5 %.
"""

import math

from weft_core.policies.inputs import BindingInputs
from weft_core.policies.policy import BindingPolicy


def headroom(inputs: BindingInputs, worker: int) -> float:
    """Return the share of a worker's KV memory that is free once the session's tokens are taken."""
    return (inputs.kv_free[worker] - inputs.needed_kv) / max(inputs.kv_capacity[worker], 1.0)


def bind_kv_headroom(inputs: BindingInputs) -> int:
    """Return the worker with the most headroom among those with room, -1 without one.

    Ties go to the worker with fewest sessions, then to the first.
    """
    best = -1
    most = -math.inf
    for i in range(len(inputs.kv_free)):
        if inputs.kv_free[i] < inputs.needed_kv:
            continue
        spare = headroom(inputs, i)
        if spare > most or (spare == most and inputs.sessions[i] < inputs.sessions[best]):
            best = i
            most = spare
    return best


POLICY = BindingPolicy("kv-headroom", "most free KV memory", "AMPD, section 3, step 1", bind_kv_headroom)
