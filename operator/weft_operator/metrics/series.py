"""The series of query results: parsed from Prometheus' unchecked JSON, and read as counts and histogram buckets."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft_operator.metrics.histogram import Buckets
from weft_operator.metrics.observation import NoMetricsError
from weft_operator.metrics.queries import FIGURE, GAUGES, PRESENCE
from weft_operator.metrics.trigger_queries import TRIGGER

LARGEST = 1e15
"""The largest accepted value: sums and squares of such values are finite."""

SMALLEST = 1e-9
"""The smallest accepted bound of a bucket."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an instant vector."""

    labels: Mapping[str, str]
    value: float

    @property
    def figure(self) -> str:
        """Return the figure of the query that it belongs to."""
        return self.labels.get(FIGURE, "")


def parse_vector(result: object) -> list[Series]:
    """Return the series of an instant vector.

    Raises:
        NoMetricsError: QueryFailed, when the result is not a vector.
    """
    if not isinstance(result, list):
        raise NoMetricsError("QueryFailed", "Prometheus answered with something that is not a vector; check the URL")
    return [_parse(item) for item in result]


def _parse(item: object) -> Series:
    try:
        labels, (_, value) = item["metric"], item["value"]  # type: ignore[index]
        return Series({str(key): str(text) for key, text in labels.items()}, float(value))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise NoMetricsError("QueryFailed", "Prometheus answered with a malformed series; check the URL") from error


def counts_of(found: Sequence[Series]) -> list[Series]:
    """Return the series that count something.

    Raises:
        NoMetricsError: NotANumber, when a value is no count.
    """
    counts = [
        one
        for one in found
        if one.figure not in PRESENCE and one.figure not in GAUGES and not one.figure.startswith(TRIGGER)
    ]
    for one in counts:
        if not 0 <= one.value <= LARGEST:
            raise NoMetricsError(
                "NotANumber",
                f"the figure {one.figure[:32] or '(none)'} has a value that is no count (NaN, infinite, huge or below "
                "0); look at the recording or relabelling rules that change weft_router metrics",
            )
    return counts


def buckets_of(found: Iterable[Series], figure: str) -> Buckets:
    """Return the cumulative buckets of a histogram.

    Raises:
        NoMetricsError: a bucket has no bound, or one that is no number above 0.
    """
    try:
        buckets = {float(one.labels["le"]): one.value for one in found if one.figure == figure}
    except (KeyError, ValueError) as error:
        raise NoMetricsError(
            "Partial", f"the buckets of the figure {figure} have no bounds; Prometheus must keep le"
        ) from error
    if not all(SMALLEST <= bound <= LARGEST or bound == math.inf for bound in buckets):
        raise NoMetricsError("NotANumber", f"buckets of the figure {figure} have bounds that are no numbers above 0")
    return buckets


def sum_of(found: Iterable[Series], figure: str) -> float:
    """Return the sum over the series of a figure."""
    return sum(one.value for one in found if one.figure == figure)
