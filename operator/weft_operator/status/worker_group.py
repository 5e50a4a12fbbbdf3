"""Compute the status of a worker group from the result of one pass: pure, and unchanged while nothing changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft_core.heartbeat import WorkerRecord
from weft_core.layouts import WORKER_ROLES
from weft_operator.api.conditions import ConditionValue
from weft_operator.api.objects import WORKER_LABEL, Manifest, condition_of, is_terminating, labels_of, name_of
from weft_operator.render.plan_summary import MAX_MESSAGE
from weft_operator.rollout.group_plan import DepartingWorker
from weft_operator.status.condition_json import condition_json
from weft_operator.status.reasons.catalogue import GROUP_REASONS
from weft_operator.workers.groups import WorkerGroupView
from weft_operator.workers.readiness import WorkerState

_FIGURES = ("sessions", "liveRounds", "kvTokens", "idleSeconds")


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """The node of a worker, and since when it is in its present state."""

    node: str = ""
    since: str = ""
    """As the API server writes times; empty where it is unknown."""


def places_of(statefulsets: Sequence[Manifest], pods: Sequence[Manifest]) -> dict[str, WorkerPlace]:
    """Return the place of each worker.

    ``since`` is the time at which its pod was created, was scheduled, or became unready, whichever is last; without a
    pod, at which its StatefulSet was created. Of several pods the first has the node, the latest change the time.
    """
    found = {
        name_of(item): WorkerPlace(since=str(item["metadata"].get("creationTimestamp", ""))) for item in statefulsets
    }
    since: dict[str, str] = {}
    for pod in sorted(pods, key=name_of, reverse=True):
        name = labels_of(pod).get(WORKER_LABEL, "")
        if name in found and not is_terminating(pod):
            since[name] = max(since.get(name, ""), _since(pod))
            found[name] = WorkerPlace(str((pod.get("spec") or {}).get("nodeName") or found[name].node), since[name])
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

    ``failure`` is the reason and message of a refused object. Session figures change all the time, so they are updated
    only when ``figures_due`` or when anything else changes.
    """
    known = {str(row["name"]): row for row in before.get("workers") or ()}
    rows = [
        _row(state, places.get(state.name, WorkerPlace()), records.get(state.name), known.get(state.name, {}), now=now)
        for state in states
    ]
    rows += [_departing_row(item, records.get(item.name)) for item in leaving]
    serving = sum(state.ready or state.waits for state in states)
    updated = sum(state.ready for state in states)
    status: dict[str, Any] = {
        "observedGeneration": group.generation,
        "replicas": len(states),
        "readyReplicas": serving,
        "updatedReplicas": updated,
        "drainingReplicas": sum(item.lost is None for item in leaving),
        "roles": {
            role: sum(
                (state.ready or state.waits) and not state.switching for state in states if state.worker.role == role
            )
            for role in WORKER_ROLES
        },
        "selector": ",".join(f"{key}={value}" for key, value in sorted(group.labels.items())),
        "workers": rows,
    }
    was = {item["type"]: item for item in before.get("conditions") or ()}
    status["conditions"] = [
        _documented(kind, value, was.get(kind), generation=group.generation, now=now)
        for kind, value in _values(group, states, leaving, failure).items()
    ]
    left_out = () if figures_due else _FIGURES
    return dict(before) if _plain(status, left_out) == _plain(before, left_out) else status


def _values(
    group: WorkerGroupView,
    states: Sequence[WorkerState],
    leaving: Sequence[DepartingWorker],
    failure: tuple[str, str] | None,
) -> dict[str, ConditionValue]:
    """Return the values of all conditions."""
    asked = len(states) if group.spec.replicas is None else group.spec.replicas
    updated = sum(state.ready for state in states)
    words = f"{updated} of {asked} workers serve with the newest template"
    trouble = next((f"; {state.trouble}" for state in states if state.trouble), "")
    switching = [state.name for state in states if state.switching]
    if switching:
        words += f", and {len(switching)} of them change their role"
    complete = updated == asked == len(states) and not switching
    ready = (
        ConditionValue("True", "AllReady", words)
        if complete
        else ConditionValue("False", "NotReady", f"{words}{trouble}")
    )
    draining = [item.name for item in leaving if item.lost is None]
    if failure is not None:
        progressing = ConditionValue("False", *failure)
    elif not complete:
        progressing = ConditionValue("True", "RollingOut", words)
    elif draining:
        progressing = ConditionValue("True", "Draining", f"draining: {', '.join(draining[:5])}")
    else:
        progressing = ConditionValue("False", "UpToDate", words)
    return {"Ready": ready, "Progressing": progressing}


def _documented(
    kind: str, value: ConditionValue, before: Mapping[str, Any] | None, *, generation: int, now: str
) -> dict[str, Any]:
    if value.reason not in GROUP_REASONS[kind]:
        raise LookupError(f"WorkerGroup {kind}: reason {value.reason} is not in weft_operator.status.reasons; add it")
    return condition_json(kind, value, before, generation=generation, now=now)


def _row(
    state: WorkerState, place: WorkerPlace, record: WorkerRecord | None, before: Mapping[str, Any], *, now: str
) -> dict[str, Any]:
    """Return the row of a worker; ``before`` is the one that it had."""
    row: dict[str, Any] = {"name": state.name, "role": state.worker.role, "ready": state.ready}
    if state.waits:
        row["outdated"] = True
    if state.trouble:
        row["trouble"] = state.trouble[:MAX_MESSAGE]
    if state.unschedulable:
        row["unschedulable"] = True
    if place.node:
        row["node"] = place.node
    if state.switching:
        row["switching"] = True
    since = _waits_since(state, place, before, now=now)
    if since:
        row["since"] = since
    return {**row, **_figures(record)}


def _waits_since(state: WorkerState, place: WorkerPlace, before: Mapping[str, Any], *, now: str) -> str:
    """Return since when a worker does not serve in its role; "" for one that does, or whose update is still to come.

    A worker that served until now waits since now, whatever the age of its pod or of its StatefulSet is: it is
    restarted for a new template, or changes its role.
    """
    if state.waits or (state.ready and not state.switching):
        return ""
    known = str(before.get("since") or "")
    if state.ready:
        again = before.get("switching") and before.get("role") == state.worker.role
        return known if again and known else now
    served = before.get("ready") or before.get("outdated")
    return max(place.since, known or (now if served else ""))


def _departing_row(item: DepartingWorker, record: WorkerRecord | None) -> dict[str, Any]:
    row: dict[str, Any] = {"name": item.name, "role": item.role, "ready": False}
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
    figures = (record.sessions, record.live_rounds, record.tokens_at_stake, round(record.idle_seconds))
    return dict(zip(_FIGURES, figures, strict=True))


def _plain(status: Mapping[str, Any], left_out: Sequence[str]) -> dict[str, Any]:
    """Return a status without some fields of workers and without false values, for comparisons.

    The API server adds the defaults of the schema: a worker that does not drain is stored with ``draining: false``.
    """
    rows = status.get("workers") or ()
    plain = [{key: row[key] for key in row if key not in left_out and row[key] is not False} for row in rows]
    return {**status, "workers": plain}
