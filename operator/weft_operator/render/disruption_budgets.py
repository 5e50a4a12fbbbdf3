"""PodDisruptionBudgets: a node drain takes one coordinator and one worker of each role at a time."""

from weft_core.layouts import ROLES, WORKER_ROLES, Role, duties_of
from weft_operator.api.objects import (
    COMPONENT_LABEL,
    PICKER_COMPONENT,
    ROLE_LABEL,
    SERVICE_LABEL,
    WORKER_COMPONENT,
    Manifest,
)
from weft_operator.render.inputs import Rendering


def disruption_budgets(rendering: Rendering) -> tuple[Manifest, ...]:
    """Return the budgets of coordinators and endpoint pickers, and one for each role.

    A pod may be in one budget only, so a worker that has both roles is in that of decode: it has sessions.
    """
    fronts = ("coordinator", PICKER_COMPONENT) if rendering.picked else ("coordinator",)
    return tuple(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": rendering.metadata(rendering.name(name), component),
            "spec": {
                "maxUnavailable": 1,
                # A pod that does not serve, as one whose engine cannot start, must hold up no drain of a node.
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": selector,
            },
        }
        for name, component, selector in (
            *((name, name, {"matchLabels": rendering.selector(name)}) for name in fronts),
            *((role, rendering.component(role), _workers(rendering, role)) for role in ROLES),
        )
    )


def _workers(rendering: Rendering, role: Role) -> Manifest:
    """Return the selector of a role's workers: those with the role in their component, and those with it in a label.

    A rollout from one kind to the other has both. Pods of the former have no such label, which NotIn matches.
    """
    others = [one for one in WORKER_ROLES if duties_of(one)[-1] != role]
    return {
        "matchLabels": {SERVICE_LABEL: rendering.key.name},
        "matchExpressions": [
            {"key": COMPONENT_LABEL, "operator": "In", "values": [role, WORKER_COMPONENT]},
            {"key": ROLE_LABEL, "operator": "NotIn", "values": others},
        ],
    }
