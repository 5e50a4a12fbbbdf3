"""Bind new sessions to the decode workers in turn (TensorRT-LLM, Neuron; book, Table 17-1).

A worker without room is passed over. Hand-worked example (test_policy_bindings.py): three workers, the second full,
cursor 1: the third.
"""

from weft_core.policies.inputs import BindingInputs
from weft_core.policies.policy import BindingPolicy


def bind_round_robin(inputs: BindingInputs) -> int:
    """Return the first worker with room from ``cursor`` on, -1 without one; the caller sets the cursor behind it."""
    workers = len(inputs.kv_free)
    for k in range(workers):
        i = (inputs.cursor + k) % workers
        if inputs.kv_free[i] >= inputs.needed_kv:
            return i
    return -1


POLICY = BindingPolicy(
    "round-robin", "in turn", "TensorRT-LLM disaggregated serving; Neuron disaggregated inference", bind_round_robin
)
