"""The sub-reconciler of the rollout: the next step from the workers there are to those of the plan, or of a canary."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from weft_operator.api.objects import CANARY_ANNOTATION, Manifest, annotations_of
from weft_operator.api.worker_group import GROUP_KIND
from weft_operator.controllers.context import ReconcileContext
from weft_operator.metrics.observation import Observation
from weft_operator.render.inputs import PlanRecord, Rendering
from weft_operator.render.plan_summary import plan_summary
from weft_operator.render.revisions import Revision, find_revision, revision_name, revision_number
from weft_operator.rollout.canary_analysis import CanaryAnalysis
from weft_operator.rollout.replica_targets import desired_groups
from weft_operator.rollout.step import RolloutState, next_step
from weft_operator.status.results import PlanResult, RolloutResult
from weft_operator.workers.group_views import GroupView, served_duties, views_of


@dataclass(frozen=True, slots=True)
class NextRollout:
    """The next step of a rollout: what to render and to ask of the groups as they are seen, and what to say of it."""

    state: RolloutState
    views: tuple[GroupView, ...]
    rendering: Rendering
    result: RolloutResult


def next_rollout(ctx: ReconcileContext, record: PlanRecord, *, observation: Observation | None) -> NextRollout:
    """Return the next step from the groups there are to those of a plan."""
    rendering, views = ctx.rendering(record), views_of(ctx.observed.of_kind(GROUP_KIND))
    desired = desired_groups(
        ctx.key.name,
        record.plan.groups,
        views,
        revision=rendering.revision,
        scaled_by_hand=record.spec.planning.mode == "Off",
        fixed_roles=rendering.fixed_roles,
    )
    name = revision_name(ctx.key.name, record.plan)
    state = next_step(
        desired,
        views,
        record,
        revision=rendering.revision,
        ledger_text=ctx.ledger_text,
        now=ctx.now,
        plan=name,
        analysis=CanaryAnalysis(
            record.spec,
            record.plan,
            observation,
            ctx.observed.pods,
            annotation=annotations_of(ctx.service).get(CANARY_ANNOTATION, "").strip(),
        ),
    )
    before = _plan_before(state, ctx.revisions)
    rules = None if before is None else before.record.plan
    return NextRollout(
        state=state,
        views=views,
        rendering=replace(rendering, ledger=state.ledger_text, canary=state.canary, rules=rules),
        result=RolloutResult(
            active=None if before is None else before.record,
            number=before.number if before else revision_number(name, ctx.revisions),
            step=state.step,
            served=served_duties(views),
            canary=state.canary_status,
            router=(rendering.settings.router_image, ctx.settings.router_image),
        ),
    )


def with_rollout(plan: PlanResult, record: PlanRecord, rollout: RolloutResult) -> PlanResult:
    """Return the result of the plan that is rolled out; of one that was given up it names the plan in its place."""
    if rollout.active is None or plan.planned.status != "True":
        return replace(plan, record=record)
    given_up, stays = plan_summary(record.plan), plan_summary(rollout.active.plan)
    words = f"{plan.planned.message}; {given_up} was given up, and {stays} stays active"
    return replace(plan, record=record, planned=plan.planned._replace(message=words))


def _plan_before(state: RolloutState, revisions: Iterable[Manifest]) -> Revision | None:
    """Return the active plan in place of one that was given up; None where none was, or it is not kept."""
    if state.step is None or state.step.refusal is None:
        return None
    return find_revision(revisions, state.step.ledger.plan, [item.group for item in state.wanted])
