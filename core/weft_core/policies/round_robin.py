"""Bind new sessions to the decode workers in turn (TensorRT-LLM, Neuron; book, Table 17-1).

A worker without room is passed over. Hand-worked example (test_policy_bindings.py): three workers, the second full,
cursor 1: the third.
"""

from collections.abc import Sequence

SOURCE = "TensorRT-LLM disaggregated serving; Neuron disaggregated inference"


def bind_round_robin(need: float, kv_free: Sequence[float], cursor: int) -> int:
    """Return the first worker with room from ``cursor`` on, -1 without one; the caller sets the cursor behind it."""
    workers = len(kv_free)
    for k in range(workers):
        i = (cursor + k) % workers
        if kv_free[i] >= need:
            return i
    return -1
