"""Format plan revisions for ``weft rollout``. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from weft_core.plan import plan_to_json
from weft_operator.api.objects import Manifest, annotations_of, name_of
from weft_operator.commands.tables import figures, lines, table, text_of
from weft_operator.render.config_maps import read_record
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.plan_summary import made_from
from weft_operator.render.revisions import SINCE_ANNOTATION, SUMMARY_ANNOTATION, shown_cause
from weft_operator.status.plan_status import plan_diff

NOT_READABLE = "(stored by another version of Weft; it cannot be read or restored)"


def history_to_json(service: Manifest, revisions: Sequence[Manifest]) -> dict[str, Any]:
    """Return the list of revisions as JSON."""
    return {
        "service": name_of(service),
        "namespace": service["metadata"]["namespace"],
        "revisions": [_row(item, in_force=item is revisions[-1]) for item in revisions],
    }


def history_text(service: Manifest, revisions: Sequence[Manifest]) -> str:
    """Return the list of revisions as text."""
    if not revisions:
        return f"{name_of(service)} has had no plan yet"
    rows = [
        (
            f"{row['revision']}{' *' if row['inForce'] else ''}",
            row["summary"],
            str(row.get("gpus", "-")),
            figures(row.get("predicted") or {}),
            row.get("inForceSince", "-"),
            row["cause"],
        )
        for row in history_to_json(service, revisions)["revisions"]
    ]
    body = table(("revision", "plan", "GPUs", "predicted", "since", "because"), rows)
    return text_of(body, lines(f"* active; roll back with: weft rollout undo {name_of(service)} --to-revision N"))


def revision_to_json(revision: Manifest) -> dict[str, Any]:
    """Return one revision with its plan and inputs as JSON."""
    record = read_record(revision)
    whole = _row(revision, in_force=None)
    if record is not None:
        workload = record.baseline.workload
        whole |= {
            "plan": plan_to_json(record.plan),
            "madeFrom": made_from(workload),
            **({"observedWorkload": dict(workload)} if workload is not None else {}),
            "requestHash": record.request_hash,
            "spec": record.spec.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
    return whole


def revision_text(revision: Manifest) -> str:
    """Return one revision as text."""
    record = read_record(revision)
    row = _row(revision, in_force=None)
    head = lines(
        f"revision {row['revision']}: {row['summary']}",
        f"because {row['cause']}",
        f"active since {row.get('inForceSince', 'not known')}, kept as ControllerRevision {name_of(revision)}",
    )
    if record is None:
        return text_of(head, lines(NOT_READABLE))
    groups = [(g.role, str(g.degree), g.pool, str(g.replicas), str(g.gpus)) for g in record.plan.groups]
    return text_of(
        head,
        table(("role", "degree", "pool", "workers", "GPUs"), groups),
        lines(
            f"predicted: {figures(plan_to_json(record.plan)['predicted'])}",  # type: ignore[arg-type]
            f"made from {made_from(record.baseline.workload)}: {_traffic(record)}",
            record.plan.reason,
        ),
    )


def undo_text(current: Manifest, target: Manifest) -> str:
    """Return the differences between the active revision and an older one."""
    now, then = read_record(current), read_record(target)
    head = f"revision {current['revision']}, {_summary(current)} -> revision {target['revision']}, {_summary(target)}"
    if now is None or then is None:
        return f"{head}\n  {NOT_READABLE}"
    return "\n".join([head, *(f"  {line}" for line in plan_diff(now.plan, then.plan))])


def _row(revision: Manifest, *, in_force: bool | None) -> dict[str, Any]:
    record, since = read_record(revision), annotations_of(revision).get(SINCE_ANNOTATION)
    return {
        "revision": int(revision["revision"]),
        "name": name_of(revision),
        "summary": _summary(revision),
        "cause": shown_cause(revision) or "-",
        **({"inForce": in_force} if in_force is not None else {}),
        **({"inForceSince": since} if since else {}),
        **({} if record is None else {"gpus": record.plan.gpus, "predicted": plan_to_json(record.plan)["predicted"]}),
    }


def _summary(revision: Manifest) -> str:
    return annotations_of(revision).get(SUMMARY_ANNOTATION, name_of(revision))


def _traffic(record: PlanRecord) -> str:
    valid = record.plan.validity
    if valid is None:
        return "its traffic was not kept"
    text: Mapping[str, str] = {
        "rate": f"{valid.arrival_rate:.3g} sessions/s",
        "range": f"right for {valid.rate_low:.3g} to {valid.rate_high:.3g}",
        "rounds": f"{valid.rounds:.3g} rounds of {valid.first_prompt:.0f}, then {valid.increment:.0f} tokens",
        "decode": f"{valid.decode:.0f} tokens of an answer",
    }
    return ", ".join(text.values())
