"""The traffic a plan is made for, as users and the operator write it: ``spec.workload`` in seconds and tokens.

Every figure has a mean and may have a shape: a coefficient of variation, quantiles or a histogram. A shape is scaled
to its mean, so that an observed mean may replace a given one. A mean alone takes ``ASSUMED_VARIATION``, and the
workload says so.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from weft_planner.workload.arrivals import Arrivals, RenewalArrivals, ReplayedArrivals
from weft_planner.workload.distributions import Constant, Distribution, Empirical, Lognormal, from_histogram

ASSUMED_VARIATION = 0.6
"""Coefficient of variation where only a mean is given: wide enough for agents, and the study's choice."""
POINTS = 64
"""Quantiles or bins of one shape at most: what a person can read in a manifest."""
LARGEST_SCALING = 1.05
"""A shape whose own mean is further than this factor from the stated mean is scaled with a note."""

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Number = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Points = Annotated[tuple[Number, ...], Field(min_length=2, max_length=POINTS)]
Shares = Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=2, max_length=POINTS)]
Weights = Annotated[tuple[NotNegative, ...], Field(min_length=1, max_length=POINTS)]
Stamps = Annotated[tuple[NotNegative, ...], Field(min_length=2, max_length=20_000)]
ClassName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class QuantileShape(_Part):
    """A shape by quantiles: the share ``at[i]`` of all values is not above ``values[i]``; straight in between."""

    at: Shares
    values: Points


class Histogram(_Part):
    """A shape by bins: ``edges`` are one more than ``weights``."""

    edges: Points
    weights: Weights


class Figure(_Part):
    """A figure's mean and shape; cv 0 makes it constant."""

    mean: Number
    cv: Annotated[float, Field(ge=0, le=20, allow_inf_nan=False)] | None = None
    quantiles: QuantileShape | None = None
    histogram: Histogram | None = None

    @model_validator(mode="before")
    @classmethod
    def _a_number_is_a_mean(cls, value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"mean": value}
        return value

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        given = [name for name in ("cv", "quantiles", "histogram") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: give one of them")
        try:
            shape = self._shape()
        except ValueError as error:
            raise ValueError(f"{given[0]}: {error}") from error
        if shape is not None and shape.mean <= 0 < self.mean:
            raise ValueError(f"{given[0]}: all values are 0, but mean is {self.mean:g}; correct one")
        return self

    @property
    def assumed(self) -> bool:
        """Return whether the shape is assumed, because only a mean is given."""
        return self.mean > 0 and self.cv is None and self.quantiles is None and self.histogram is None

    @property
    def scaling(self) -> float:
        """Return the factor by which a given shape is scaled to the mean; 1 without one."""
        shape = self._shape()
        return 1.0 if shape is None or shape.mean <= 0 else self.mean / shape.mean

    def _shape(self) -> Empirical | None:
        if self.quantiles is not None:
            return Empirical(at=self.quantiles.at, values=self.quantiles.values)
        if self.histogram is not None:
            return from_histogram(self.histogram.edges, self.histogram.weights)
        return None

    def distribution(self, *, assumed: float = ASSUMED_VARIATION) -> Distribution:
        """Return what values follow; ``assumed`` is the variation where only a mean is given."""
        shape = self._shape()
        if shape is not None:
            return shape.scaled(self.mean)
        variation = assumed if self.cv is None else self.cv
        return Lognormal(self.mean, variation) if self.mean > 0 and variation > 0 else Constant(self.mean)


class Rounds(Figure):
    """Model calls of a session."""

    mean: Annotated[float, Field(ge=1, le=10_000, allow_inf_nan=False)]

    def distribution(self, *, assumed: float = ASSUMED_VARIATION) -> Distribution:
        """Return what rounds follow; an assumed variation is that of the rounds after the first."""
        extra = self.mean - 1
        return super().distribution(assumed=assumed * extra / self.mean)


class Tokens(Figure):
    """A length in tokens."""

    mean: Annotated[float, Field(gt=0, le=10_000_000, allow_inf_nan=False)]


class Gap(Figure):
    """Seconds between an answer and the next round."""

    mean: Annotated[float, Field(ge=0, le=604_800, allow_inf_nan=False)]


class Process(_Part):
    """How sessions arrive; ``cv`` is that of the distances between them, ``timestamps`` are seconds."""

    process: Literal["poisson", "gamma", "replayed"] = "poisson"
    cv: Annotated[float, Field(ge=0, le=20, allow_inf_nan=False)] | None = None
    timestamps: Stamps | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.cv is not None) != (self.process == "gamma"):
            raise ValueError("cv: needed for process gamma and for no other")
        if (self.timestamps is not None) != (self.process == "replayed"):
            raise ValueError("timestamps: needed for process replayed and for no other")
        if self.timestamps is not None:
            if any(b < a for a, b in zip(self.timestamps, self.timestamps[1:], strict=False)):
                raise ValueError("timestamps: must not fall; sort them")
            if self.timestamps[-1] <= self.timestamps[0]:
                raise ValueError("timestamps: all are the same; give times that differ, or process poisson")
        return self

    @property
    def arrivals(self) -> Arrivals:
        """Return the process."""
        if self.timestamps is not None:
            return ReplayedArrivals(self.timestamps)
        return RenewalArrivals(1.0 if self.cv is None else self.cv)


Prefix = Annotated[float, Field(ge=0, le=10_000_000, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SessionClass(_Part):
    """A kind of session: its share of all sessions, its SLO, and the figures in which it differs from the workload."""

    name: ClassName
    share: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    ttft: Seconds | None = None
    itl: Seconds | None = None
    rounds: Rounds | None = None
    first_prompt: Tokens | None = None
    increment: Tokens | None = None
    decode: Tokens | None = None
    gap: Gap | None = None
    shared_prefix: Prefix | None = None


@dataclass(frozen=True, slots=True)
class ClassTraffic:
    """A class with all that it takes from the workload; ``share`` of all sessions, ``prefix`` in tokens."""

    name: str
    share: float
    ttft: float | None
    itl: float | None
    rounds: Distribution
    first_prompt: Distribution
    increment: Distribution
    decode: Distribution
    gap: Distribution
    prefix: float

    @property
    def total_tokens(self) -> float:
        """Return the mean length of a whole session."""
        later = self.rounds.mean - 1
        return self.first_prompt.mean + later * self.increment.mean + self.rounds.mean * self.decode.mean


FIGURES = ("rounds", "first_prompt", "increment", "decode", "gap")


class Workload(_Part):
    """The traffic: sessions per second, rounds per session, tokens per round, seconds between rounds.

    ``shared_prefix`` are the leading tokens of a first prompt that every session has in common; ``source`` says where
    the figures are from, ``notes`` what was filled in or inferred on the way.
    """

    arrival_rate: Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)]
    arrivals: Process = Process()
    rounds: Rounds
    first_prompt: Tokens
    increment: Tokens
    decode: Tokens
    gap: Gap = Gap(mean=0)
    shared_prefix: Prefix = 0
    classes: Annotated[tuple[SessionClass, ...], Field(max_length=16)] = ()
    source: Annotated[str, Field(max_length=1024)] = ""
    notes: Annotated[tuple[Annotated[str, Field(max_length=1024)], ...], Field(max_length=32)] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [item.name for item in self.classes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"classes: the name {twice[0]!r} is used twice; give each class its own")
        for item in self.mix:
            if item.prefix >= item.first_prompt.mean:
                where = f"classes {item.name}: " if item.name else ""
                raise ValueError(
                    f"{where}sharedPrefix: {item.prefix:g} tokens must be fewer than the mean first prompt "
                    f"({item.first_prompt.mean:g}); lower it or raise firstPrompt"
                )
        return self

    @property
    def mix(self) -> tuple[ClassTraffic, ...]:
        """Return the classes with shares that sum up to 1; one without a name where none is given."""
        total = math.fsum(item.share for item in self.classes)
        listed = self.classes or (None,)
        return tuple(self._class(item, total) for item in listed)

    def _class(self, item: SessionClass | None, total: float) -> ClassTraffic:
        own = {name: getattr(item, name) for name in FIGURES} if item is not None else {}
        given: Mapping[str, Figure] = {name: own.get(name) or getattr(self, name) for name in FIGURES}
        return ClassTraffic(
            name=item.name if item is not None else "",
            share=item.share / total if item is not None else 1.0,
            ttft=item.ttft if item is not None else None,
            itl=item.itl if item is not None else None,
            prefix=self.shared_prefix if item is None or item.shared_prefix is None else item.shared_prefix,
            **{name: figure.distribution() for name, figure in given.items()},
        )

    @property
    def mean_rounds(self) -> float:
        """Return the rounds of a session, over all classes."""
        return math.fsum(item.share * item.rounds.mean for item in self.mix)

    @property
    def mean_decode(self) -> float:
        """Return the tokens of an answer, over the rounds of all classes."""
        mix = self.mix
        return math.fsum(item.share * item.rounds.mean * item.decode.mean for item in mix) / self.mean_rounds

    @property
    def mean_gap(self) -> float:
        """Return the seconds between rounds, over the rounds of all classes."""
        mix = self.mix
        return math.fsum(item.share * item.rounds.mean * item.gap.mean for item in mix) / self.mean_rounds

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Say what was not given but assumed, filled in or inferred: one clause each."""
        said = list(self.notes)
        figures: list[tuple[str, Figure]] = [(to_camel(name), getattr(self, name)) for name in FIGURES]
        for item in self.classes:
            own = [(name, getattr(item, name)) for name in FIGURES]
            figures += [
                (f"{to_camel(name)} of class {item.name}", figure) for name, figure in own if figure is not None
            ]
        means = [name for name, figure in figures if figure.assumed and not (name == "rounds" and figure.mean == 1)]
        if means:
            said.append(
                f"only means are given for {_listed(means)}: they are drawn lognormal with a coefficient of variation "
                f"of {ASSUMED_VARIATION:g}"
            )
        for name, figure in figures:
            if not 1 / LARGEST_SCALING <= figure.scaling <= LARGEST_SCALING:
                said.append(f"the shape of {name} was scaled by {figure.scaling:.3g} to its mean {figure.mean:g}")
        return tuple(dict.fromkeys(said))


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
