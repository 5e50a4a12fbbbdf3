"""How a new plan is tried before it replaces the old one."""

from typing import Annotated, ClassVar

from pydantic import Field

from weft_core.durations import parse_duration
from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.fields import Duration

DAY_S = 86400.0


class Canary(ApiModel):
    """A new plan is tried on a share of the new sessions before it replaces the old one."""

    percent: Annotated[int, Field(ge=1, le=50)] = 10
    """Share of new sessions that go to the new plan's workers, as far as these have the GPUs for it."""
    window: Duration = "10m"
    """How long it is tried before it is judged; one that is clearly bad is given up earlier."""
    min_samples: Annotated[int, Field(ge=5, le=1_000_000)] = 30
    """Rounds of the new plan's workers below which nothing is judged."""
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of rounds by which it may stay below the predicted attainment."""
    max_window: Duration | None = None
    """How long it is tried at most where too little is seen; then it is given up. Three windows if absent."""

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
