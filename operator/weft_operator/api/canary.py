"""How a new plan is tried before it replaces the old one."""

from typing import Annotated, ClassVar

from pydantic import Field

from weft_core.durations import parse_duration
from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.fields import Duration

DAY_S = 86400.0


class Canary(ApiModel):
    """A new plan gets a share of the new sessions before it replaces the old one."""

    percent: Annotated[int, Field(ge=1, le=50)] = 10
    """Percentage of new sessions for the new plan's workers, if the budget has GPUs for that."""
    window: Duration = "10m"
    """Duration of the canary until it is analyzed; one that is clearly bad fails earlier."""
    min_samples: Annotated[int, Field(ge=5, le=1_000_000)] = 30
    """Rounds of the new plan's workers that the analysis needs."""
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of rounds by which attainment may be below the prediction."""
    max_window: Duration | None = None
    """Longest duration of the canary; without enough samples by then it fails. Three windows if absent."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "duration(self.window) >= duration('10s') && duration(self.window) <= duration('24h')",
            "spec.rollout.canary.window: must be between 10s and 24h; 10m is common",
            lambda c: 10 <= parse_duration(c.window) <= DAY_S,
        ),
        Rule(
            "!has(self.maxWindow) || duration(self.maxWindow) >= duration(self.window)",
            "spec.rollout.canary.maxWindow: is below window; raise it, or remove it: three windows are the default",
            lambda c: c.max_window is None or parse_duration(c.max_window) >= parse_duration(c.window),
        ),
        Rule(
            "!has(self.maxWindow) || duration(self.maxWindow) <= duration('168h')",
            "spec.rollout.canary.maxWindow: must be at most 168h; three windows are the default",
            lambda c: c.max_window is None or parse_duration(c.max_window) <= 7 * DAY_S,
        ),
    )
