"""Loads of the workers that ask for another plan before the SLO suffers, as autoscalers of single metrics do."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from weft_core.durations import parse_duration
from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.fields import Duration
from weft_operator.api.scaling import DAY_S

TriggerMetric = Literal["PrefillQueue", "DecodeBatch", "DecodeKVUse", "PrefillGPUUtilization", "DecodeGPUUtilization"]

SHARES = ("DecodeKVUse", "PrefillGPUUtilization", "DecodeGPUUtilization")
"""Metrics that are shares of a whole."""

Load = Annotated[float, Field(gt=0, le=1e6)]


class Trigger(ApiModel):
    """A load of the workers above which the planner is asked for a plan with more capacity."""

    metric: TriggerMetric
    """PrefillQueue: waiting and running prefills per prefill worker. DecodeBatch: sequences that a decode worker's
    engine runs. DecodeKVUse: share of its KV cache in use. PrefillGPUUtilization, DecodeGPUUtilization: share of time
    in which a GPU is busy, from NVIDIA's DCGM exporter. Each is the mean over the workers of the role."""
    target: Load
    """Mean over the window above which the planner is asked for so many times the traffic, at most twice."""
    lower_bound: Load | None = None
    """Mean below which a smaller plan may be made; half of the target if absent."""
    window: Duration = "1m"
    """Time over which the mean is taken."""
    cooldown: Duration = "5m"
    """Shortest time from a decision of the planner to the next one for this trigger."""

    @property
    def least(self) -> float:
        """Return the mean below which a smaller plan may be made."""
        return self.target / 2 if self.lower_bound is None else self.lower_bound

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!(self.metric in {list(SHARES)}) || self.target <= 1.0",
            "spec.planning.triggers.target: a share is at most 1; 0.8 is common",
            lambda t: t.metric not in SHARES or t.target <= 1,
        ),
        Rule(
            "!has(self.lowerBound) || self.lowerBound < self.target",
            "spec.planning.triggers.lowerBound: must be below target; half of it is common",
            lambda t: t.lower_bound is None or t.lower_bound < t.target,
        ),
        Rule(
            "duration(self.window) >= duration('15s') && duration(self.window) <= duration('1h')",
            "spec.planning.triggers.window: must be between 15s and 1h; 1m is common",
            lambda t: 15 <= parse_duration(t.window) <= 3600,
        ),
        Rule(
            "duration(self.cooldown) >= duration('1m') && duration(self.cooldown) <= duration('24h')",
            "spec.planning.triggers.cooldown: must be between 1m and 24h; 5m is common",
            lambda t: 60 <= parse_duration(t.cooldown) <= DAY_S,
        ),
    )


Triggers = Annotated[
    list[Trigger], Field(min_length=1, max_length=5, json_schema_extra={"x-kubernetes-list-map-keys": ["metric"]})
]
