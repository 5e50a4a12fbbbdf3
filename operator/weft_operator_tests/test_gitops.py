"""What deployment tools conclude from real statuses: Argo CD by its Lua, Flux and kapply by kstatus."""

from collections.abc import Mapping
from typing import Any

import pytest

from weft_operator.api.conditions import ConditionValue
from weft_operator.api.objects import Manifest
from weft_operator.api.service import GROUP, KIND, VERSION
from weft_operator.api.status import Status
from weft_operator.kube.diff import Apply, diff, stamped
from weft_operator.kube.field_managers import manager_of
from weft_operator.status.conditions import build_status
from weft_operator.status.events import status_events
from weft_operator.status.kstatus import FOR_PEOPLE, RETRIED
from weft_operator.status.reasons.planned import PLANNED
from weft_operator.status.results import PlanResult, ServiceResult
from weft_operator_tests.argocd import checks, health
from weft_operator_tests.kstatus_rules import kstatus
from weft_operator_tests.samples import KEY
from weft_operator_tests.service_results import with_parts
from weft_operator_tests.test_status import NOW, result

REFUSED = ConditionValue("False", "TooFewGpus", "16 GPUs are asked for and there are 8")
PLANNING = ConditionValue("Unknown", "Planning", "the planner is at work")


def service(found: ServiceResult, *, before: Mapping[str, Any] | None = None, generation: int = 3) -> Manifest:
    """Return a service with the status that the operator writes."""
    status = build_status(found, before or {}, now=NOW)
    Status.model_validate(status)
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": "demo", "generation": generation},
        "status": status,
    }


def of(planned: ConditionValue, **parts: Any) -> ServiceResult:
    return with_parts(result(**parts), planned=planned)


SERVED = service(result())
CASES: tuple[tuple[str, Manifest, str, str], ...] = (
    ("serving", SERVED, "Healthy", "Current"),
    ("a new spec nobody has seen", service(result(), generation=4), "Progressing", "InProgress"),
    (
        "the planner at work on a new spec",
        service(of(PLANNING), before=SERVED["status"] | {"observedGeneration": 2}),
        "Progressing",
        "InProgress",
    ),
    ("the first plan", service(ServiceResult(KEY, 3, PlanResult(None, PLANNING))), "Progressing", "InProgress"),
    ("pods on their way", service(result("110")), "Progressing", "InProgress"),
    ("refused, with nothing before", service(ServiceResult(KEY, 3, PlanResult(None, REFUSED))), "Degraded", "Failed"),
    ("refused, and the plan before serves", service(of(REFUSED)), "Degraded", "Failed"),
    ("waiting for a person", service(of(ConditionValue("False", "AwaitingApproval", "read it"))), "Healthy", "Current"),
    (
        "an object refused",
        service(result(failure=ConditionValue("False", "ApplyFailed", "422 from the API server"))),
        "Degraded",
        "Failed",
    ),
)


@pytest.mark.parametrize(("manifest", "argo", "flux"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_tools_agree_on_a_service(manifest: Manifest, argo: str, flux: str) -> None:
    assert health(manifest)[0] == argo
    assert kstatus(manifest) == flux


def test_a_refusal_is_reported_with_its_words() -> None:
    status, message = health(service(of(REFUSED)))
    assert (status, message) == ("Degraded", f"TooFewGpus: {REFUSED.message}")


def test_nothing_is_healthy_before_the_first_pass() -> None:
    bare = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": "demo", "generation": 1}}
    assert health(bare)[0] == "Progressing"


@pytest.mark.parametrize("reason", sorted(set(PLANNED) - {"Planning"}))
def test_every_refusal_of_a_spec_is_a_failure_and_every_wait_for_a_person_is_none(reason: str) -> None:
    found = kstatus(service(of(ConditionValue("False", reason, "words"))))
    waits = "Current" if reason in FOR_PEOPLE else "InProgress" if reason in RETRIED else "Failed"
    assert found == waits


def test_stalled_and_reconciling_are_never_both_true() -> None:
    for _, manifest, _, _ in CASES:
        truth = {item["type"]: item["status"] for item in manifest["status"]["conditions"]}
        assert (truth["Stalled"], truth["Reconciling"]) != ("True", "True")


GROUP_OBJECT: Manifest = {
    "apiVersion": f"{GROUP}/{VERSION}",
    "kind": "WorkerGroup",
    "metadata": {"name": "demo-p4", "generation": 2},
}


@pytest.mark.parametrize(
    ("seen", "ready", "argo", "flux"),
    [
        (2, "True", "Healthy", "Current"),
        (2, "False", "Progressing", "InProgress"),
        (1, "True", "Progressing", "InProgress"),
    ],
)
def test_tools_agree_on_a_group(seen: int, ready: str, argo: str, flux: str) -> None:
    conditions = [{"type": "Ready", "status": ready, "message": "2 of 2 workers"}]
    manifest = {**GROUP_OBJECT, "status": {"observedGeneration": seen, "conditions": conditions}}
    assert health(manifest)[0] == argo
    assert kstatus(manifest) == flux


def test_a_profile_is_healthy_as_it_is() -> None:
    profile = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "CostProfile", "metadata": {"name": "measured"}}
    assert (health(profile)[0], kstatus(profile)) == ("Healthy", "Current")
    assert {name.partition("_")[2] for name in checks()} == {KIND, "WorkerGroup", "CostProfile"}


# A hand edit is put back, and the event says whose it was.

CHILD: Manifest = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "demo", "namespace": "default", "labels": {"app.kubernetes.io/name": "weft"}},
    "spec": {
        "replicas": 2,
        "template": {"spec": {"containers": [{"name": "router", "image": "weft-router:1", "args": ["router"]}]}},
    },
}


def entry(manager: str, fields: Manifest, time: str, **more: str) -> Manifest:
    return {"manager": manager, "operation": "Update", "time": time, "fieldsV1": fields, **more}


_ROUTER = 'k:{"name":"router"}'
MANAGED = [
    entry("weft-operator", {"f:spec": {"f:template": {}}}, "2026-01-01T00:00:00Z"),
    entry("kubectl-edit", {"f:spec": {"f:replicas": {}}}, "2026-01-01T01:00:00Z"),
    entry(
        "helm",
        {"f:spec": {"f:template": {"f:spec": {"f:containers": {_ROUTER: {".": {}, "f:image": {}}}}}}},
        "2026-01-01T00:30:00Z",
    ),
    entry("kubectl-label", {"f:metadata": {"f:labels": {"f:app.kubernetes.io/name": {}}}}, "2026-01-01T00:10:00Z"),
    entry("kube-controller-manager", {"f:status": {"f:replicas": {}}}, "2026-01-02T00:00:00Z", subresource="status"),
]


@pytest.mark.parametrize(
    ("path", "manager"),
    [
        ("spec.replicas", "kubectl-edit"),
        ("spec.template.spec.containers[router].image", "helm"),
        ("metadata.labels.app.kubernetes.io/name", "kubectl-label"),
        ("spec.template.spec.containers[router].args", "kubectl-edit"),  # removed: the one who wrote last
    ],
)
def test_the_manager_of_a_changed_field_is_found(path: str, manager: str) -> None:
    live = {**CHILD, "metadata": {**CHILD["metadata"], "managedFields": MANAGED}}
    assert manager_of(live, path) == manager


def test_a_hand_edit_is_put_back_and_the_event_names_the_manager() -> None:
    live = stamped(CHILD)
    live = {
        **live,
        "metadata": {**live["metadata"], "managedFields": MANAGED, "resourceVersion": "7", "uid": "u"},
        "spec": {**CHILD["spec"], "replicas": 5},
    }
    (action,) = diff([CHILD], [live], prunable=())
    assert isinstance(action, Apply)
    assert (action.manifest["spec"]["replicas"], action.by) == (2, "kubectl-edit")
    (event,) = status_events({}, {}, actions=[action])
    assert event.reason == "DriftCorrected"
    assert event.message == "Deployment demo was changed by kubectl-edit (drifted: spec.replicas) and is put back"


def test_nobody_is_named_where_the_api_server_tells_nothing() -> None:
    live = {**stamped(CHILD), "spec": {**CHILD["spec"], "replicas": 5}}
    (action,) = diff([CHILD], [live], prunable=())
    (event,) = status_events({}, {}, actions=[action])
    assert "was changed by hand (" in event.message
