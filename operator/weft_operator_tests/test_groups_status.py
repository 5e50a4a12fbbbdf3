"""What a WorkerGroup says of itself: every documented reason is reached, and no other one can be given."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from weft_operator.api.objects import GroupKey
from weft_operator.api.worker_group import WorkerGroupSpec
from weft_operator.render.objects import desired_objects
from weft_operator.rollout.group_plan import DepartingWorker
from weft_operator.status.reasons.catalogue import GROUP_REASONS
from weft_operator.status.worker_group import WorkerPlace, group_status
from weft_operator.workers.fleet import Worker
from weft_operator.workers.groups import WorkerGroupView
from weft_operator.workers.readiness import WorkerState
from weft_operator_tests.samples import rendering

NOW, DAYS_AGO, EARLIER = "2026-01-01T00:00:00Z", "2025-12-25T00:00:00Z", "2025-12-31T23:59:00Z"


def conditions(
    ready: int = 2, *, asked: int = 2, draining: bool = False, failure: tuple[str, str] | None = None
) -> dict[str, tuple[str, str]]:
    """Return (status, reason) of each condition of a group of two workers."""
    found = status_of({}, ready, asked=asked, draining=draining, failure=failure)
    return {item["type"]: (item["status"], item["reason"]) for item in found["conditions"]}


def status_of(
    before: Mapping[str, Any],
    ready: int = 2,
    *,
    asked: int = 2,
    draining: bool = False,
    failure: tuple[str, str] | None = None,
    figures_due: bool = True,
    parts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the status of a group of two workers; ``parts`` are of the first one's state."""
    objects = desired_objects(rendering(), token=b"0" * 32)
    spec = next(item["spec"] for item in objects if item["kind"] == "WorkerGroup")
    group = WorkerGroupView(
        GroupKey("default", "demo-p4"), "uid", "owner", 3, WorkerGroupSpec.model_validate({**spec, "replicas": asked})
    )
    states = [WorkerState(Worker("prefill", 4, index, "h20"), f"demo-p4-{index}", index < ready) for index in range(2)]
    states[0] = replace(states[0], **(parts or {}))
    leaving = [DepartingWorker("demo-p4-9", "node-1", None)] if draining else []
    return group_status(
        group,
        before,
        states=states,
        leaving=leaving,
        places={"demo-p4-0": WorkerPlace("n", DAYS_AGO)},
        records={},
        failure=failure,
        figures_due=figures_due,
        now=NOW,
    )


REACHED = [
    (conditions(), ("True", "AllReady"), ("False", "UpToDate")),
    (conditions(1), ("False", "NotReady"), ("True", "RollingOut")),
    (conditions(asked=3), ("False", "NotReady"), ("True", "RollingOut")),
    (conditions(draining=True), ("True", "AllReady"), ("True", "Draining")),
    (conditions(failure=("NameTaken", "StatefulSet demo-p4-0")), ("True", "AllReady"), ("False", "NameTaken")),
    (conditions(1, failure=("ApplyFailed", "422")), ("False", "NotReady"), ("False", "ApplyFailed")),
    (conditions(1, failure=("KindMissing", "no PodGroup")), ("False", "NotReady"), ("False", "KindMissing")),
    (conditions(failure=("RightMissing", "may not patch")), ("True", "AllReady"), ("False", "RightMissing")),
]


@pytest.mark.parametrize(("found", "ready", "progressing"), REACHED)
def test_a_group_says_how_far_its_workers_are(
    found: dict[str, tuple[str, str]], ready: tuple[str, str], progressing: tuple[str, str]
) -> None:
    assert found == {"Ready": ready, "Progressing": progressing}


def test_every_documented_reason_is_reached() -> None:
    reached = {(kind, reason) for found, *_ in REACHED for kind, (_status, reason) in found.items()}
    assert reached == {(kind, reason) for kind, reasons in GROUP_REASONS.items() for reason in reasons}


def test_an_undocumented_reason_is_a_bug() -> None:
    with pytest.raises(LookupError, match="WorkerGroup Progressing: reason Surprise"):
        conditions(failure=("Surprise", "?"))


@pytest.mark.parametrize("figures_due", [True, False])
def test_what_the_api_server_fills_in_is_no_change(figures_due: bool) -> None:
    written = status_of({}, 1, draining=True)
    defaults = {"ready": False, "outdated": False, "draining": False, "unschedulable": False}
    stored = {**written, "workers": [{**defaults, **row} for row in written["workers"]]}
    assert status_of(stored, 1, draining=True, figures_due=figures_due) == stored
    assert status_of(stored, 2, draining=True, figures_due=figures_due) != stored


SWITCHES: dict[str, Any] = {"ready": True, "switching": True}
SINCE: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    # what the status says of a worker whose pod is days old, its state now, and since when it does not serve
    "new": ({}, {"ready": False}, DAYS_AGO),
    "served until now": ({"ready": True}, {"ready": False}, NOW),
    "served with an older template until now": ({"outdated": True}, {"ready": False}, NOW),
    "served until a minute ago": ({"ready": False, "since": EARLIER}, {"ready": False}, EARLIER),
    "changes its role from now on": ({"ready": True}, SWITCHES, NOW),
    "changes its role for a minute": ({**SWITCHES, "since": EARLIER}, SWITCHES, EARLIER),
    "changes its role to another one now": ({**SWITCHES, "role": "decode", "since": EARLIER}, SWITCHES, NOW),
    "changes its role and restarts": ({**SWITCHES, "since": EARLIER}, {"ready": False, "switching": True}, EARLIER),
    "its update is still to come": ({"ready": True}, {"ready": False, "waits": True, "switching": True}, None),
    "serves": ({"ready": False, "since": EARLIER}, {"ready": True}, None),
}


@pytest.mark.parametrize(("was", "parts", "expected"), SINCE.values(), ids=SINCE)
def test_a_worker_waits_since_it_ceased_to_serve_whatever_its_pods_age(
    was: dict[str, Any], parts: dict[str, Any], expected: str | None
) -> None:
    before = {"workers": [{"name": "demo-p4-0", "role": "prefill", **was}]} if was else {}
    row = status_of(before, parts=parts)["workers"][0]
    assert row.get("since") == expected
