"""The observed workload, from the counts of a window."""

from collections.abc import Sequence
from contextlib import suppress

from weft_operator.metrics.histogram import rounds_of_sessions, spread
from weft_operator.metrics.observation import NoMetricsError, ObservedWorkload, Spread
from weft_operator.metrics.series import Series, buckets_of, sum_of

_LENGTHS = {
    "first_prompt": "weft_router_increment_tokens",
    "increment": "weft_router_increment_tokens",
    "decode": "weft_router_decode_tokens",
}


def workload_of(found: Sequence[Series], seconds: float) -> ObservedWorkload:
    """Return the workload; rates are over the ``seconds`` of the window that have samples.

    Demand is what arrived. Served rounds count instead where they are more: workers work off a backlog, or counts of
    arrivals are missing, which must not look like less demand.

    Raises:
        NoMetricsError: Partial, when metrics of the same rounds disagree or parts of a histogram are missing.
    """
    first, later = _by_phase(found, "rounds")
    first_arrived, later_arrived = map(max, _by_phase(found, "arrivals"), (first, later))
    index = buckets_of(found, "index")
    for figure, metric, expected in (
        ("index", "weft_router_round_index", first + later),
        ("decode", "weft_router_decode_tokens", first + later),
        ("first_prompt", "weft_router_increment_tokens of first rounds", first),
        ("increment", "weft_router_increment_tokens of later rounds", later),
    ):
        _agree(metric, max(buckets_of(found, figure).values(), default=0.0), expected)
    lengths = {name: _spread(found, name, metric) for name, metric in _LENGTHS.items()}
    return ObservedWorkload(
        session_rate=first_arrived / seconds,
        round_rate=(first_arrived + later_arrived) / seconds,
        refused_rate=sum_of(found, "refused") / seconds,
        sessions=round(first_arrived),
        rounds=rounds_of_sessions("weft_router_round_index", index),
        first_prompt=lengths["first_prompt"],
        increment=lengths["increment"],
        decode=lengths["decode"],
        gap_s=_spread(found, "gap", "weft_router_round_gap_seconds"),
        fast_sessions=next((round(one.value) for one in found if one.figure == "arrivals_fast"), None),
        fast_lengths=_fast_lengths(found),
    )


def _fast_lengths(found: Sequence[Series]) -> dict[str, Spread]:
    """Return the lengths of the fast window; those with a broken histogram are left out."""
    lengths = {}
    for name, metric in _LENGTHS.items():
        with suppress(NoMetricsError):
            if (spread := _spread(found, f"{name}_fast", metric)) is not None:
                lengths[name] = spread
    return lengths


def _by_phase(found: Sequence[Series], figure: str) -> tuple[float, float]:
    counted = {one.labels.get("phase", ""): one.value for one in found if one.figure == figure}
    return counted.get("first", 0.0), counted.get("later", 0.0)


def _spread(found: Sequence[Series], figure: str, metric: str) -> Spread | None:
    buckets = buckets_of(found, figure)
    totals = [one.value for one in found if one.figure == f"{figure}_sum"]
    if buckets and not totals:
        raise NoMetricsError("Partial", f"{metric} came without its sum; Prometheus must keep {metric}_sum")
    return spread(metric, buckets, sum(totals))


def _agree(name: str, counted: float, rounds: float) -> None:
    """Refuse metrics that disagree: each round is counted in all of them at once."""
    if abs(counted - rounds) > 5 + 0.25 * max(counted, rounds):
        raise NoMetricsError(
            "Partial",
            f"{name} and weft_router_rounds_total count different numbers of rounds; Prometheus must keep both "
            "with all of their series",
        )
