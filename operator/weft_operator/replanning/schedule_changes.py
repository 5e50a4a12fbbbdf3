"""Changes of the active schedule: a plan with fewer GPUs is deferred while metrics contradict it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from weft_operator.api.objects import ServiceKey
from weft_operator.api.scaling import Schedule
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.metrics.observation import Observation
from weft_operator.planning.planner_process import Answer, Planned
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.plan_summary import plan_summary
from weft_operator.replanning.comparison import shrinks, too_small
from weft_operator.replanning.decide import UNMEASURED
from weft_operator.scaling.schedules import in_force, next_edge

RECHECK_S = 120.0
"""Time between two checks of a deferred plan."""


def why_deferred(
    spec: DisaggInferenceServiceSpec, record: PlanRecord | None, answer: Answer | None, seen: Observation | None
) -> str:
    """Return why the plan for a new schedule must wait, "" where it has no fewer GPUs or the load fits into it.

    A changed spec, and a mode in which a person decides, are not deferred.
    """
    if record is None or not isinstance(answer, Planned) or record.spec != spec or spec.planning.mode != "Auto":
        return ""
    plan = answer.plan
    if not shrinks(record.plan, plan) or seen is None or seen.availability.reason in UNMEASURED:
        return ""
    small = f"{plan_summary(plan)} has fewer GPUs than {plan_summary(record.plan)}"
    if not seen.availability.seen or seen.workload is None:
        return f"{small}, and metrics are missing ({seen.availability.reason}); see the condition MetricsAvailable"
    rate = seen.workload.session_rate + seen.workload.refused_rate
    if plan.validity is not None and rate > plan.validity.rate_high:
        return f"{small}: it holds the SLO up to {plan.validity.rate_high:.3g} sessions/s, and {rate:.3g} arrive"
    full = too_small(record, plan, {"": answer.profile, **answer.profiles}, seen.pressure)
    return f"{small}, too few for the live sessions: {full}" if full else ""


@dataclass(slots=True)
class _ScheduleState:
    schedules: Sequence[Schedule] = ()
    until: datetime | None = None
    waits: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    """By request hash, for a deferred plan: why, and until when."""


class ScheduleTransitions:
    """The active schedule of each service, until when, and its deferred plans; kept in memory only."""

    def __init__(self) -> None:
        self._of: dict[ServiceKey, _ScheduleState] = {}

    def enter(self, key: ServiceKey, schedules: Sequence[Schedule], now: datetime) -> None:
        """Set the active schedule now."""
        state = self._of.setdefault(key, _ScheduleState())
        if state.schedules != schedules or state.until is None or now >= state.until:
            state.schedules, state.until = schedules, next_edge(schedules, now)

    def shown(self, key: ServiceKey, now: datetime) -> tuple[str, datetime | None] | None:
        """Return the name of the active schedule ("" for none) and when it ends; None without schedules."""
        state = self._of.get(key)
        if state is None or not state.schedules:
            return None
        schedule = in_force(state.schedules, now)
        return "" if schedule is None else schedule.name, state.until

    def waits(self, key: ServiceKey, request_hash: str, now: datetime) -> str:
        """Return why the plan for a request is deferred, "" where it is not."""
        why, until = self._of[key].waits.get(request_hash, ("", now))
        return why if now < until else ""

    def defer(self, key: ServiceKey, request_hash: str, why: str, now: datetime) -> None:
        """Defer the plan for a request for some time."""
        self._of[key].waits = {request_hash: (why, now + timedelta(seconds=RECHECK_S))}

    def requeue_after(self, key: ServiceKey, now: datetime) -> float | None:
        """Return the seconds until another schedule is active or a deferred plan is due; None where neither is."""
        state = self._of.get(key)
        if state is None:
            return None
        times = [until for _, until in state.waits.values() if until > now]
        times += [state.until] if state.until is not None else []
        return min(((time - now).total_seconds() for time in times), default=None)

    def forget(self, key: ServiceKey) -> None:
        """Drop the state of a service."""
        self._of.pop(key, None)
