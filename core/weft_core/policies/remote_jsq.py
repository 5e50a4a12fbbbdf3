"""Send every prefill to the prefill worker that should finish it first: the plain rule that predictions must beat.

Join-the-shortest-queue by predicted seconds, Eq. (2) of AMPD. Where two or more prefill workers exist it does better
than Algorithm 1's random choice among workers with slack, and it needs no windowed statistics. Hand-worked example
(test_policy_simple.py): two queued tasks of 0.1 s against one of 0.9 s: the longer queue wins.
"""

from collections.abc import MutableSequence, Sequence

from weft_core.policies.finish import first_to_finish
from weft_core.policies.parameter import Parameter

SOURCE = "baseline; AMPD, Eq. (2)"
PARAMETERS: tuple[Parameter, ...] = ()
PARAMS: tuple[float, ...] = (0.0,)
"""A rule without parameters still gets one place: an empty sequence has no type to compile for."""


def route_remote_jsq(remote: Sequence[float], workers: int, costs: MutableSequence[float]) -> tuple[int, int]:
    """Decide: the least predicted finish, the first of equals; local when there is nobody else."""
    return first_to_finish(remote, workers, costs)
