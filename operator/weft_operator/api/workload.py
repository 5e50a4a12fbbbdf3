"""What latencies are promised, and the load the first plan is made for."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from weft_core.durations import parse_duration
from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.fields import Duration, Fraction


class Slo(ApiModel):
    """The service level objective; a session counts when every TTFT and its mean ITL are within the thresholds."""

    ttft: Duration
    """Longest time to the first token of a round, queueing included."""
    itl: Duration
    """Longest time between two tokens."""
    percentile: Literal[50, 90, 95, 99] = 95
    """Percentile of rounds that predictions are made for."""
    attainment: Fraction = 0.9
    """Share of sessions that must meet both thresholds."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "duration(self.itl) > duration('0s')",
            "spec.slo.itl: must be longer than 0; 50ms is common",
            lambda s: parse_duration(s.itl) > 0,
        ),
        Rule(
            "duration(self.ttft) > duration(self.itl)",
            "spec.slo.ttft: must be longer than spec.slo.itl; a prefill takes longer than one decode step",
            lambda s: parse_duration(s.ttft) > parse_duration(s.itl),
        ),
    )


class Rounds(ApiModel):
    """Model calls of a session."""

    mean: Annotated[float, Field(ge=1, le=10_000)]
    """Mean number of rounds."""


class Tokens(ApiModel):
    """A number of tokens."""

    mean: Annotated[float, Field(gt=0, le=10_000_000)]
    """Mean number of tokens."""


class Gap(ApiModel):
    """The time between an answer and the next round: a person reads, a tool runs."""

    mean: Duration
    """Mean time."""


class Workload(ApiModel):
    """The load the plan is made for."""

    arrival_rate: Annotated[float, Field(gt=0, le=100_000)]
    """New sessions per second."""
    rounds: Rounds
    """Rounds of a session."""
    first_prompt: Tokens
    """Length of a session's first prompt."""
    increment: Tokens
    """New tokens of each later round: tool results, the user's next message."""
    decode: Tokens
    """Length of an answer."""
    gap: Gap = Gap(mean="5s")
    """Time between an answer and the next round."""
