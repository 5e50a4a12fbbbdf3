"""Run every prefill where the session decodes, in layouts whose workers all do both; reports name what was run.

A worker's prefills delay its sessions more than a lack of KV memory does, so new sessions go to the worker with the
fewest requests.
"""

from weft_core.policies.inputs import LOCAL, RoutingInputs
from weft_core.policies.policy import RoutingPolicy
from weft_core.policies.reasons import reason

COLOCATED = reason("colocated", "prefill and decode share their workers")


def route_colocated(inputs: RoutingInputs) -> tuple[int, int]:  # noqa: ARG001 - every policy takes them
    """Decide: the one worker that the session has."""
    return LOCAL, COLOCATED


POLICY = RoutingPolicy(
    "colocated", "no disaggregation", "vLLM without disaggregation", route_colocated,
    order="moore-hodgson", binding="least-requests",
)  # fmt: skip
