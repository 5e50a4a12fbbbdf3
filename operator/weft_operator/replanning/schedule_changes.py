"""What other hours may take away: a plan with fewer GPUs comes only where nothing that is seen speaks against it."""

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

PAUSE_S = 120.0
"""How long a plan that waits is not judged again: meanwhile drift is."""


def speaks_against(
    spec: DisaggInferenceServiceSpec, record: PlanRecord | None, answer: Answer | None, seen: Observation | None
) -> str:
    """Return why the plan for other hours must wait, "" where it need not: it grows, or what is seen fits into it.

    Where somebody changed the spec itself, or approves what is done, it is done at once.
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
    return f"{small}, too few for the sessions that live now: {full}" if full else ""


@dataclass(slots=True)
class _Hour:
    schedules: Sequence[Schedule] = ()
    until: datetime | None = None
    waits: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    """Of a question whose answer waits: why, and till when."""


class ScheduleTransitions:
    """Which schedule each service is in, till when, and what waits for it; lost with the process, it is found again."""

    def __init__(self) -> None:
        self._of: dict[ServiceKey, _Hour] = {}

    def enter(self, key: ServiceKey, schedules: Sequence[Schedule], now: datetime) -> None:
        """Take in what holds now."""
        hour = self._of.setdefault(key, _Hour())
        if hour.schedules != schedules or hour.until is None or now >= hour.until:
            hour.schedules, hour.until = schedules, next_edge(schedules, now)

    def shown(self, key: ServiceKey, now: datetime) -> tuple[str, datetime | None] | None:
        """Return the name of the schedule in force ("" for none) and when that ends; None of a service without any."""
        hour = self._of.get(key)
        if hour is None or not hour.schedules:
            return None
        schedule = in_force(hour.schedules, now)
        return "" if schedule is None else schedule.name, hour.until

    def waits(self, key: ServiceKey, question: str, now: datetime) -> str:
        """Return why the answer to a request must wait, "" where it is due."""
        why, until = self._of[key].waits.get(question, ("", now))
        return why if now < until else ""

    def hold(self, key: ServiceKey, question: str, why: str, now: datetime) -> None:
        """Let the answer to a request wait for a while."""
        self._of[key].waits = {question: (why, now + timedelta(seconds=PAUSE_S))}

    def requeue_after(self, key: ServiceKey, now: datetime) -> float | None:
        """Return in how many seconds another schedule holds, or what waits is due; None where nothing changes."""
        hour = self._of.get(key)
        if hour is None:
            return None
        times = [until for _, until in hour.waits.values() if until > now]
        times += [hour.until] if hour.until is not None else []
        return min(((time - now).total_seconds() for time in times), default=None)

    def forget(self, key: ServiceKey) -> None:
        """Drop a service."""
        self._of.pop(key, None)
