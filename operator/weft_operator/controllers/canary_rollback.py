"""Return to the plan before, once all workers are back from one whose canary failed. Pure."""

from collections.abc import Callable, Sequence
from datetime import datetime

from weft_operator.api.objects import Manifest
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.render.config_maps import read_record
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.plan_summary import plan_summary
from weft_operator.render.revisions import number_of
from weft_operator.replanning.rollback import roll_back, unusable
from weft_operator.rollout.ledger import CanaryPhase, Ledger, target_hash


def canary_phase(ledger: Ledger | None, name: str) -> CanaryPhase | None:
    """Return how far the canary of a plan is, by the name that its workers have in the ledger; None without one."""
    canary = None if ledger is None else ledger.canary
    return canary.state if canary is not None and canary.plan == name else None


def plan_before_canary(
    record: PlanRecord,
    spec: DisaggInferenceServiceSpec,
    ledger: Ledger,
    *,
    request_hash: str,
    plans: Sequence[Manifest],
    name_of: Callable[[PlanRecord], str],
    now: datetime,
) -> PlanRecord:
    """Return the newest kept plan with the workers that are back, held against the one that failed.

    ``plans`` are the kept revisions, ``name_of`` names a plan's workers under today's spec as the ledger does. Where
    none of them has these workers any more, or it cannot run for this spec, the record stays as it is: the refusal in
    the ledger keeps the plan that failed away.
    """
    canary = ledger.canary
    if canary is None or canary.state != "RolledBack" or canary.plan != name_of(record):
        return record
    before = target_hash(ledger.base)
    for plan in sorted(plans, key=number_of, reverse=True):
        to = read_record(plan)
        if to is None or unusable(spec, to) or name_of(to) != before:
            continue
        cause = f"{plan_summary(record.plan)} was tried: {canary.message}"
        return roll_back(record, to, spec, request_hash=request_hash, cause=cause, now=now)
    return record
