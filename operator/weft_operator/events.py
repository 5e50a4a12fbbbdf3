"""Facts that people should see with ``kubectl describe``: each is posted once."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from weft_operator.diff import Action, Apply
from weft_operator.fleet import Fleet

MAX_MESSAGE = 1000
"""The API server refuses longer messages (1,024 bytes)."""

QUIET_REASONS = frozenset({"Planning", "RollingOut", "WaitingForPlan", "NotPlanned"})
"""Reasons that are only steps on the way: they are in the conditions, not worth an event."""

_WARNINGS = frozenset({"Degraded", "CoordinatorNotReady", "NoPrefillWorker", "NoDecodeWorker", "Unschedulable"})


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that happened to a service; ``origin`` tells two facts with the same words apart."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    origin: str

    def name(self, service: str, uid: str) -> str:
        """Return the name of the fact's Event: the same fact has the same name, also after a restart."""
        text = "\0".join((uid, self.reason, self.message, self.origin))
        return f"{service}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def facts(
    before: Mapping[str, Any], after: Mapping[str, Any], *, actions: Sequence[Action], fleet: Fleet | None
) -> tuple[Fact, ...]:
    """Return what is new between two statuses, and what the actions between them were for."""
    return (*_losses(fleet), *_corrections(actions), *_transitions(before, after))


def _transitions(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Fact, ...]:
    was = {item["type"]: item for item in before.get("conditions") or ()}
    found = []
    for condition in after.get("conditions") or ():
        old = was.get(condition["type"], {})
        revision = (after.get("plan") or {}).get("revision", "")
        new_plan = condition["reason"] == "PlanReady" and revision != (before.get("plan") or {}).get("revision", "")
        if (old.get("reason") == condition["reason"] and not new_plan) or condition["reason"] in QUIET_REASONS:
            continue
        if condition["reason"] == "UpToDate":
            continue  # Serving says it
        bad = condition["reason"] in _WARNINGS or (condition["type"] == "Planned" and condition["status"] == "False")
        since = old.get("lastTransitionTime", "")
        found.append(
            Fact(
                type="Warning" if bad or condition["reason"] in ("ApplyFailed", "NameTaken") else "Normal",
                reason=condition["reason"],
                message=condition["message"][:MAX_MESSAGE],
                origin=f"{condition['type']} {condition['observedGeneration']} {since} {revision}",
            )
        )
    return tuple(found)


def _losses(fleet: Fleet | None) -> tuple[Fact, ...]:
    return tuple(
        Fact(
            type="Warning",
            reason="WorkerLost",
            message=f"worker {item.name} on node {item.node or '(none)'} is given up, because {item.lost}; "
            "a new worker takes its place",
            origin=item.uid,
        )
        for item in (fleet.lost if fleet is not None else ())
    )


def _corrections(actions: Sequence[Action]) -> tuple[Fact, ...]:
    return tuple(
        Fact(
            type="Normal",
            reason="DriftCorrected",
            message=f"{action.key.kind} {action.key.name} was changed by hand ({action.reason}) and is put back",
            origin=action.replaces,
        )
        for action in actions
        if isinstance(action, Apply) and action.reason.startswith("drifted")
    )
