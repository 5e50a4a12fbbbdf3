"""The checks of replanning fail when what they look for is wrong, and sessions arrive as they are told to."""

import copy
import time
from typing import Any

import pytest

from weft_core.plan import plan_from_json
from weft_e2e.checks import CheckFailed, check_condition, check_left_alone, check_proposed, check_replanned
from weft_e2e.checks.plans import running
from weft_e2e.kube import Object
from weft_e2e.replay.client import SessionTranscript, Target
from weft_e2e.replay.sessions import PlannedRound, PlannedSession
from weft_e2e.scenarios import arriving as arriving_module
from weft_e2e.scenarios.arriving import Arrivals, Traffic, arriving
from weft_e2e.scenarios.blinding import FAULTS, NAMES
from weft_e2e.scenarios.replan_scenarios import SCENARIOS
from weft_e2e.scenarios.replanning import Approve, Blind, LeftAlone, Mend, Replanned
from weft_e2e.scenarios.resting import resting_service
from weft_e2e.scenarios.trying import tried_service
from weft_e2e.service import Service
from weft_e2e.waiting import until
from weft_e2e_tests.fake_kube import FakeKube
from weft_e2e_tests.test_service_checks import a_pod, a_service
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.status.reasons.metrics import METRICS_AVAILABLE


def shown(**status: Any) -> tuple[Service, Object]:
    body = a_service()
    body["status"] |= status
    child = {
        "kind": "StatefulSet",
        "metadata": {"name": "s-d1-0", "uid": "1", "labels": {"weft.dev/service": "s"}},
        "spec": {"replicas": 1},
    }
    record = {
        "kind": "ConfigMap",
        "metadata": {"name": "s-plan", "uid": "2", "labels": {"weft.dev/service": "s"}},
        "data": {"plan.json": "old"},
    }
    kube = FakeKube([body, child, record, a_pod("s-d1-0-0", "decode")])
    return Service(kube, "n", "s"), body


def said(body: Object, kind: str, status: str, reason: str) -> None:
    found = next(item for item in body["status"]["conditions"] if item["type"] == kind)
    found |= {"status": status, "reason": reason}


def test_a_condition_is_checked_with_its_reason() -> None:
    service, _ = shown()
    check_condition(service, "Ready", "True")
    check_condition(service, "Ready", "True", {"Serving", "Other"})
    for status, reasons in (("False", ()), ("True", ("Other",))):
        with pytest.raises(CheckFailed, match="Ready"):
            check_condition(service, "Ready", status, reasons)


def test_another_plan_is_one_with_other_workers_and_a_reason() -> None:
    service, body = shown()
    before = plan_from_json(body["status"]["plan"])
    with pytest.raises(CheckFailed, match="other workers"):
        check_replanned(service, before, timeout_s=0)
    body["status"]["plan"] = copy.deepcopy(body["status"]["plan"])
    body["status"]["plan"]["groups"][0]["degree"] = 2
    with pytest.raises(CheckFailed, match="other workers"):
        check_replanned(service, before, timeout_s=0)
    said(body, "Planned", "True", "Replanned")
    assert check_replanned(service, before, timeout_s=0).groups != before.groups


def test_a_proposal_says_why_and_what_would_change() -> None:
    service, body = shown()
    with pytest.raises(CheckFailed, match="proposed"):
        check_proposed(service, timeout_s=0)
    body["status"]["proposedPlan"] = {"hash": "abc", "reason": "more load", "diff": []}
    with pytest.raises(CheckFailed, match="no diff"):
        check_proposed(service, timeout_s=0)
    body["status"]["proposedPlan"]["diff"] = ["GPUs: 2 -> 4"]
    assert check_proposed(service, timeout_s=0) == "abc"


def test_what_is_left_alone_does_not_change_but_for_what_the_operator_remembers() -> None:
    service, _ = shown()
    kube = service.kube
    assert isinstance(kube, FakeKube)
    before, uids = running(service), service.worker_uids()
    child, record = kube.objects[1], kube.objects[2]
    record["data"] = {"plan.json": "new"}
    looks = []
    check_left_alone(service, before, uids, for_s=0, meanwhile=lambda: looks.append(1))
    assert looks
    child["spec"] = {"replicas": 0}
    with pytest.raises(CheckFailed, match="StatefulSet/s-d1-0"):
        check_left_alone(service, before, uids, for_s=0)
    child["spec"] = {"replicas": 1}
    kube.objects.pop()
    with pytest.raises(CheckFailed, match="s-d1-0-0"):
        check_left_alone(service, before, uids, for_s=0)


def test_scenarios_are_valid_and_end_what_they_begin() -> None:
    for scenario in SCENARIOS:
        DisaggInferenceServiceSpec.model_validate(scenario.manifest["spec"])
        blinded = [step for step in scenario.steps if isinstance(step, Blind)]
        assert len(blinded) == sum(isinstance(step, Mend) for step in scenario.steps)
        assert {step.fault for step in blinded} <= FAULTS.keys()
        # A check that nothing changes proves something only where something changes in the end.
        assert not any(isinstance(step, LeftAlone) for step in scenario.steps) or any(
            isinstance(step, Replanned) for step in scenario.steps
        )
    assert {reason for reasons in NAMES.values() for reason in reasons} <= METRICS_AVAILABLE.keys()
    assert Approve("000000000000") in SCENARIOS[1].steps


@pytest.mark.parametrize("manifest", [tried_service(), resting_service()], ids=lambda one: one["metadata"]["name"])
def test_services_that_are_tried_and_that_rest_are_valid(manifest: Object) -> None:
    DisaggInferenceServiceSpec.model_validate(manifest["spec"])


def test_sessions_arrive_at_the_rate_that_was_last_told(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[float] = []

    async def session(planned: PlannedSession, _target: Target, *, transcript: SessionTranscript, **_: Any) -> None:
        assert planned.name == transcript.session == f"arrival{len(begun)}"
        begun.append(time.monotonic())

    monkeypatch.setattr(arriving_module, "run_session", session)
    rounds = (PlannedRound(8, 2, 0.0),)
    with arriving(Arrivals(Target("http://127.0.0.1:1", "m"))) as arrivals:
        arrivals.turn_to(Traffic(50.0, rounds))
        told = time.monotonic()
        until(lambda: len(begun) >= 10, what="ten sessions", timeout_s=10, every_s=0.01)
        # Late on a busy machine, never early: what is due is caught up with.
        assert begun[9] - told >= 10 / 50.0 - 0.005
        arrivals.turn_to(None)
        after = len(begun)
    assert len(begun) <= after + 1, "one may have been on its way"
