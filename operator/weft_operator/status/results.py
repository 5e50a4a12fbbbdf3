"""The results of one pass's sub-reconcilers, from which the status is built."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from weft_core.heartbeat import WorkerRecord
from weft_core.layouts import Role
from weft_operator.api.conditions import ConditionValue
from weft_operator.api.objects import ServiceKey
from weft_operator.metrics.observation import Observation
from weft_operator.render.inputs import PlanRecord
from weft_operator.replanning.drift import DetectedDrift
from weft_operator.rollout.advance import RolloutStep
from weft_operator.workers.readiness import CoordinatorState, PickerState, WorkerState


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The plan to carry out (None: there is none yet), and the condition Planned."""

    record: PlanRecord | None
    planned: ConditionValue
    requeue_after: float | None = None
    """Seconds after which another plan may be due without an event."""
    schedule: tuple[str, datetime | None] | None = None
    """The name of the active schedule ("" for none) and when it ends; None for a service without schedules."""
    demand_unknown: bool = False
    """Whether the service is at zero and its demand cannot be read from Redis."""


@dataclass(frozen=True, slots=True)
class WeightsResult:
    """The condition ModelReady (None: the engines load weights by themselves), and whether workers wait for weights."""

    condition: ConditionValue | None = None
    missing: Literal["", "Coming", "Refused"] = ""
    """Coming: a download is under way. Refused: the weights come only after a change."""


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """The state of the rollout."""

    active: PlanRecord | None = None
    """The old plan, where the rollout of the newest one was rolled back."""
    number: int = 0
    """The number of the active plan's revision."""
    step: RolloutStep | None = None
    """None where others set the replicas."""
    served: frozenset[Role] = frozenset()
    """The duties of which a worker serves, of the old plan or of the new one."""
    canary: Mapping[str, Any] | None = None
    """``status.canary``; None without a canary."""
    router: tuple[str, str] = ("", "")
    """The router image that the service is pinned to, and the operator's."""


@dataclass(frozen=True, slots=True)
class WorkersResult:
    """The workers and coordinators after the actions of the pass."""

    states: tuple[WorkerState, ...] = ()
    groups: Sequence[Mapping[str, Any]] = ()
    """``status.groups``."""
    coordinator: CoordinatorState = field(default_factory=lambda: CoordinatorState(available=False, rolled_out=False))
    picker: PickerState | None = None
    """None without endpoint pickers."""
    lost: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()
    """Workers that drain or terminate."""
    failure: ConditionValue | None = None
    """Why an object could not be applied."""
    heartbeats: Mapping[str, WorkerRecord] | None = None
    """The newest heartbeats by worker; None where no condition needs them."""

    @property
    def ready(self) -> list[str]:
        """Return the names of the workers that are ready."""
        return [state.name for state in self.states if state.ready]


@dataclass(frozen=True, slots=True)
class MetricsResult:
    """The metrics of the running service, and its drift from what the plan was made for."""

    observation: Observation | None = None
    """The observation that the status shows; None before the first query."""
    drifts: tuple[DetectedDrift, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceResult:
    """The results of one pass over a service."""

    key: ServiceKey
    generation: int
    plan: PlanResult
    weights: WeightsResult = WeightsResult()
    rollout: RolloutResult = RolloutResult()
    workers: WorkersResult = field(default_factory=WorkersResult)
    metrics: MetricsResult = MetricsResult()
    profile: ConditionValue | None = None
    """The condition ProfileMeasured; None where no measurement is requested."""
    tiers: ConditionValue | None = None
    """The condition KVCacheTiers; None without spec.kvCache and spec.engine.kvEvents."""
