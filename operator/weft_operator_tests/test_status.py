"""The status follows from the result of a pass, and only from it."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, settings

from weft_core.plan import Alternative, Plan, Prediction, plan_from_json, plan_to_json
from weft_core.shortfall import Remedy, Shortfall
from weft_core_tests.property_tests import examples
from weft_core_tests.test_plan import plans
from weft_operator.api.conditions import ConditionValue
from weft_operator.api.status import PlanStatus, Status
from weft_operator.render.inputs import PlanRecord
from weft_operator.status.conditions import build_status
from weft_operator.status.events import status_events
from weft_operator.status.plan_status import plan_diff, plan_status
from weft_operator.status.results import PlanResult, ServiceResult
from weft_operator.workers.fleet import Worker
from weft_operator.workers.readiness import (
    CoordinatorState,
    PickerState,
    WorkerState,
    coordinator_state,
    picker_state,
    stuck_workers,
    worker_states,
)
from weft_operator_tests.samples import KEY, group, plan, record
from weft_operator_tests.service_results import with_parts
from weft_operator_tests.valid import changed, picker_service
from weft_planner.request.manifest_change import manifest_change

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"
PLANNED = ConditionValue("True", "PlanReady", "fine")
WORKERS = (
    Worker(role="decode", degree=8, index=0, pool="h20"),
    Worker(role="prefill", degree=4, index=0, pool="h20"),
    Worker(role="prefill", degree=4, index=1, pool="h20"),
)


NO_MODEL = """\
  File "/models/venv/lib/python3.11/site-packages/huggingface_hub/utils/_validators.py", line 133, in validate_repo_id
    raise HFValidationError(
huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': \
'/models/none'. Use `repo_type` argument if needed.
"""


def result(ready: str = "111", *, coordinator: bool = True, rolled_out: bool = True, **parts: Any) -> ServiceResult:
    states = tuple(
        WorkerState(
            worker, worker.name("demo"), flag == "1", "" if flag == "1" else f"pod of {worker.name('demo')} is sick"
        )
        for worker, flag in zip(WORKERS, ready, strict=True)
    )
    return with_parts(
        ServiceResult(KEY, 3, PlanResult(record(), PLANNED)),
        states=states,
        coordinator=CoordinatorState(available=coordinator, rolled_out=rolled_out, trouble="container router waits"),
        **parts,
    )


def reasons(found: ServiceResult) -> tuple[str, str]:
    status = build_status(found, {}, now=NOW)
    Status.model_validate(status)
    return status["conditions"][1]["reason"], status["conditions"][2]["reason"]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (result(), ("Serving", "UpToDate")),
        (result("110"), ("Degraded", "RollingOut")),
        (result("100"), ("NoPrefillWorker", "RollingOut")),
        (result("011"), ("NoDecodeWorker", "RollingOut")),
        (result("100", served=frozenset({"prefill", "decode"})), ("Degraded", "RollingOut")),
        (result("100", served=frozenset({"decode"})), ("NoPrefillWorker", "RollingOut")),
        (result(coordinator=False, rolled_out=False), ("CoordinatorNotReady", "RollingOut")),
        (result(rolled_out=False), ("Serving", "RollingOut")),
        (result(picker=PickerState(available=True, rolled_out=False)), ("Serving", "RollingOut")),
        (result(picker=PickerState(available=False, rolled_out=False)), ("EndpointPickerNotReady", "RollingOut")),
        (result("110", picker=PickerState(available=False, rolled_out=True)), ("EndpointPickerNotReady", "RollingOut")),
        (result(leaving=("demo-p4-9",)), ("Serving", "RollingOut")),
        (result("110", lost=("demo-p4-0",)), ("Degraded", "ReplacingWorkers")),
        (result(failure=ConditionValue("False", "ApplyFailed", "422")), ("Serving", "ApplyFailed")),
        (
            ServiceResult(KEY, 1, PlanResult(None, ConditionValue("False", "TooFewGpus", "2"))),
            ("NotPlanned", "WaitingForPlan"),
        ),
    ],
)
def test_reasons(found: ServiceResult, expected: tuple[str, str]) -> None:
    assert reasons(found) == expected


def test_a_worker_without_a_node_is_reported_by_the_scheduler() -> None:
    found = result("110")
    sick = dataclasses.replace(
        found.workers.states[2], unschedulable=True, trouble="pod demo-p4-1-0 cannot be scheduled: no GPU"
    )
    status = build_status(with_parts(found, states=(*found.workers.states[:2], sick)), {}, now=NOW)
    assert status["conditions"][2]["reason"] == "Unschedulable"
    assert "no GPU" in status["conditions"][2]["message"]
    assert "missing: demo-p4-1; pod demo-p4-1-0" in status["conditions"][1]["message"]


def test_times_change_with_the_status_only() -> None:
    before = build_status(result("110"), {}, now=NOW)
    after = build_status(result("100"), before, now=LATER)
    assert {item["lastTransitionTime"] for item in after["conditions"]} == {NOW}
    served = build_status(result(), after, now=LATER)
    changed = {item["type"] for item in served["conditions"] if item["lastTransitionTime"] == LATER}
    assert changed == {"Ready", "Progressing", "Reconciling"}
    assert build_status(result(), served, now="2027-01-01T00:00:00Z") == served


def test_a_start_is_no_trouble_and_an_outage_is() -> None:
    def told(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str]]:
        return [(event.type, event.reason) for event in status_events(before, after, actions=())]

    unplanned = ServiceResult(KEY, 1, PlanResult(None, ConditionValue("Unknown", "Planning", "the planner is at work")))
    asked = build_status(unplanned, {}, now=NOW)
    begun = build_status(result("000"), asked, now=LATER)
    assert told(asked, begun) == [("Normal", "PlanReady"), ("Normal", "NoPrefillWorker")]
    nearly = build_status(result("110"), begun, now=LATER)
    assert told(begun, nearly) == [("Normal", "Degraded")]
    serves = build_status(result(), nearly, now=LATER)
    assert told(nearly, serves) == [("Normal", "Serving")]
    hurt = build_status(result("110"), serves, now="2026-01-01T02:00:00Z")
    assert told(serves, hurt) == [("Warning", "Degraded")]
    assert told(hurt, build_status(result("011"), hurt, now="2026-01-01T03:00:00Z")) == [("Warning", "NoDecodeWorker")]


def test_a_load_beyond_the_capacity_has_no_figures() -> None:
    found = result()
    assert found.plan.record is not None
    predicted = Prediction(math.inf, 0.02, math.inf, 0.02, gpus=16, slo_met=False)
    plan = dataclasses.replace(found.plan.record.plan, predicted=predicted)
    status = build_status(with_parts(found, record=dataclasses.replace(found.plan.record, plan=plan)), {}, now=NOW)
    Status.model_validate(status)
    assert status["plan"]["predicted"] == {
        "itlP95": 0.02,
        "itlMean": 0.02,
        "sloMet": False,
        "source": "phases",
    }
    assert (status["sloSummary"], status["ttftSummary"]) == ("missed", "unbounded")


def test_an_undocumented_reason_is_a_bug() -> None:
    with pytest.raises(LookupError, match=r"Surprise is not in weft_operator\.status\.reasons"):
        build_status(result(failure=ConditionValue("False", "Surprise", "")), {}, now=NOW)


def pod(name: str, revision: str, *, ready: bool = True, **status: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}, *status.pop("conditions", ())]
    labels = {"weft.dev/worker": name, "controller-revision-hash": revision}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{name}-0", "uid": "u", "labels": labels},
        "status": {"conditions": conditions, **status},
    }


def statefulset(name: str, revision: str, *, seen: int = 1, nodes: int = 1) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "generation": 1},
        "spec": {"replicas": nodes},
        "status": {"observedGeneration": seen, "updateRevision": revision},
    }


def state(
    statefulsets: list[dict[str, Any]], pods: list[dict[str, Any]], changed: frozenset[str] = frozenset()
) -> WorkerState:
    (found,) = worker_states("demo", WORKERS[:1], statefulsets=statefulsets, pods=pods, changed=changed)
    return found


def test_a_worker_is_ready_at_the_newest_template_only() -> None:
    name = "demo-d8-0"
    assert state([statefulset(name, "b")], [pod(name, "b")]).ready
    assert not state([statefulset(name, "b")], [pod(name, "a")]).ready
    assert not state([statefulset(name, "b", seen=0)], [pod(name, "b")]).ready
    assert not state([statefulset(name, "b")], [pod(name, "b")], frozenset({name})).ready
    assert not state([], [pod(name, "b")]).ready
    terminating = pod(name, "b")
    terminating["metadata"]["deletionTimestamp"] = NOW
    assert not state([statefulset(name, "b")], [terminating]).ready


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no GPU"}]},
            "cannot be scheduled: no GPU",
        ),
        (
            {
                "containerStatuses": [
                    {"name": "engine", "image": "x:1", "state": {"waiting": {"reason": "ErrImagePull"}}}
                ]
            },
            "x:1",
        ),
        (
            {
                "initContainerStatuses": [
                    {
                        "name": "router",
                        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
                        "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
                    }
                ]
            },
            "keeps ending: OOMKilled, exit code 137; see its log",
        ),
        (
            {
                "containerStatuses": [
                    {
                        "name": "engine",
                        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
                        "lastState": {"terminated": {"reason": "Error", "exitCode": 1, "message": NO_MODEL}},
                    }
                ]
            },
            "exit code 1; there is no model at /models/none; correct spec.model.source.pvc.path",
        ),
        ({"containerStatuses": [{"name": "engine", "state": {"waiting": {"reason": "PodInitializing"}}}]}, ""),
        (
            {"containerStatuses": [{"name": "e", "state": {"waiting": {"reason": "CreateContainerConfigError"}}}]},
            "waits: Cr",
        ),
    ],
)
def test_what_keeps_a_worker_is_said_in_stable_words(status: dict[str, Any], words: str) -> None:
    name = "demo-d8-0"
    found = state([statefulset(name, "b")], [pod(name, "b", ready=False, **status)])
    assert words in found.trouble
    assert bool(words) == bool(found.trouble)


def test_only_workers_with_a_broken_pod_of_an_old_template_are_stuck() -> None:
    sets = [statefulset("w", "b")]
    assert stuck_workers(sets, [pod("w", "a", ready=False)])
    assert not stuck_workers(sets, [pod("w", "a")])
    assert not stuck_workers(sets, [pod("w", "b", ready=False)])
    assert not stuck_workers([statefulset("w", "b", seen=0)], [pod("w", "a", ready=False)])
    assert not stuck_workers([], [pod("w", "a", ready=False)])
    several = [statefulset("w", "b", nodes=2)]
    assert not stuck_workers(several, [pod("w", "a", ready=False)]), "all its pods are updated at once, by the operator"


@pytest.mark.parametrize(
    ("total", "updated", "available", "serves", "done"),
    [
        (2, 2, 2, True, True),
        (3, 1, 2, False, False),
        (3, 2, 2, True, False),
        (2, 2, 1, True, False),
        (0, 0, 0, False, False),
    ],
)
def test_the_coordinator_serves_with_a_pod_of_the_newest_template(
    total: int, updated: int, available: int, serves: bool, done: bool
) -> None:
    status = {"observedGeneration": 1, "replicas": total, "updatedReplicas": updated, "availableReplicas": available}
    deployment = {"metadata": {"name": "demo", "generation": 1}, "spec": {"replicas": 2}, "status": status}
    found = coordinator_state(deployment, (), changed=False)
    assert (found.available, found.rolled_out) == (serves, done)
    assert not coordinator_state(deployment, (), changed=True).available
    assert not coordinator_state(None, (), changed=False).available


def deployment(available: int, progress: str | None, *, seen: int = 2) -> dict[str, Any]:
    """Return a Deployment of one pod; ``progress`` is the reason of its condition Progressing."""
    status = "False" if progress == "ProgressDeadlineExceeded" else "True"
    conditions = [] if progress is None else [{"type": "Progressing", "status": status, "reason": progress}]
    counts = {"replicas": 1, "updatedReplicas": 1, "availableReplicas": available}
    return {
        "metadata": {"name": "demo-picker", "generation": 2},
        "spec": {"replicas": 1},
        "status": {"observedGeneration": seen, "conditions": conditions, **counts},
    }


SICK = {
    "metadata": {"name": "demo-picker-x"},
    "status": {
        "containerStatuses": [
            {
                "name": "router",
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 2}},
            }
        ]
    },
}


@pytest.mark.parametrize(
    ("found", "pods", "changed", "available"),
    [
        (None, (), False, True),
        (deployment(0, None), (), False, True),
        (deployment(0, "NewReplicaSetCreated"), (), False, True),
        (deployment(0, "ReplicaSetUpdated"), (), False, True),
        (deployment(0, "ReplicaSetUpdated"), (SICK,), False, False),
        (deployment(0, "ProgressDeadlineExceeded"), (), False, False),
        (deployment(0, "NewReplicaSetAvailable"), (), False, False),
        (deployment(0, "NewReplicaSetAvailable"), (), True, True),
        (deployment(0, "NewReplicaSetAvailable", seen=1), (), False, True),
        (deployment(1, "NewReplicaSetAvailable"), (), False, True),
        (deployment(1, "ReplicaSetUpdated", seen=1), (SICK,), True, True),
    ],
)
def test_pickers_are_missed_once_they_were_there_or_cannot_start(
    found: dict[str, Any] | None, pods: tuple[dict[str, Any], ...], changed: bool, available: bool
) -> None:
    assert picker_state(found, pods, changed=changed).available == available


@pytest.mark.parametrize(
    ("mode", "words"),
    [("FailClose", "the gateway refuses requests"), ("FailOpen", "the gateway sends requests to any worker")],
)
def test_without_pickers_the_status_says_what_the_gateway_does(mode: str, words: str) -> None:
    body = changed(picker_service(), "spec.gateway.failureMode", mode)
    lost = result(picker=picker_state(deployment(0, "ReplicaSetUpdated"), (SICK,), changed=False), record=record(body))
    before = build_status(result(), {}, now=NOW)
    after = build_status(lost, before, now=LATER)
    ready = after["conditions"][1]
    assert (ready["status"], ready["reason"]) == ("False", "EndpointPickerNotReady")
    assert words in ready["message"]
    assert "container router of pod demo-picker-x keeps ending" in ready["message"]
    (event,) = [one for one in status_events(before, after, actions=()) if one.reason == "EndpointPickerNotReady"]
    assert event.type == "Warning"
    started = build_status(lost, {}, now=NOW)
    assert [one.type for one in status_events({}, started, actions=()) if one.reason == "EndpointPickerNotReady"] == [
        "Normal"
    ], "a service that was never ready starts"


@settings(max_examples=examples(100))
@given(plans())
def test_whatever_a_plan_has_is_declared_in_the_schema(made: Plan) -> None:
    """The API server refuses a whole status for one field that the schema does not declare."""
    PlanStatus.model_validate(plan_status(dataclasses.replace(record(), plan=made)))


def test_what_would_hold_the_slo_is_in_the_words_of_a_manifest() -> None:
    changes = (Remedy("slo.itl", 0.0412), Remedy("capacity.gpus", 24), Remedy("budgetPerHour", None))
    shown = plan_status(with_shortfall("itl is too slow", changes))
    assert shown["shortfall"]["remedies"] == [
        {"path": "spec.slo.itl", "value": "41.2ms"},
        {"path": "spec.capacity.gpus", "value": "24"},
        {"path": "spec.planning.budgetPerHour"},
    ]
    read = plan_from_json({**plan_to_json(plan()), **shown}).shortfall
    assert read is not None
    assert manifest_change(read.remedies[0]) == ("spec.slo.itl", "41.2ms"), "a status is read as a plan"


def test_long_texts_of_a_shortfall_are_cut() -> None:
    changes = (Remedy("engine.chunked", True), *(Remedy("engine.type", "x" * 5000),) * 20)
    shown = plan_status(with_shortfall("m" * 5000, changes))
    PlanStatus.model_validate(shown)
    assert len(shown["shortfall"]["remedies"]) == 16
    assert shown["shortfall"]["remedies"][0]["value"] == "true"


def with_shortfall(message: str, remedies: tuple[Remedy, ...]) -> PlanRecord:
    shortfall = Shortfall("itl", message, 1.0, 0.05, 24, remedies)
    return dataclasses.replace(record(), plan=dataclasses.replace(plan(), shortfall=shortfall))


def test_figures_of_two_plans_stand_side_by_side_only_at_the_same_traffic() -> None:
    old, new = plan(group("decode", 8, 1)), plan(group("decode", 8, 2))
    alone = plan_diff(old, new)
    assert alone[0] == "decode workers of 8 GPUs in h20: 1 -> 2"
    assert alone[-1] == "the other plan was not evaluated at the same traffic"
    assert "predicted TTFT: 944 ms" in alone
    assert not [line for line in alone if "?" in line]
    slower = dataclasses.replace(old.predicted, ttft_p95_s=2.0)
    judged = dataclasses.replace(new, alternatives=(Alternative(groups=old.groups, predicted=slower, score=1.0),))
    assert "predicted TTFT: 2 s -> 944 ms" in plan_diff(old, judged)
