"""What a WorkerGroup says of itself: every documented reason is reached, and no other one can be given."""

from typing import Any

import pytest

from weft_operator.api.worker_group import WorkerGroupSpec
from weft_operator.desired import desired_objects
from weft_operator.fleet import Worker
from weft_operator.groups.group import Group
from weft_operator.groups.plan import Leaving
from weft_operator.groups.status import group_status
from weft_operator.manifest import GroupKey
from weft_operator.readiness import WorkerState
from weft_operator.reasons import GROUP_REASONS
from weft_operator_tests.samples import rendering

NOW = "2026-01-01T00:00:00Z"


def conditions(
    ready: int = 2, *, asked: int = 2, draining: bool = False, failure: tuple[str, str] | None = None
) -> dict[str, tuple[str, str]]:
    """Return (status, reason) of each condition of a group of two workers."""
    objects = desired_objects(rendering(), token=b"0" * 32)
    spec = next(item["spec"] for item in objects if item["kind"] == "WorkerGroup")
    group = Group(
        GroupKey("default", "demo-p4"), "uid", "owner", 3, WorkerGroupSpec.model_validate({**spec, "replicas": asked})
    )
    states = [WorkerState(Worker("prefill", 4, index, "h20"), f"demo-p4-{index}", index < ready) for index in range(2)]
    leaving = [Leaving("demo-p4-9", "node-1", None)] if draining else []
    status: dict[str, Any] = group_status(
        group, {}, states=states, leaving=leaving, places={}, records={}, failure=failure, figures_due=True, now=NOW
    )
    return {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}


REACHED = [
    (conditions(), ("True", "AllReady"), ("False", "UpToDate")),
    (conditions(1), ("False", "NotReady"), ("True", "RollingOut")),
    (conditions(asked=3), ("False", "NotReady"), ("True", "RollingOut")),
    (conditions(draining=True), ("True", "AllReady"), ("True", "Draining")),
    (conditions(failure=("NameTaken", "StatefulSet demo-p4-0")), ("True", "AllReady"), ("False", "NameTaken")),
    (conditions(1, failure=("ApplyFailed", "422")), ("False", "NotReady"), ("False", "ApplyFailed")),
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
