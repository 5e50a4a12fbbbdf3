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
from weft_operator.rollout.groups import GroupTarget
from weft_operator.rollout.ledger import CanaryPhase, Ledger, target_hash, workers_of


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
    target_of: Callable[[PlanRecord], Sequence[GroupTarget]],
    now: datetime,
) -> PlanRecord:
    """Return the newest stored plan with the workers of the ledger's base, held until the inputs change.

    ``plans`` are the stored revisions; ``target_of`` returns a plan's groups under the current spec. The base may have
    other names for the same workers, which were replaced by ones whose roles can change. Where no other plan than the
    failed one has these workers, or can run for this spec, the record stays: the refusal in the ledger keeps the failed
    plan from running.
    """
    canary = ledger.canary
    if canary is None or canary.state != "RolledBack" or canary.plan != target_hash(target_of(record)):
        return record
    before = workers_of(ledger.base)
    for plan in sorted(plans, key=number_of, reverse=True):
        to = read_record(plan)
        if to is None or unusable(spec, to):
            continue
        target = target_of(to)
        if workers_of(target) != before or target_hash(target) == canary.plan:
            continue
        cause = f"{plan_summary(record.plan)} failed its canary: {canary.message}"
        return roll_back(record, to, spec, request_hash=request_hash, cause=cause, now=now)
    return record
