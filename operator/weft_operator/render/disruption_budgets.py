"""PodDisruptionBudgets: a node drain takes one pod of each component at a time."""

from weft_operator.api.objects import Manifest
from weft_operator.render.inputs import ROLES, Rendering


def disruption_budgets(rendering: Rendering) -> tuple[Manifest, ...]:
    """Return one budget per component."""
    return tuple(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": rendering.metadata(rendering.name(component), component),
            "spec": {
                "maxUnavailable": 1,
                # A pod that does not serve, as one whose engine cannot start, must hold up no drain of a node.
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": {"matchLabels": rendering.selector(component)},
            },
        }
        for component in ("coordinator", *ROLES)
    )
