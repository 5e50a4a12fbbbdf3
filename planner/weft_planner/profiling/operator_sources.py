"""Where the operator times of silicon tables come from: measured, interpolated between measurements, or estimated."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType

MEASURED = "measured"
SOURCES: Mapping[str, str] = MappingProxyType(
    {"silicon": MEASURED, "mixed": "partly measured", "empirical": "estimated", "sol": "estimated"}
)
"""What the package's word for an operator's source means."""
MOST_NAMED = 10
"""Operators of one source that are named."""
PHASES = ("context_", "generation_")
"""How the package's names of operators begin: those of prefills and of decode steps."""

OperatorTimes = Mapping[tuple[str, str], float]
"""Milliseconds by source and operator."""


def operator_times(operators: Iterable[tuple[str, float, float, str]]) -> dict[tuple[str, str], float]:
    """Return the milliseconds of the package's (name, milliseconds, energy, source) rows by source and operator."""
    return sum_of({(SOURCES.get(source, source), _named(name)): time} for name, time, _, source in operators)


def sum_of(times: Iterable[OperatorTimes]) -> dict[tuple[str, str], float]:
    """Return the sum of times by source and operator."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for one in times:
        for operator, milliseconds in one.items():
            found[operator] += milliseconds
    return dict(found)


def shares_of(times: OperatorTimes) -> dict[str, float]:
    """Return the share of each source in all the time."""
    found: dict[str, float] = defaultdict(float)
    for (source, _), milliseconds in times.items():
        found[source] += milliseconds
    total = sum(found.values())
    return {source: part / total for source, part in sorted(found.items())}


def not_measured(times: OperatorTimes) -> str:
    """Return the operators of each source but measurements, those with the most time first; empty: there are none.

    An operator whose time is measured at some shapes and estimated at others is named.
    """
    others = sorted({source for (source, _), time in times.items() if source != MEASURED and time > 0})
    return "; ".join(f"{source}: {_listed(times, source)}" for source in others)


def _listed(times: OperatorTimes, source: str) -> str:
    of_source = {name: time for (its, name), time in times.items() if its == source and time > 0}
    names = sorted(of_source, key=lambda name: (-of_source[name], name))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _named(name: str) -> str:
    """Return an operator's name without the phase that it runs in."""
    return next((name.removeprefix(phase) for phase in PHASES if name.startswith(phase)), name)
