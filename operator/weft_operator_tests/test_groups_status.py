"""What a WorkerGroup says of itself: every documented reason is reached, and no other one can be given."""

from collections.abc import Mapping
from typing import Any

import pytest

from weft_operator.api.objects import GroupKey
from weft_operator.api.worker_group import WorkerGroupSpec
from weft_operator.render.objects import desired_objects
from weft_operator.rollout.group_plan import DepartingWorker
from weft_operator.status.reasons.catalogue import GROUP_REASONS
from weft_operator.status.worker_group import group_status
from weft_operator.workers.fleet import Worker
from weft_operator.workers.groups import WorkerGroupView
from weft_operator.workers.readiness import WorkerState
from weft_operator_tests.samples import rendering

NOW = "2026-01-01T00:00:00Z"


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
) -> dict[str, Any]:
    """Return the status of a group of two workers."""
    objects = desired_objects(rendering(), token=b"0" * 32)
    spec = next(item["spec"] for item in objects if item["kind"] == "WorkerGroup")
    group = WorkerGroupView(
        GroupKey("default", "demo-p4"), "uid", "owner", 3, WorkerGroupSpec.model_validate({**spec, "replicas": asked})
    )
    states = [WorkerState(Worker("prefill", 4, index, "h20"), f"demo-p4-{index}", index < ready) for index in range(2)]
    leaving = [DepartingWorker("demo-p4-9", "node-1", None)] if draining else []
    return group_status(
        group,
        before,
        states=states,
        leaving=leaving,
        places={},
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
