"""GPUs that a measurement may use beside the workers. Pure."""

from weft_core.parallelism import gpus_of, parse_degree
from weft_operator.api.objects import DEGREE_LABEL, POOL_LABEL, labels_of
from weft_operator.api.planning import MeasureProfile
from weft_operator.kube.observe import Observed
from weft_operator.render.inputs import Rendering


def free_gpus(rendering: Rendering, observed: Observed, measure: MeasureProfile, pool: str) -> tuple[int, int]:
    """Return the GPUs that a measurement in a pool may use, and the limit of budget and pool."""
    budget, own = rendering.spec.capacity.gpus, rendering.pool(pool).gpus
    left = budget - _in_use(rendering, observed)
    if own is None:
        return measure.extra_gpus + left, budget
    return measure.extra_gpus + min(left, own - _in_use(rendering, observed, pool)), min(own, budget)


def _in_use(rendering: Rendering, observed: Observed, pool: str = "") -> int:
    """Return the GPUs, of a pool or of all, that the plan or existing workers use, whichever is more."""
    record = rendering.record
    groups = () if record.baseline.scaled_to_zero_at is not None else record.plan.groups
    planned = sum(group.gpus for group in groups if pool in ("", group.pool))
    # One StatefulSet is one worker, on however many nodes.
    existing = sum(
        gpus_of(parse_degree(labels_of(item)[DEGREE_LABEL]))
        for item in observed.workers
        if item["kind"] == "StatefulSet"
        and item["spec"].get("replicas")
        and DEGREE_LABEL in labels_of(item)
        and pool in ("", labels_of(item).get(POOL_LABEL))
    )
    return max(planned, existing)
