"""Send every prefill to the prefill worker that should finish it first: the plain rule that predictions must beat.

Join-the-shortest-queue by predicted seconds, Eq. (2) of AMPD. Where two or more prefill workers exist it does better
than Algorithm 1's random choice among workers with slack, and it needs no windowed statistics. Hand-worked example
(test_policy_simple.py): two queued tasks of 0.1 s against one of 0.9 s: the longer queue wins.
"""

from weft_core.policies.finish import first_to_finish
from weft_core.policies.inputs import RoutingInputs
from weft_core.policies.policy import RoutingPolicy


def route_remote_jsq(inputs: RoutingInputs) -> tuple[int, int]:
    """Decide: the least predicted finish, the first of equals; local when there is no prefill worker."""
    return first_to_finish(inputs)


POLICY = RoutingPolicy(
    "remote-jsq", "the prefill worker that should finish first", "baseline; AMPD, Eq. (2)", route_remote_jsq,
    predicts=True,
)  # fmt: skip
