"""Bind a new session to the decode worker with the fewest active requests (book, Table 17-1).

Hand-worked example (test_policy_bindings.py): loads 3, 1, 1 with sessions 0, 5, 4: the third.
"""

from weft_core.policies.inputs import BindingInputs
from weft_core.policies.policy import BindingPolicy


def bind_least_requests(inputs: BindingInputs) -> int:
    """Return the least loaded worker with room, ties by fewest sessions, then the first; -1 without one."""
    load, sessions = inputs.load, inputs.sessions
    best = -1
    for i in range(len(load)):
        if inputs.kv_free[i] < inputs.needed_kv:
            continue
        if best < 0 or load[i] < load[best] or (load[i] == load[best] and sessions[i] < sessions[best]):
            best = i
    return best


POLICY = BindingPolicy(
    "least-requests", "fewest active requests", "AI systems performance engineering, chapter 17, Table 17-1",
    bind_least_requests,
)  # fmt: skip
