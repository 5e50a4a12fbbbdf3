"""Restore the old plan once the rollback of a failed canary is complete. Pure."""

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
    """Return the phase of a plan's canary by the plan's hash in the ledger; None without one."""
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
    """Return the newest stored plan with the workers of the ledger's base, held until the inputs change.

    ``plans`` are the stored revisions; ``name_of`` returns a plan's hash under the current spec. Where none has these
    workers or can run for this spec, the record stays: the refusal in the ledger keeps the failed plan from running.
    """
    canary = ledger.canary
    if canary is None or canary.state != "RolledBack" or canary.plan != name_of(record):
        return record
    before = target_hash(ledger.base)
    for plan in sorted(plans, key=number_of, reverse=True):
        to = read_record(plan)
        if to is None or unusable(spec, to) or name_of(to) != before:
            continue
        cause = f"{plan_summary(record.plan)} failed its canary: {canary.message}"
        return roll_back(record, to, spec, request_hash=request_hash, cause=cause, now=now)
    return record
