"""The PromQL queries for ``spec.planning.triggers``: each is one mean over the workers of a role and over a window."""

from collections.abc import Sequence
from dataclasses import dataclass

from weft_core.layouts import Role
from weft_operator.api.triggers import TriggerMetric

BATCH = "vllm:num_requests_running|sglang:num_running_reqs|trtllm_num_requests_running"
"""How engines call the sequences that they run."""

TRIGGER = "trigger_"
"""How the names of triggers' figures begin."""

STEPS = 12
"""Points of a window at which a mean is taken, where scrapes allow it."""


@dataclass(frozen=True, slots=True)
class TriggerWindow:
    """A metric and the seconds over which it is asked for."""

    metric: TriggerMetric
    window_s: int


def figure_of(metric: TriggerMetric) -> str:
    """Return the name of a trigger's figure in results."""
    return f"{TRIGGER}{metric}"


UNCOUNTED = frozenset({figure_of("PrefillQueue"), figure_of("DecodeKVUse")}) | {
    figure_of("PrefillGPUUtilization"), figure_of("DecodeGPUUtilization"),
}  # fmt: skip
"""Figures that are the same however many jobs scrape a pod: they are maxima or means of its series."""


def trigger_queries(
    triggers: Sequence[TriggerWindow], *, scope: str, namespace: str, kv_use: str, matchers: Sequence[str] = ()
) -> dict[str, str]:
    """Return the queries by figure. ``scope`` selects the service's series, ``kv_use`` is a pattern of metrics' names.

    GPUs' series have the label of a pod and none of a service: ``namespace`` and ``matchers`` select them. Pods with a
    router from before roles could change have no series of their role; their component names it.
    """
    found = {}
    for one in triggers:
        role: Role = "prefill" if one.metric.startswith("Prefill") else "decode"
        in_force = f'max by (pod) (weft_router_role{{{scope},role=~"{role}|both"}}) > 0'
        of_component = f'max by (pod) (weft_router_tasks{{{scope},component="{role}"}})'
        workers = f"{in_force} or on (pod) {of_component}"
        mean = f"avg({_of_pods(one.metric, scope, namespace, kv_use, matchers)} and on (pod) ({workers}))"
        step = max(5, one.window_s // STEPS)
        found[figure_of(one.metric)] = f"avg_over_time(({mean})[{one.window_s}s:{step}s])"
    return found


def _of_pods(metric: TriggerMetric, scope: str, namespace: str, kv_use: str, matchers: Sequence[str]) -> str:
    """Return the query for the metric of each pod."""
    if metric == "PrefillQueue":
        return f"max by (pod) (weft_router_queue_length{{{scope}}})"
    if metric == "DecodeBatch":
        return f'sum by (pod) ({{{scope},__name__=~"{BATCH}"}})'
    if metric == "DecodeKVUse":
        return f'max by (pod) ({{{scope},__name__=~"{kv_use}"}})'
    # With honorLabels the exporter's own labels name the pod that has the GPU, otherwise those with exported_ do.
    own = ",".join((f"namespace={namespace}", *matchers))
    other = ",".join((f"exported_namespace={namespace}", *matchers))
    by_exporter = f'label_replace(DCGM_FI_DEV_GPU_UTIL{{{other}}}, "pod", "$1", "exported_pod", "(.+)")'
    gpus = f"DCGM_FI_DEV_GPU_UTIL{{{own}}} or {by_exporter}"
    return f"avg by (pod) ({gpus}) / 100"
