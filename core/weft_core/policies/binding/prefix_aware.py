"""Bind a new session to the decode worker that holds most of its prompt in its prefix cache (book, Table 17-1).

What of a hit is in GPU memory needs no room there; what a tier has saves less time, and counts for less. Without any
hit, and among equal hits, headroom decides. Hand-worked example (test_policy_bindings.py): hits 0, 300, 300, free 900,
400, 500 of 1,000: the third.
"""

from weft_core.policies.binding.kv_headroom import headroom
from weft_core.policies.inputs import BindingInputs
from weft_core.policies.policy import BindingPolicy


def bind_prefix_aware(inputs: BindingInputs) -> int:
    """Return the worker with the longest hit, in tokens, among those with room for the rest, -1 without one."""
    hits, sessions = inputs.prefix_hit, inputs.sessions
    best = -1
    most = 0.0
    for i in range(len(hits)):
        if inputs.kv_free[i] < inputs.needed_kv - inputs.in_memory[i]:
            continue
        spare = headroom(inputs, i)
        if (
            best < 0
            or hits[i] > hits[best]
            or (hits[i] == hits[best] and (spare > most or (spare == most and sessions[i] < sessions[best])))
        ):
            best = i
            most = spare
    return best


POLICY = BindingPolicy(
    "prefix-aware", "most of the prompt in the prefix cache",
    "AI systems performance engineering, chapter 17, Table 17-1", bind_prefix_aware, reads_prefix_hits=True,
)  # fmt: skip
