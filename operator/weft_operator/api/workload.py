"""``spec.slo`` and ``spec.workload``."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints

from weft_core.durations import parse_duration
from weft_core.slo import ItlStatistic, Unit
from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.fields import DnsLabel, Duration, Fraction, ObjectName

BY_NAME: dict[str, Any] = {"x-kubernetes-list-map-keys": ["name"]}
MOST_CLASSES = 16
MOST_POINTS = 64
MOST_STAMPS = 2000

DataKey = Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$", min_length=1, max_length=253)]


class SloClass(ApiModel):
    """Thresholds of one class of sessions; what is left out is the service's."""

    name: DnsLabel
    """Name of a class in spec.workload.classes."""
    ttft: Duration | None = None
    """Longest time to the first token of a round, queueing included."""
    itl: Duration | None = None
    """Longest time between two tokens."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(!has(self.itl) || duration(self.itl) > duration('0s'))"
            " && (!has(self.ttft) || duration(self.ttft) > duration('0s'))",
            "spec.slo.classes: ttft and itl must be longer than 0; leave one out to take the service's",
            lambda c: all(limit is None or parse_duration(limit) > 0 for limit in (c.ttft, c.itl)),
        ),
    )


class Slo(ApiModel):
    """The service level objective: thresholds, how much must meet them, and how that is counted."""

    ttft: Duration
    """Longest time to the first token of a round, queueing included."""
    itl: Duration
    """Longest time between two tokens."""
    percentile: Literal[50, 90, 95, 99] = 95
    """Percentile of rounds that predictions are made for."""
    attainment: Fraction = 0.9
    """Share of sessions, or rounds, that must meet both thresholds."""
    unit: Unit = "session"
    """What attainment counts: sessions of which every TTFT and the ITL over all tokens are met, or single rounds."""
    itl_statistic: ItlStatistic = "mean"
    """Which of the times between the unit's tokens must be within itl: their mean, their P95, or the largest."""
    classes: Annotated[list[SloClass], Field(max_length=MOST_CLASSES, json_schema_extra=BY_NAME)] | None = None
    """Other thresholds for classes of spec.workload.classes."""

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
        Rule(
            None,
            "spec.slo.classes: two classes have the same name; give each its own",
            lambda s: len({item.name for item in s.classes or ()}) == len(s.classes or ()),
        ),
    )


_ONE_SHAPE = "(has(self.cv) ? 1 : 0) + (has(self.quantiles) ? 1 : 0) + (has(self.histogram) ? 1 : 0) <= 1"
_SHAPE_MESSAGE = "spec.workload: give at most one of cv, quantiles and histogram of a figure; remove the others"
_AT = (
    "size(self.at) == size(self.values) && self.at[0] == 0.0 && self.at[size(self.at) - 1] == 1.0 && self.at.isSorted()"
)
_AT_MESSAGE = "spec.workload.quantiles: at must rise from 0 to 1 and be as long as values; correct the lists"
_VALUES_MESSAGE = "spec.workload.quantiles: values must not fall; sort them"
_EDGES_MESSAGE = (
    "spec.workload.histogram: edges must not fall and be one more than weights, of which one must be above 0; "
    "correct the lists"
)

Share = Annotated[float, Field(ge=0, le=1)]
Shares = Annotated[list[Share], Field(min_length=2, max_length=MOST_POINTS)]
Value = Annotated[float, Field(ge=0, le=10_000_000)]
Values = Annotated[list[Value], Field(min_length=2, max_length=MOST_POINTS)]
Times = Annotated[list[Duration], Field(min_length=2, max_length=MOST_POINTS)]
Weight = Annotated[float, Field(ge=0, le=1_000_000_000)]
Weights = Annotated[list[Weight], Field(min_length=1, max_length=MOST_POINTS)]
Variation = Annotated[float, Field(ge=0, le=20)]


def _rising(numbers: Sequence[float]) -> bool:
    return all(a <= b for a, b in pairwise(numbers))


def _plain(numbers: Sequence[float]) -> Sequence[float]:
    return numbers


def _in_seconds(times: Sequence[str]) -> Sequence[float]:
    return [parse_duration(item) for item in times]


def _shares_fit(q: "Quantiles | GapQuantiles") -> bool:
    return len(q.at) == len(q.values) and q.at[0] == 0 and q.at[-1] == 1 and _rising(q.at)


def _bins_fit(edges: Sequence[float], weights: Sequence[float]) -> bool:
    return len(edges) == len(weights) + 1 and _rising(edges) and sum(weights) > 0


def _one_shape(figure: "Rounds | Tokens | Gap") -> bool:
    return sum(shape is not None for shape in (figure.cv, figure.quantiles, figure.histogram)) <= 1


def _quantile_rules(values: str, numbers: Callable[[Any], Sequence[float]]) -> tuple[Rule, ...]:
    """Return the rules of a shape by quantiles; both arguments turn its values into what can be compared."""
    return (
        Rule(_AT, _AT_MESSAGE, _shares_fit),
        Rule(f"{values}.isSorted()", _VALUES_MESSAGE, lambda q: _rising(numbers(q.values))),
    )


def _histogram_rules(edges: str, numbers: Callable[[Any], Sequence[float]]) -> tuple[Rule, ...]:
    """Return the rules of a shape by bins; both arguments turn its edges into what can be compared."""
    cel = f"size(self.edges) == size(self.weights) + 1 && {edges}.isSorted() && self.weights.exists(w, w > 0.0)"
    return (Rule(cel, _EDGES_MESSAGE, lambda h: _bins_fit(numbers(h.edges), h.weights)),)


class Quantiles(ApiModel):
    """A shape by quantiles, straight in between."""

    at: Shares
    """Shares from 0 to 1, rising."""
    values: Values
    """The share at[i] of all values is not above values[i]; two equal values side by side are a step."""

    rules: ClassVar[tuple[Rule, ...]] = _quantile_rules("self.values", _plain)


class Histogram(ApiModel):
    """A shape by bins, values spread evenly within each."""

    edges: Values
    """Bounds of the bins, one more than weights."""
    weights: Weights
    """How much lies in each bin; any sum."""

    rules: ClassVar[tuple[Rule, ...]] = _histogram_rules("self.edges", _plain)


class GapQuantiles(ApiModel):
    """A shape of times by quantiles, straight in between."""

    at: Shares
    """Shares from 0 to 1, rising."""
    values: Times
    """The share at[i] of all gaps is not above values[i]."""

    rules: ClassVar[tuple[Rule, ...]] = _quantile_rules("self.values.map(v, duration(v))", _in_seconds)


class GapHistogram(ApiModel):
    """A shape of times by bins, values spread evenly within each."""

    edges: Times
    """Bounds of the bins, one more than weights."""
    weights: Weights
    """How much lies in each bin; any sum."""

    rules: ClassVar[tuple[Rule, ...]] = _histogram_rules("self.edges.map(e, duration(e))", _in_seconds)


class Rounds(ApiModel):
    """Model calls of a session; with a mean alone those after the first vary by 0.6 (standard deviation / mean)."""

    mean: Annotated[float, Field(ge=1, le=10_000)]
    """Mean number of rounds; a shape is scaled to it."""
    cv: Variation | None = None
    """Coefficient of variation of a lognormal; 0: always the mean."""
    quantiles: Quantiles | None = None
    """The distribution by quantiles."""
    histogram: Histogram | None = None
    """The distribution by bins."""

    rules: ClassVar[tuple[Rule, ...]] = (Rule(_ONE_SHAPE, _SHAPE_MESSAGE, _one_shape),)


class Tokens(ApiModel):
    """A number of tokens; with a mean alone it varies by 0.6 (standard deviation / mean)."""

    mean: Annotated[float, Field(gt=0, le=10_000_000)]
    """Mean number of tokens; a shape is scaled to it."""
    cv: Variation | None = None
    """Coefficient of variation of a lognormal; 0: always the mean."""
    quantiles: Quantiles | None = None
    """The distribution by quantiles."""
    histogram: Histogram | None = None
    """The distribution by bins."""

    rules: ClassVar[tuple[Rule, ...]] = (Rule(_ONE_SHAPE, _SHAPE_MESSAGE, _one_shape),)


class Gap(ApiModel):
    """The time between an answer and the next round: a person reads, a tool runs."""

    mean: Duration
    """Mean time; a shape is scaled to it."""
    cv: Variation | None = None
    """Coefficient of variation of a lognormal; 0: always the mean."""
    quantiles: GapQuantiles | None = None
    """The distribution by quantiles."""
    histogram: GapHistogram | None = None
    """The distribution by bins."""

    rules: ClassVar[tuple[Rule, ...]] = (Rule(_ONE_SHAPE, _SHAPE_MESSAGE, _one_shape),)


class Arrivals(ApiModel):
    """How sessions arrive."""

    process: Literal["poisson", "gamma", "replayed"] = "poisson"
    """Independent arrivals; bursts by the variation of the distances between them; or recorded times, over and over."""
    cv: Variation | None = None
    """Coefficient of variation of the distances, for process gamma; above 1 they come in bursts."""
    timestamps: Annotated[list[Weight], Field(min_length=2, max_length=MOST_STAMPS)] | None = None
    """Recorded times in seconds, for process replayed; scaled to arrivalRate."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.cv) == (self.process == 'gamma')",
            "spec.workload.arrivals.cv: needed for process gamma and for no other; add or remove it",
            lambda a: (a.cv is not None) == (a.process == "gamma"),
        ),
        Rule(
            "has(self.timestamps) == (self.process == 'replayed')",
            "spec.workload.arrivals.timestamps: needed for process replayed and for no other; add or remove them",
            lambda a: (a.timestamps is not None) == (a.process == "replayed"),
        ),
        Rule(
            "!has(self.timestamps)"
            " || (self.timestamps.isSorted() && self.timestamps[0] < self.timestamps[size(self.timestamps) - 1])",
            "spec.workload.arrivals.timestamps: must not fall, and not all be the same; sort them",
            lambda a: a.timestamps is None or (_rising(a.timestamps) and a.timestamps[0] < a.timestamps[-1]),
        ),
    )


class SessionClass(ApiModel):
    """A kind of session; what is left out is the workload's."""

    name: DnsLabel
    """Name of the class; spec.slo.classes may set its thresholds."""
    share: Annotated[float, Field(gt=0, le=1_000_000)]
    """Its part of all sessions; the parts of all classes need not sum up to 1."""
    rounds: Rounds | None = None
    """Rounds of a session."""
    first_prompt: Tokens | None = None
    """Length of a session's first prompt."""
    increment: Tokens | None = None
    """New tokens of each later round."""
    decode: Tokens | None = None
    """Length of an answer."""
    gap: Gap | None = None
    """Time between an answer and the next round."""
    shared_prefix: Annotated[float, Field(ge=0, le=10_000_000)] | None = None
    """Leading tokens of first prompts that all sessions of the class share."""


class TraceConfigMap(ApiModel):
    """A key of a ConfigMap in the service's namespace."""

    name: ObjectName
    """Name of the ConfigMap."""
    key: DataKey
    """Key in its data, or in its binaryData for a packed trace."""


_FIGURES = ("rounds", "first_prompt", "increment", "decode")


class Workload(ApiModel):
    """The load the plan is made for: given by figures, by a preset, or by a trace; figures given beside one win."""

    preset: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+/[-a-z0-9]+$", max_length=63)] | None = None
    """A workload of a paper, such as ampd/gaia; `weft workload show` lists them."""
    trace_config_map: TraceConfigMap | None = None
    """A small trace, or a file that `weft workload fit` wrote."""
    arrival_rate: Annotated[float, Field(gt=0, le=100_000)] | None = None
    """New sessions per second; a trace may bring its own."""
    arrivals: Arrivals | None = None
    """How they arrive; a Poisson process by default."""
    rounds: Rounds | None = None
    """Rounds of a session."""
    first_prompt: Tokens | None = None
    """Length of a session's first prompt."""
    increment: Tokens | None = None
    """New tokens of each later round: tool results, the user's next message."""
    decode: Tokens | None = None
    """Length of an answer."""
    gap: Gap | None = None
    """Time between an answer and the next round; 5s where neither this nor a preset nor a trace has it."""
    shared_prefix: Annotated[float, Field(ge=0, le=10_000_000)] | None = None
    """Leading tokens of first prompts that all sessions share: a system prompt, found in the prefix cache."""
    classes: Annotated[list[SessionClass], Field(max_length=MOST_CLASSES, json_schema_extra=BY_NAME)] | None = None
    """Kinds of sessions that differ."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!(has(self.preset) && has(self.traceConfigMap))",
            "spec.workload: give one of preset and traceConfigMap; remove the other",
            lambda w: w.preset is None or w.trace_config_map is None,
        ),
        Rule(
            "has(self.preset) || has(self.traceConfigMap) || (has(self.rounds) && has(self.firstPrompt)"
            " && has(self.increment) && has(self.decode))",
            "spec.workload: needs rounds, firstPrompt, increment and decode; add them, a preset or a traceConfigMap",
            lambda w: bool(w.preset or w.trace_config_map) or all(getattr(w, name) is not None for name in _FIGURES),
        ),
        Rule(
            "has(self.arrivalRate) || has(self.traceConfigMap)",
            "spec.workload.arrivalRate: is needed, in sessions per second; add it",
            lambda w: w.arrival_rate is not None or w.trace_config_map is not None,
        ),
        Rule(
            None,
            "spec.workload.classes: two classes have the same name; give each its own",
            lambda w: len({item.name for item in w.classes or ()}) == len(w.classes or ()),
        ),
    )
