"""Send every prefill to the prefill worker that should finish it first: the plain rule that predictions must beat.

Join-the-shortest-queue by predicted seconds. Where two or more prefill workers exist it does better than
Algorithm 1's random choice among workers with slack, and it needs no windowed statistics.
"""

from collections.abc import Sequence

from weft_core.cost import CostProfile
from weft_core.policies.ampd_snapshot import remote_seconds
from weft_core.policies.snapshot import Decision, DecodeWorkerView, PrefillTask, PrefillWorkerView


def route(
    task: PrefillTask,
    *,
    decode: DecodeWorkerView,
    prefill: Sequence[PrefillWorkerView],
    profile: CostProfile,
) -> Decision:
    """Decide where a prefill runs: least t_remote of AMPD's Eq. (2), ties by name; local when there is no one else.

    Raises:
        CostProfileError: the profile lacks a worker's degree.
    """
    costs = {worker.worker: remote_seconds(task, decode, worker, profile) for worker in prefill}
    if not costs:
        return Decision(remote=None, reason="no-prefill-worker")
    return Decision(remote=min(costs, key=lambda name: (costs[name], name)), reason="shortest-finish", costs=costs)
