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
    """Return how far the trial of a plan is, by the name that its workers have in the ledger; None without one."""
    trial = None if ledger is None else ledger.trial
    return trial.state if trial is not None and trial.plan == name else None


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
    trial = ledger.trial
    if trial is None or trial.state != "RolledBack" or trial.plan != name_of(record):
        return record
    before = target_hash(ledger.base)
    for plan in sorted(plans, key=number_of, reverse=True):
        to = read_record(plan)
        if to is None or unusable(spec, to) or name_of(to) != before:
            continue
        cause = f"{plan_summary(record.plan)} was tried: {trial.message}"
        return roll_back(record, to, spec, request_hash=request_hash, cause=cause, now=now)
    return record
