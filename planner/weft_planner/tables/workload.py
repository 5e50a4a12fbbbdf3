"""Lay out a fitted or shown workload: figures, distances, classes, and what is assumed."""

from collections.abc import Mapping

from weft_core.durations import format_seconds
from weft_planner.tables.writing import Paragraph, Part, TextTable, text_of
from weft_planner.traces.records import Trace
from weft_planner.workload.distributions import Constant, Distribution, Empirical
from weft_planner.workload.fitting import FigureFit
from weft_planner.workload.presets import Preset
from weft_planner.workload.trace_fit import TraceFit
from weft_planner.workload.traffic import Workload

_NAMES = {
    "rounds": "rounds",
    "first_prompt": "first prompt",
    "increment": "increment",
    "decode": "decode",
    "gap": "gap",
}
_DISTANCES = (
    "KS is the largest difference between the shares of values and of draws below any value; shift how far values must "
    "move on average to become draws, as a share of their mean."
)


def fit_table(trace: Trace, fitted: TraceFit, workload: Workload) -> str:
    """Return what was read, every figure with its fit and distances, and what must be said of it."""
    read = f"{trace.name}: {len(trace.sessions)} sessions, {trace.rounds} rounds" if trace.sessions else trace.name
    parts: list[Part] = [Paragraph(f"{read}; {_arrivals(workload)}.")]
    for name, figures in fitted.figures.items():
        rows = [_fit_row(figure) for figure in figures]
        title = f"class {name}" if name else ""
        header = ("figure", "values>", "mean>", "cv>", "P50>", "P95>", "max>", "fitted with", "P95>", "KS>", "shift>")
        parts.append(TextTable(header, rows, title=title))
    parts.append(Paragraph(_DISTANCES, style="dim"))
    parts += _assumed(workload)
    return text_of(parts)


def workload_table(workload: Workload, *, name: str, rate_given: bool, slo: Mapping[str, tuple[float, float]]) -> str:
    """Return a workload's figures by class, the SLOs that come with it, and what is assumed."""
    source = f", {workload.source}" if workload.source and workload.source != name else ""
    rate = _arrivals(workload) if rate_given else "no arrival rate: give spec.workload.arrivalRate"
    parts: list[Part] = [Paragraph(f"{name}{source}; {rate}.")]
    header = ("class", "share>", "figure", "mean>", "cv>", "distribution")
    rows = []
    for item in workload.mix:
        for k, (figure, label) in enumerate(_NAMES.items()):
            shape: Distribution = getattr(item, figure)
            first = (item.name or "all", f"{item.share:.0%}") if k == 0 else ("", "")
            mean = format_seconds(shape.mean) if figure == "gap" else _number(shape.mean)
            rows.append((*first, label, mean, f"{shape.variation:.2f}", _kind(shape)))
        if item.prefix:
            rows.append(("", "", "shared prefix", _number(item.prefix), "", ""))
        rows.append(("", "", "whole session", _number(item.total_tokens), "", ""))
    parts.append(TextTable(header, rows))
    if slo:
        listed = [(model, format_seconds(ttft), format_seconds(itl)) for model, (ttft, itl) in slo.items()]
        parts.append(TextTable(("model", "TTFT>", "ITL>"), listed, title="SLOs of the source"))
    parts += _assumed(workload)
    return text_of(parts)


def presets_table(presets: Mapping[str, Preset]) -> str:
    """Return the presets with their sources."""
    rows = [(name, f"{item.gpus}" if item.gpus else "", item.source) for name, item in presets.items()]
    return text_of([TextTable(("preset", "GPUs>", "source"), rows)])


def _fit_row(fit: FigureFit) -> tuple[str, ...]:
    gap = fit.name == "gap"

    def shown(value: float) -> str:
        return format_seconds(value) if gap else _number(value)

    return (
        _NAMES[fit.name],
        f"{fit.count}",
        shown(fit.mean),
        f"{fit.variation:.2f}",
        shown(fit.p50),
        shown(fit.p95),
        shown(fit.largest),
        _kind(fit.distribution),
        shown(fit.fitted_p95),
        f"{fit.ks:.3f}",
        f"{fit.shift:.1%}",
    )


def _kind(distribution: Distribution) -> str:
    if isinstance(distribution, Empirical):
        return f"{len(distribution.at)} quantiles"
    return "constant" if isinstance(distribution, Constant) else "lognormal"


def _arrivals(workload: Workload) -> str:
    process = workload.arrivals
    words = {
        "poisson": "Poisson arrivals",
        "gamma": f"Gamma arrivals (cv {process.cv or 0:g})",
        "replayed": "recorded arrivals",
    }
    return f"{words[process.process]}, {workload.arrival_rate:g} sessions/s"


def _assumed(workload: Workload) -> list[Part]:
    said = workload.assumptions
    return (
        [Paragraph(". ".join(clause[:1].upper() + clause[1:] for clause in said) + ".", lead="Note:")] if said else []
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
