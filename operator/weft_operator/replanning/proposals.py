"""Proposals of another plan: made, shown, approved. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.planning.planner_process import Planned
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.plan_baseline import PlanBaseline, Proposal, proposal_hash
from weft_operator.render.plan_summary import plan_summary
from weft_operator.replanning.comparison import same_rules
from weft_operator.replanning.drift_report import judged_traffic
from weft_operator.replanning.workload import stored


def approve(record: PlanRecord, spec: DisaggInferenceServiceSpec, *, now: datetime) -> PlanRecord:
    """Return the record with its proposal active."""
    proposal = record.baseline.proposal
    if proposal is None:
        raise ValueError("there is no proposal to approve")
    return PlanRecord(
        spec=spec,
        plan=proposal.plan,
        profile=proposal.profile,
        request_hash=proposal.request_hash,
        profiles=proposal.profiles,
        baseline=PlanBaseline(
            workload=proposal.workload,
            cause=proposal.cause if proposal.request_hash == record.request_hash else "",
            changed_at=now,
            judged_at=now,
            judged=None if proposal.workload is None else judged_traffic(proposal.workload),
            approved=proposal.hash,
            rolled_back=record.baseline.rolled_back,
        ),
    )


def propose(
    record: PlanRecord,
    answer: Planned,
    *,
    request_hash: str,
    cause: str,
    now: datetime,
    workload: Mapping[str, Any] | None = None,
) -> PlanRecord:
    """Return the record with a proposal; an existing one for the same change stays."""
    before = record.baseline.proposal
    same = before is not None and before.request_hash == request_hash and same_rules(before.plan, answer.plan)
    proposal = (
        before
        if before is not None and same
        else Proposal(
            hash=proposal_hash(answer.plan, instead_of=record.plan, request_hash=request_hash, made_at=now),
            plan=answer.plan,
            profile=answer.profile,
            profiles=answer.profiles,
            request_hash=request_hash,
            workload=None if workload is None else stored(workload),
            cause=cause,
            made_at=now,
        )
    )
    return replace(record, baseline=replace(record.baseline, proposal=proposal, judged_at=now, verdict=("", "")))


def waits(record: PlanRecord, mode: str) -> tuple[str, str]:
    """Return the reason and message of a pending proposal; two empty texts without one."""
    proposal = record.baseline.proposal
    if proposal is None:
        return "", ""
    change = f"{plan_summary(record.plan)} -> {plan_summary(proposal.plan)}"
    if mode == "Manual":
        return "AwaitingApproval", (
            f"{change} is proposed, because {proposal.cause}; approve it with the annotation weft.dev/approve: "
            f"{proposal.hash}"
        )
    return (
        "ReplanProposed",
        f"{change} is proposed, because {proposal.cause}; spec.planning.mode {mode} applies nothing",
    )


def stale(record: PlanRecord, approval: str) -> str:
    """Return the message for an approval that does not match the proposal."""
    proposal = record.baseline.proposal
    there = "there is no proposal" if proposal is None else f"the proposal is {proposal.hash}"
    return (
        f"the annotation weft.dev/approve names {approval[:64]!r}, and {there}; nothing was changed: look at "
        "status.proposedPlan, and approve its hash or remove the annotation"
    )
