"""The Events of a service, for ``kubectl describe``: which changes of a status and which actions post one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft_core.heartbeat import WorkerRecord
from weft_operator.errors import Right
from weft_operator.kube.diff import Action, Apply
from weft_operator.kube.events import MAX_MESSAGE, OVERLAP_FIX, Event
from weft_operator.workers.fleet import Fleet

QUIET_REASONS = frozenset(
    {
        *("Planning", "RollingOut", "WaitingForPlan", "NotPlanned"),
        *("Fresh", "NotConfigured", "NotYetObserved", "WaitingForMetrics", "Partial", "TooFewSamples"),
        *("Met", "TooFewRounds", "Unknown", "NotYetReported", "NotYetTried", "NotYetProven", "NotYetReady"),
        *(
            "Replanning",
            "Cooldown",
            "NoBetterPlan",
            "MetricsUnavailable",
            "SessionsDoNotFit",
            "ScaleDownStabilized",
            "ScheduleDeferred",
        ),
        *("NoWorkersDraining", "Draining", "WorkersLost"),  # WorkerLost says it, once for each
        *("PredictedMet", "AsPredicted", "NotComparable", "Waiting"),
        *("Working", "Settled", "NotStalled", "SpecRefused", "ObjectRefused"),  # the conditions they follow from say it
        *("AwaitingApproval", "ReplanProposed"),  # PlanProposed says it, once for each proposal
    }
)
"""Reasons that are only steps on the way: they are in the conditions, not worth an event."""

_WARNINGS = frozenset(
    {"CanaryFailed", "Degraded", "NoPrefillWorker", "NoDecodeWorker", "Unschedulable", "Missed"}
    | {"CoordinatorNotReady", "EndpointPickerNotReady"}
    | {"ApplyFailed", "WaitingForDeletion", "KindMissing", "NameTaken", "RedisUserRefused", "RightMissing"}
    | {"ApprovalStale", "ReplanFailed", "RollbackRevisionNotFound", "RollbackRefused", "DemandUnknown"}
    | {
        "PredictedMissed",
        "SlowerThanPredicted",
        "MeasurementFailed",
        "MeasurementUnusable",
        "InsufficientCapacity",
        "NothingToMeasure",
    }
    | {"TierTooLarge", "ClaimMissing", "ClaimNotBound", "ClaimAccessMode", "DiskFull", "DiskSlow", "DiskUnavailable"}
    | {"PluginAbsent", "PluginOff", "SideChannelClosed", "DataPortsClosed", "TransferFailed", "WrongTransport"}
)


def status_events(
    before: Mapping[str, Any], after: Mapping[str, Any], *, actions: Sequence[Action]
) -> tuple[Event, ...]:
    """Return what is new between two statuses, and what the actions between them were for."""
    return (*_corrections(actions), *_transitions(before, after), *_proposals(before, after))


def _transitions(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Event, ...]:
    was = {item["type"]: item for item in before.get("conditions") or ()}
    # A plan that was given up makes room for the one before; that one is no news.
    given_up = any(item["reason"] in ("RolloutAborted", "CanaryFailed") for item in after.get("conditions") or ())
    found = []
    for condition in after.get("conditions") or ():
        old = was.get(condition["type"], {})
        revision = (after.get("plan") or {}).get("revision", "")
        revision_before = (before.get("plan") or {}).get("revision", "")
        fresh = revision != revision_before and not given_up
        new_plan = condition["reason"] in ("PlanReady", "Replanned", "RolledBack") and fresh
        if (old.get("reason") == condition["reason"] and not new_plan) or condition["reason"] in QUIET_REASONS:
            continue
        if condition["reason"] == "UpToDate":
            continue  # Serving says it
        refused = condition["type"] in ("Planned", "MetricsAvailable") and condition["status"] == "False"
        starts = condition["type"] == "Ready" and _never_ready(was)
        bad = (condition["reason"] in _WARNINGS and not starts) or refused
        since = old.get("lastTransitionTime", "")
        found.append(
            Event(
                type="Warning" if bad else "Normal",
                reason=condition["reason"],
                message=condition["message"][:MAX_MESSAGE],
                origin=f"{condition['type']} {condition['observedGeneration']} {since} {revision}",
            )
        )
    return tuple(found)


def _never_ready(was: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a service has not been ready since it was made: its start is no trouble.

    Then nothing was said of it before Ready was said to be False; of one that served, something else was.
    """
    ready = was.get("Ready")
    return ready is None or (
        ready["status"] != "True"
        and ready["lastTransitionTime"] <= min(condition["lastTransitionTime"] for condition in was.values())
    )


def _proposals(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Event, ...]:
    proposal = after.get("proposedPlan")
    if proposal is None or proposal["hash"] == (before.get("proposedPlan") or {}).get("hash"):
        return ()
    change = f"{after.get('planSummary', '')} -> {proposal['summary']}"
    message = f"{change} is proposed as {proposal['hash']}, because {proposal['reason']}"
    return (Event(type="Normal", reason="PlanProposed", message=message[:MAX_MESSAGE], origin=proposal["hash"]),)


def missing_watch_events(missing: Iterable[Right]) -> tuple[Event, ...]:
    """Return the Events of watches that are refused: a service is reconciled all the same, but later."""
    return tuple(
        Event(
            type="Warning",
            reason="RightMissing",
            message=f"{right.lack()}; until then changes are seen once a minute or later, not at once",
            origin="watch",
        )
        for right in sorted(missing)
    )


def shared_redis_events(refusal: str) -> tuple[Event, ...]:
    """Return what is said of a service whose pods use the operator's Redis user; the refusal is in Redis' words."""
    message = (
        "the pods get the operator's Redis URL, which can read and change what every service keeps there, because "
        f"Redis refuses to make a user for this service ({refusal or 'it did so before'}); give the operator's Redis "
        "user the rights that docs/install.md lists"
    )
    return (Event(type="Warning", reason="RedisUserShared", message=message[:MAX_MESSAGE], origin="redis"),)


def overlap_events(operator: str, other_operator: str) -> tuple[Event, ...]:
    """Return what is said of a service that another operator looks after, too."""
    message = (
        f"operator {other_operator} looks after the services of this namespace, "
        f"so operator {operator} leaves them alone"
    )
    return (
        Event(
            type="Warning",
            reason="OtherOperator",
            message=f"{message}; {OVERLAP_FIX}"[:MAX_MESSAGE],
            origin=other_operator,
        ),
    )


def worker_events(actions: Sequence[Action], fleet: Fleet) -> tuple[Event, ...]:
    """Return what the actions of one pass over a group were for: lost workers, and what was changed by hand."""
    return (*_losses(fleet), *_corrections(actions))


def query_of_death_events(
    records: Mapping[str, WorkerRecord], workers: Iterable[str], posted: frozenset[str]
) -> tuple[Event, ...]:
    """Return what workers' heartbeats say of requests that ended engines, bar those whose origins are ``posted``."""
    return tuple(
        Event(
            type="Warning",
            reason="QueryOfDeath",
            message=f"an engine ended while it served a request of worker {name}; it is refused for some minutes. "
            "query_of_death in the log of the worker's router names it, and the engine's log says what happened",
            origin=entry,
        )
        for name in workers
        if name in records
        for entry in records[name].quarantined
        if entry not in posted
    )


def _losses(fleet: Fleet) -> tuple[Event, ...]:
    return tuple(
        Event(
            type="Warning",
            reason="WorkerLost",
            message=f"worker {item.name} on node {item.node or '(none)'} is given up, because {item.lost}; "
            "a new worker takes its place",
            origin=item.uid,
        )
        for item in fleet.lost
    )


def _corrections(actions: Sequence[Action]) -> tuple[Event, ...]:
    return tuple(
        Event(
            type="Normal",
            reason="DriftCorrected",
            message=f"{action.key.kind} {action.key.name} was changed by {action.by or 'hand'} ({action.reason}) and "
            "is put back",
            origin=action.replaces,
        )
        for action in actions
        if isinstance(action, Apply) and action.reason.startswith("drifted")
    )
