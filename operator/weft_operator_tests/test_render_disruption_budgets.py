"""Each pod of a service is in one disruption budget, whichever kind of workers its rendering has."""

import pytest

from weft_core.layouts import WORKER_ROLES
from weft_operator.api.objects import COMPONENT_LABEL, ROLE_LABEL, SERVICE_LABEL, WORKER_COMPONENT, Manifest
from weft_operator.render.inputs import Rendering
from weft_operator.render.objects import desired_objects
from weft_operator_tests.samples import HYBRID, TOKEN, rendered, rendering, with_both_roles
from weft_operator_tests.valid import service, sglang_service

RENDERINGS = {"fixed": rendering(sglang_service()), "changeable": with_both_roles(service(), *HYBRID)}


def chooses(selector: Manifest, labels: dict[str, str]) -> bool:
    """Return whether a label selector chooses something; NotIn also chooses what has no such label."""
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        (labels.get(need["key"]) in need["values"]) == (need["operator"] == "In")
        for need in selector.get("matchExpressions", ())
    )


def budgets_of(base: Rendering, labels: dict[str, str]) -> list[str]:
    """Return the names of the budgets that choose a pod."""
    budgets = [item for item in desired_objects(base, token=TOKEN) if item["kind"] == "PodDisruptionBudget"]
    return [item["metadata"]["name"] for item in budgets if chooses(item["spec"]["selector"], labels)]


@pytest.mark.parametrize("kind", sorted(RENDERINGS))
def test_workers_of_both_kinds_are_in_the_budget_of_their_role(kind: str) -> None:
    """While a rollout replaces workers with fixed roles, or is on the way back, both kinds serve."""
    base, service_label = RENDERINGS[kind], {SERVICE_LABEL: "demo"}
    for role in ("prefill", "decode"):
        assert budgets_of(base, {**service_label, COMPONENT_LABEL: role}) == [f"demo-{role}"]
    for one in WORKER_ROLES:
        role = "prefill" if one == "prefill" else "decode"
        labels = {**service_label, COMPONENT_LABEL: WORKER_COMPONENT, ROLE_LABEL: one}
        assert budgets_of(base, labels) == [f"demo-{role}"]
    assert budgets_of(base, {**service_label, COMPONENT_LABEL: "coordinator"}) == ["demo-coordinator"]
    assert budgets_of(base, {**service_label, COMPONENT_LABEL: "profile"}) == []
    assert budgets_of(base, {SERVICE_LABEL: "other", COMPONENT_LABEL: "decode"}) == []


@pytest.mark.parametrize("kind", sorted(RENDERINGS))
def test_every_pod_that_is_rendered_is_in_one_budget(kind: str) -> None:
    templates = [
        item["spec"]["template"]["metadata"]["labels"]
        for item in rendered(RENDERINGS[kind])
        if item["kind"] in ("StatefulSet", "Deployment")
    ]
    assert len(templates) > 2
    for labels in templates:
        assert len(budgets_of(RENDERINGS[kind], labels)) == 1
