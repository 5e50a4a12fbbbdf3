"""``status.plan`` and ``status.proposedPlan``, with the differences between the two."""

from typing import Any

from weft_core.durations import format_seconds
from weft_core.layouts import named_workers
from weft_core.parallelism import Degree, gpus_words
from weft_core.plan import Plan, PlannedGroup, WorkerRole, plan_to_json
from weft_core.prediction import Prediction
from weft_core.shortfall import Shortfall
from weft_operator.api.objects import timestamp
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.plan_summary import MAX_MESSAGE, made_from, plan_summary
from weft_planner.request.manifest_change import manifest_change

MAX_NOTES = 16
MAX_REMEDIES = 16
MAX_LINES = 32
_DIGITS = 6


def plan_status(record: PlanRecord) -> dict[str, Any]:
    """Return ``status.plan``: without alternatives, and without empty or unbounded values."""
    plan = record.plan
    body = plan_to_json(plan)
    del body["alternatives"]
    shown: dict[str, Any] = _shown(body)
    if plan.shortfall is not None:
        shown["shortfall"] |= _shortfall(plan.shortfall)
    for text in ("reason", "sloReading"):
        shown[text] = str(body[text])[:MAX_MESSAGE]
    shown["madeFrom"] = made_from(record.baseline.workload)
    if plan.notes:
        shown["notes"] = [note[:MAX_MESSAGE] for note in plan.notes[:MAX_NOTES]]
    return shown


def _shortfall(shortfall: Shortfall) -> dict[str, Any]:
    """Return the message and the remedies as a status may have them."""
    changes = [manifest_change(remedy) for remedy in shortfall.remedies[:MAX_REMEDIES]]
    remedies = [{"path": path, **({} if value is None else {"value": value[:MAX_MESSAGE]})} for path, value in changes]
    return {"message": shortfall.message[:MAX_MESSAGE], **({"remedies": remedies} if remedies else {})}


def _shown(value: Any) -> Any:
    """Return a value with rounded figures and without empty parts: unknown values are absent in a status."""
    if isinstance(value, dict):
        kept = {key: _shown(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not None and item not in ("", [], {})}
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return round(value, _DIGITS) if isinstance(value, float) else value


def proposed_status(record: PlanRecord) -> dict[str, Any] | None:
    """Return ``status.proposedPlan``, None where there is no proposal."""
    proposal = record.baseline.proposal
    if proposal is None:
        return None
    plan, body = proposal.plan, _shown(plan_to_json(proposal.plan))
    return {
        "hash": proposal.hash,
        "revision": plan.revision,
        "summary": plan_summary(plan),
        "reason": proposal.cause[:MAX_MESSAGE],
        "madeFrom": made_from(proposal.workload),
        "madeAt": timestamp(proposal.made_at),
        "groups": body["groups"],
        "gpus": plan.gpus,
        "predicted": body["predicted"],
        "diff": plan_diff(record.plan, plan),
    }


def plan_diff(old: Plan, new: Plan) -> list[str]:
    """Return the differences between two plans as lines: workers, GPUs, routing rules and predictions.

    The old plan's predictions are for the new plan's traffic; where the planner did not evaluate it there, only the
    new plan's are listed.
    """
    lines = []
    for place in sorted(
        {_place(group) for group in (*old.groups, *new.groups)}, key=lambda at: (at[0] != "prefill", at)
    ):
        before, after = _replicas(old, place), _replicas(new, place)
        if before != after:
            role, degree, pool = place
            gpus = gpus_words(degree)
            lines.append(f"{named_workers(role)} of {gpus} in {pool}: {before} -> {after}")
    stays = next((one for one in new.alternatives if sorted(one.groups) == sorted(old.groups)), None)
    was = stays.predicted if stays is not None else None
    pairs = [
        ("layout", old.layout, new.layout),
        ("policy", _policy(old), _policy(new)),
        ("GPUs", str(old.gpus), str(new.gpus)),
    ]
    if was is not None:
        pairs += [(name, text(was), text(new.predicted)) for name, text in _FIGURES.items()]
    lines += [f"{name}: {before} -> {after}" for name, before, after in pairs if before != after]
    if was is None:
        figures = [(name, text(new.predicted)) for name, text in _FIGURES.items()]
        lines += [f"{name}: {figure}" for name, figure in figures if figure != "?"]
        lines.append("the other plan was not evaluated at the same traffic")
    return lines[:MAX_LINES]


def _place(group: PlannedGroup) -> tuple[WorkerRole, Degree, str]:
    return group.role, group.degree, group.pool


def _replicas(plan: Plan, place: tuple[WorkerRole, Degree, str]) -> int:
    return sum(group.replicas for group in plan.groups if _place(group) == place)


def _policy(plan: Plan) -> str:
    return "" if plan.policy is None else f"{plan.policy}, order {plan.policy.order}, binding {plan.policy.binding}"


def _goodput(predicted: Prediction) -> str:
    return "?" if predicted.goodput is None else f"{predicted.goodput.value:.3g} sessions/s"


def _attainment(predicted: Prediction) -> str:
    return "?" if predicted.attainment is None else f"{predicted.attainment.value:.1%}"


def _cost(predicted: Prediction) -> str:
    return "?" if predicted.cost_per_hour is None else f"{predicted.cost_per_hour:.2f} an hour"


_FIGURES = {
    "predicted TTFT": lambda p: format_seconds(p.ttft_p95_s),
    "predicted ITL": lambda p: format_seconds(p.itl_p95_s),
    "predicted attainment": _attainment,
    "carries within the SLO": _goodput,
    "cost": _cost,
}
