"""Compute the status of a group from what one pass found: pure, and the same again while nothing changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft_core.heartbeat import WorkerRecord
from weft_operator.api.objects import WORKER_LABEL, Manifest, condition_of, is_terminating, labels_of, name_of
from weft_operator.rollout.group_plan import DepartingWorker
from weft_operator.status.reasons.catalogue import GROUP_REASONS
from weft_operator.workers.groups import WorkerGroupView
from weft_operator.workers.readiness import WorkerState

MAX_MESSAGE = 2000
_FIGURES = ("sessions", "liveRounds", "kvTokens", "idleSeconds")


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where a worker is, and since when it is in its present state."""

    node: str = ""
    since: str = ""
    """As the API server writes times; empty where nothing tells."""


def places_of(statefulsets: Sequence[Manifest], pods: Sequence[Manifest]) -> dict[str, WorkerPlace]:
    """Return where each worker is.

    It is in its present state since its pod was made, then since it has a node, then since it stopped being ready; a
    worker without a pod, since its StatefulSet was made. Of several pods the first tells where it is, the last of them
    to change since when it is as it is.
    """
    found = {
        name_of(item): WorkerPlace(since=str(item["metadata"].get("creationTimestamp", ""))) for item in statefulsets
    }
    told: dict[str, str] = {}
    for pod in sorted(pods, key=name_of, reverse=True):
        name = labels_of(pod).get(WORKER_LABEL, "")
        if name in found and not is_terminating(pod):
            told[name] = max(told.get(name, ""), _since(pod))
            found[name] = WorkerPlace(str((pod.get("spec") or {}).get("nodeName") or found[name].node), told[name])
    return found


def _since(pod: Manifest) -> str:
    scheduled, ready = condition_of(pod, "PodScheduled"), condition_of(pod, "Ready")
    times = [str(pod["metadata"].get("creationTimestamp") or "")]
    if scheduled is not None and scheduled.get("status") == "True":
        times.append(str(scheduled.get("lastTransitionTime") or ""))
    if ready is not None and ready.get("status") == "False":
        times.append(str(ready.get("lastTransitionTime") or ""))
    return max(times)


def group_status(
    group: WorkerGroupView,
    before: Mapping[str, Any],
    *,
    states: Sequence[WorkerState],
    leaving: Sequence[DepartingWorker],
    places: Mapping[str, WorkerPlace],
    records: Mapping[str, WorkerRecord],
    failure: tuple[str, str] | None,
    figures_due: bool,
    now: str,
) -> dict[str, Any]:
    """Return the status of a group.

    ``failure`` is the reason and message of an object that was refused. Figures of sessions change all the time: they
    are taken over only when ``figures_due``, or when anything else changes.
    """
    rows = [_row(state, places.get(state.name, WorkerPlace()), records.get(state.name)) for state in states]
    rows += [_leaving_row(item, records.get(item.name)) for item in leaving]
    serving = sum(state.ready or state.waits for state in states)
    updated = sum(state.ready for state in states)
    status: dict[str, Any] = {
        "observedGeneration": group.generation,
        "replicas": len(states),
        "readyReplicas": serving,
        "updatedReplicas": updated,
        "drainingReplicas": sum(item.lost is None for item in leaving),
        "selector": ",".join(f"{key}={value}" for key, value in sorted(group.labels.items())),
        "workers": rows,
    }
    was = {item["type"]: item for item in before.get("conditions") or ()}
    status["conditions"] = [
        _condition(kind, verdict, was.get(kind), group.generation, now)
        for kind, verdict in _verdicts(group, states, leaving, failure).items()
    ]
    left_out = () if figures_due else _FIGURES
    return dict(before) if _plain(status, left_out) == _plain(before, left_out) else status


def _verdicts(
    group: WorkerGroupView,
    states: Sequence[WorkerState],
    leaving: Sequence[DepartingWorker],
    failure: tuple[str, str] | None,
) -> dict[str, tuple[str, str, str]]:
    """Return (status, reason, message) of each condition."""
    asked = len(states) if group.spec.replicas is None else group.spec.replicas
    updated = sum(state.ready for state in states)
    words = f"{updated} of {asked} workers serve with the newest template"
    trouble = next((f"; {state.trouble}" for state in states if state.trouble), "")
    whole = updated == asked == len(states)
    ready = ("True", "AllReady", words) if whole else ("False", "NotReady", f"{words}{trouble}")
    draining = [item.name for item in leaving if item.lost is None]
    if failure is not None:
        progressing = ("False", *failure)
    elif not whole:
        progressing = ("True", "RollingOut", words)
    elif draining:
        progressing = ("True", "Draining", f"leaving: {', '.join(draining[:5])}")
    else:
        progressing = ("False", "UpToDate", words)
    return {"Ready": ready, "Progressing": progressing}


def _condition(
    kind: str, verdict: tuple[str, str, str], was: Mapping[str, Any] | None, generation: int, now: str
) -> dict[str, Any]:
    status, reason, message = verdict
    if reason not in GROUP_REASONS[kind]:
        raise LookupError(f"WorkerGroup {kind}: reason {reason} is not in weft_operator.status.reasons; add it")
    kept = was is not None and was.get("status") == status
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:MAX_MESSAGE],
        "observedGeneration": generation,
        "lastTransitionTime": was["lastTransitionTime"] if was is not None and kept else now,
    }


def _row(state: WorkerState, place: WorkerPlace, record: WorkerRecord | None) -> dict[str, Any]:
    row: dict[str, Any] = {"name": state.name, "ready": state.ready}
    if state.waits:
        row["outdated"] = True
    if state.trouble:
        row["trouble"] = state.trouble[:MAX_MESSAGE]
    if state.unschedulable:
        row["unschedulable"] = True
    if place.node:
        row["node"] = place.node
    if place.since and not (state.ready or state.waits):
        row["since"] = place.since
    return {**row, **_figures(record)}


def _leaving_row(item: DepartingWorker, record: WorkerRecord | None) -> dict[str, Any]:
    row: dict[str, Any] = {"name": item.name, "ready": False}
    if item.lost is None:
        row["draining"] = True
    else:
        row["lost"] = item.lost
    if item.node:
        row["node"] = item.node
    return {**row, **_figures(record)}


def _figures(record: WorkerRecord | None) -> dict[str, Any]:
    if record is None:
        return {}
    said = (record.sessions, record.live_rounds, record.tokens_at_stake, round(record.idle_seconds))
    return dict(zip(_FIGURES, said, strict=True))


def _plain(status: Mapping[str, Any], left_out: Sequence[str]) -> dict[str, Any]:
    """Return a status without some fields of workers, and without what is not so.

    The API server fills in the defaults of the schema: a worker that is not draining is stored as ``draining: false``.
    """
    rows = status.get("workers") or ()
    plain = [{key: row[key] for key in row if key not in left_out and row[key] is not False} for row in rows]
    return {**status, "workers": plain}
