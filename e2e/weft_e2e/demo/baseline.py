"""The baseline beside a replay: a class of requests whose prefills all run on prefill workers, on the same service.

A class changes where a prefill runs and nothing else: workers, queue order, SLO and sessions are the same.
"""

from collections.abc import Mapping
from typing import Any

from weft_core.plan import Alternative, Plan
from weft_e2e.replay.client import CLASS_HEADER

CLASS = "baseline"
POLICY = "remote-jsq"
"""The strongest rule without local prefill: to the prefill worker that should finish first."""

STEP = "Replay the same sessions as the baseline: every prefill remote, on the same workers"

SALT = 1
"""Its texts are others of the same lengths: the first replay must not have filled the prefix caches for it."""

_REMOTE_ONLY = ("always-remote", "remote-jsq")


def with_baseline(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec with the class of the baseline; one that has a class of this name keeps it."""
    routing = dict(spec.get("routing") or {})
    classes = list(routing.get("classes") or ())
    if not any(item.get("name") == CLASS for item in classes):
        classes.append({"name": CLASS, "policy": POLICY})
    return {**spec, "routing": {**routing, "classes": classes}}


def why_no_baseline(spec: Mapping[str, Any], plan: Plan) -> str:
    """Return why the baseline would be no other routing than the service's, "" where it is."""
    routing = spec.get("routing") or {}
    if plan.layout == "colocated":
        return "the plan has no prefill workers"
    if any(item["name"] == CLASS and item.get("policy") != POLICY for item in routing.get("classes") or ()):
        return f"the service has a class {CLASS} of its own"
    if (routing.get("qos") or {}).get("classHeader", CLASS_HEADER) != CLASS_HEADER:
        return f"the service's requests name their class in another header than {CLASS_HEADER}"
    chosen = plan.policy.mode if plan.policy is not None and plan.policy.route == "weft" else ""
    policy, mode = routing.get("policy") or "weft", routing.get("mode") or chosen
    if policy in _REMOTE_ONLY or (policy == "weft" and mode in _REMOTE_ONLY):
        return "every prefill of the service is remote already"
    return ""


def notes(why_not: str) -> tuple[str, ...]:
    """Say how the baseline was made, or why there is none."""
    if why_not:
        return (f"there is no baseline to compare with: {why_not}",)
    words = f"the baseline is a class of requests with policy {POLICY}, replayed after the service's own routing"
    return (f"{words}; workers, queue order and SLO are the same, and the texts others of the same lengths",)


def best_without_local(plan: Plan) -> Alternative | None:
    """Return the layout that carries most without local prefill, of those that the planner weighed."""
    remote = [
        other
        for other in plan.alternatives
        if other.runnable and other.policy is not None and {other.policy.route, other.policy.mode} & set(_REMOTE_ONLY)
    ]
    return max(remote, key=_carries, default=None)


def _carries(other: Alternative) -> float:
    return other.predicted.goodput.value if other.predicted.goodput is not None else 0.0
