"""ControllerRevisions: every plan that was active, for inspection and rollback.

A revision is named by what runs under it (workers, layout, rules, what engines are told), so the same plan has the same
object whenever it is active; as with a Deployment, coming back gives it the next number. What it was made from is
kept as it was the first time, for the API server lets nobody change a revision's data.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from weft_core.parallelism import Degree
from weft_core.plan import Plan, PlannedGroup, content_hash, plan_to_json
from weft_operator.api.objects import Manifest, ObjectKey, annotations_of, key_of, name_of
from weft_operator.render.config_maps import read_record, record_data
from weft_operator.render.inputs import PlanRecord, Rendering
from weft_operator.render.plan_baseline import PlanBaseline, time_text
from weft_operator.render.plan_summary import MAX_MESSAGE, made_from, plan_summary

KIND = "ControllerRevision"
COMPONENT = "plan"
SUMMARY_ANNOTATION = "weft.dev/plan-summary"
CAUSE_ANNOTATION = "weft.dev/change-cause"
SINCE_ANNOTATION = "weft.dev/in-force-since"


def revision_name(service: str, plan: Plan) -> str:
    """Return the name of a plan's revision: demo-plan-3f0a9c11d2."""
    body = plan_to_json(plan)
    return f"{service}-plan-{content_hash({key: body.get(key) for key in ('revision', 'layout', 'policy')}, 10)}"


def revision_object(rendering: Rendering, live: Sequence[Manifest]) -> Manifest:
    """Return the revision of the active plan; ``live`` are the existing revisions."""
    record = rendering.record
    name = revision_name(rendering.key.name, record.plan)
    there = next((item for item in live if name_of(item) == name), None)
    metadata = rendering.metadata(name, COMPONENT)
    metadata["annotations"] = {
        SUMMARY_ANNOTATION: plan_summary(record.plan),
        CAUSE_ANNOTATION: cause_of(record)[:MAX_MESSAGE],
        **({SINCE_ANNOTATION: since} if (since := time_text(record.baseline.changed_at)) else {}),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": KIND,
        "metadata": metadata,
        "revision": revision_number(name, live),
        "data": _first_data(record) if there is None else there["data"],
    }


def revision_number(name: str, live: Iterable[Manifest]) -> int:
    """Return the number of the active revision: its own while it is the newest, else the next one."""
    numbers = {name_of(item): number_of(item) for item in live}
    newest = max(numbers.values(), default=0)
    return newest if numbers.get(name) == newest and newest > 0 else newest + 1


def number_of(revision: Manifest) -> int:
    """Return a revision's number."""
    return int(revision.get("revision", 0))


def kept_revisions(live: Iterable[Manifest], *, current: str, limit: int, before: str = "") -> frozenset[ObjectKey]:
    """Return the revisions that stay beside the newest plan's, ``current``: the newest, ``limit`` in all with it.

    ``before`` stays in any case: the plan that was carried out last, which the service may have to go back to.
    """
    newest_first = sorted((item for item in live if name_of(item) != current), key=number_of, reverse=True)
    return frozenset(
        key_of(item) for place, item in enumerate(newest_first) if place < limit - 1 or name_of(item) == before
    )


def find_record(live: Iterable[Manifest], number: int) -> PlanRecord | None:
    """Return the plan of a number with its inputs; None when it does not exist, or has another format."""
    found = next((item for item in live if number_of(item) == number), None)
    return None if found is None else read_record(found)


@dataclass(frozen=True, slots=True)
class Revision:
    """A stored plan with its number."""

    number: int
    record: PlanRecord


def find_revision(live: Iterable[Manifest], name: str, groups: Iterable[PlannedGroup]) -> Revision | None:
    """Return the stored plan of this name, or else the newest one with these workers; None without one."""
    wanted, found = _workers(groups), None
    for item in sorted(live, key=number_of, reverse=True):
        record = read_record(item)
        if record is None or _workers(record.plan.groups) != wanted:
            continue
        if name_of(item) == name:
            return Revision(number_of(item), record)
        found = found or Revision(number_of(item), record)
    return found


def _workers(groups: Iterable[PlannedGroup]) -> Counter[tuple[str, Degree, str]]:
    found: Counter[tuple[str, Degree, str]] = Counter()
    for group in groups:
        found[group.role, group.degree, group.pool] += group.replicas
    return +found


def cause_of(record: PlanRecord) -> str:
    """Return why a plan is active, as a clause."""
    held = record.baseline.hold
    if held is not None:
        return held.cause
    return record.baseline.cause or f"made for {made_from(record.baseline.workload)}"


def shown_cause(revision: Manifest) -> str:
    """Return why the plan of a revision was last active."""
    return annotations_of(revision).get(CAUSE_ANNOTATION, "")


def _first_data(record: PlanRecord) -> dict[str, str]:
    baseline = record.baseline
    kept = PlanBaseline(workload=baseline.workload, cause=baseline.cause, changed_at=baseline.changed_at)
    return record_data(replace(record, baseline=kept))
