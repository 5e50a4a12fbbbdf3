"""Turn a trace into a workload: fit every figure, the arrivals and the classes, and say what was filled in.

What a trace does not record is never made up: it is an error until the caller says what to fill it with, and the
workload's notes repeat that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from weft_planner.traces.records import Session, Trace, TraceError
from weft_planner.workload.arrivals import ReplayedArrivals
from weft_planner.workload.distributions import Constant, Distribution, Lognormal
from weft_planner.workload.fitting import FEW, FigureFit, Shape, fit_figure

Body = dict[str, object]
ArrivalFit = Literal["fit", "replayed"]

FIGURES = ("rounds", "first_prompt", "increment", "decode", "gap")
WIRE = {"first_prompt": "firstPrompt"}
POISSON = (0.9, 1.1)
"""Coefficients of variation of the distances between arrivals that pass for a Poisson process."""
MOST_STAMPS = 2000
MOST_CLASSES = 16


@dataclass(frozen=True, slots=True)
class Fill:
    """What stands in for something that a trace does not record: values or one mean, and words for the notes."""

    words: str
    mean: float | None = None
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class FitOptions:
    """How to fit; ``given`` are figures (and ``arrivals``) that come from elsewhere and may be missing.

    ``gaps`` and ``arrivals`` (sessions per second) fill what the trace lacks; ``intervals`` takes the time between
    the beginnings of two calls for the gap. ``classes_by`` names the label that tells session classes apart.
    """

    shape: Shape = "auto"
    gaps: Fill | None = None
    intervals: bool = False
    arrivals: float | None = None
    rate: float | None = None
    arrival_fit: ArrivalFit = "fit"
    classes_by: str | None = None
    given: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TraceFit:
    """A workload in a request's form, and the fits behind it by class (an empty name where there are none)."""

    name: str
    body: Body
    figures: Mapping[str, tuple[FigureFit, ...]]
    notes: tuple[str, ...] = field(default=())


def fit_trace(trace: Trace, options: FitOptions | None = None) -> TraceFit:
    """Fit a trace.

    Raises:
        TraceError: the trace lacks a figure that is neither given nor to be filled; all are named with the fix.
    """
    options = options or FitOptions()
    notes: list[str] = [*trace.notes, *(f"{what}" for what in trace.skipped)]
    values = _values(trace.sessions, options, notes, trace)
    missing = [_MISSING[name] for name in FIGURES if not values.get(name) and name not in options.given]
    fits, figures = {}, {}
    for name in FIGURES:
        if not values.get(name):
            continue
        fits[name] = fit_figure(name, values[name], shape=options.shape, whole=name != "gap")
        figures[name] = _body(fits[name], options.shape)
    if "gap" in figures and options.gaps is not None and options.gaps.mean is not None and not trace_gaps(trace):
        figures["gap"] = {"mean": options.gaps.mean}
        fits.pop("gap")
    body: Body = {WIRE.get(name, name): figure for name, figure in figures.items()}
    arrivals = _arrivals(trace, options, notes)
    if arrivals is None and "arrivals" not in options.given:
        missing.append(_MISSING["arrivals"])
    body = {**(arrivals or {}), **body}
    if missing:
        raise TraceError(f"{trace.name}: " + "; ".join(missing))
    if trace.prefix_tokens:
        body["sharedPrefix"] = trace.prefix_tokens
    by_class = {"": tuple(fits.values())}
    if options.classes_by is not None:
        classes, more = _classes(trace, options, notes)
        body["classes"] = classes
        by_class.update(more)
    notes += _few(by_class)
    body["source"] = f"fitted to {trace.name}"
    body["notes"] = list(dict.fromkeys(note[:1000] for note in notes))
    return TraceFit(trace.name, body, by_class, tuple(dict.fromkeys(notes)))


_MISSING = {
    "rounds": "rounds: the trace has no sessions; give --rounds",
    "first_prompt": "first prompts: the trace has none; give a trace that has some",
    "increment": "increments: no session has a second round; give --increment",
    "decode": "decode: the trace has no answers; give --decode",
    "gap": (
        "gaps: the trace records no pauses between rounds; give --fill-gaps with a mean (5s), another trace's file, or "
        "'intervals' where the trace has times between calls"
    ),
    "arrivals": "arrivals: the trace records none; give --fill-arrivals with sessions per second",
}


def trace_gaps(trace: Trace) -> tuple[float, ...]:
    """Return every recorded pause before a later round, in seconds."""
    return tuple(r.gap_s for s in trace.sessions for r in s.rounds[1:] if r.gap_s is not None)


def _values(
    sessions: Sequence[Session], options: FitOptions, notes: list[str], trace: Trace
) -> dict[str, tuple[float, ...]]:
    if not sessions:
        found = dict(trace.lengths)
        if options.gaps is not None:
            found["gap"] = _filled(options.gaps)
            notes.append(f"gaps are not recorded: {options.gaps.words}")
        return found
    later = [r for s in sessions for r in s.rounds[1:]]
    values: dict[str, tuple[float, ...]] = {
        "rounds": tuple(float(len(s.rounds)) for s in sessions),
        "first_prompt": tuple(float(s.rounds[0].added_tokens) for s in sessions),
        "decode": tuple(float(r.decode_tokens) for s in sessions for r in s.rounds),
    }
    if not later:  # one round each: nothing is added later, and there are no gaps
        first = values["first_prompt"]
        return {**values, "increment": (float(np.mean(first)),), "gap": (0.0,)}
    values["increment"] = tuple(float(r.added_tokens) for r in later)
    recorded = tuple(r.gap_s for r in later if r.gap_s is not None)
    if recorded:
        values["gap"] = recorded
        if len(recorded) < len(later):
            notes.append(f"{len(later) - len(recorded)} of {len(later)} gaps are not recorded; the others are fitted")
    elif options.intervals and any(r.interval_s is not None for r in later):
        values["gap"] = tuple(r.interval_s for r in later if r.interval_s is not None)
        notes.append("gaps are not recorded: filled with the times between calls, which include the model's own")
    elif options.gaps is not None:
        values["gap"] = _filled(options.gaps)
        notes.append(f"gaps are not recorded: {options.gaps.words}")
    return values


def _filled(fill: Fill) -> tuple[float, ...]:
    return fill.values if fill.mean is None else (fill.mean,)


def _body(fit: FigureFit, shape: Shape) -> Body:
    """Return a fit in a request's form: the values' own mean and the fitted shape."""
    mean = significant(fit.mean, 6)
    return {"mean": mean} if shape == "mean" else {"mean": mean, **shape_body(fit.shape)}


def shape_body(distribution: Distribution) -> Body:
    """Return a distribution's shape in a request's form, without its mean."""
    if isinstance(distribution, Constant):
        return {"cv": 0}
    if isinstance(distribution, Lognormal):
        return {"cv": significant(distribution.variation, 4)}
    values = [significant(value, 5) for value in distribution.values]
    return {"quantiles": {"at": [significant(share, 6) for share in distribution.at], "values": values}}


def significant(value: float, digits: int) -> float:
    """Return a number with this many digits that matter; a whole one as a whole number."""
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


def _arrivals(trace: Trace, options: FitOptions, notes: list[str]) -> Body | None:
    stamps = sorted(s.arrival_s for s in trace.sessions if s.arrival_s is not None)
    if len(stamps) < max(2, len(trace.sessions)) or stamps[-1] <= stamps[0]:
        if options.arrivals is None:
            return None
        notes.append(f"arrivals are not recorded: filled with a Poisson process of {options.arrivals:g} sessions/s")
        return {"arrivalRate": options.arrivals}
    recorded = ReplayedArrivals(tuple(stamps)).rate
    if options.rate is not None:
        notes.append(f"arrivals were recorded at {recorded:.4g} sessions/s and are scaled to {options.rate:g}")
    rate: Body = {"arrivalRate": significant(options.rate or recorded, 5)}
    if options.arrival_fit == "replayed":
        if len(stamps) > MOST_STAMPS:
            raise TraceError(
                f"{trace.name}: {len(stamps)} arrivals are more than the {MOST_STAMPS} that can be replayed; "
                "let them be fitted, or cut the trace"
            )
        return {**rate, "arrivals": {"process": "replayed", "timestamps": [round(t - stamps[0], 3) for t in stamps]}}
    distances = np.diff(stamps)
    variation = float(distances.std() / distances.mean())
    if POISSON[0] <= variation <= POISSON[1]:
        return rate
    return {**rate, "arrivals": {"process": "gamma", "cv": significant(min(20.0, variation), 4)}}


def _classes(
    trace: Trace, options: FitOptions, notes: list[str]
) -> tuple[list[Body], dict[str, tuple[FigureFit, ...]]]:
    label = str(options.classes_by)
    groups: dict[str, list[Session]] = {}
    for session in trace.sessions:
        groups.setdefault(class_name(session.labels.get(label, "")), []).append(session)
    if "" in groups or not groups:
        raise TraceError(
            f"{trace.name}: not every session has the text field {label!r}; choose another for --classes-by"
        )
    if len(groups) > MOST_CLASSES:
        raise TraceError(
            f"{trace.name}: {label!r} has {len(groups)} values; at most {MOST_CLASSES} classes can be made"
        )
    bodies: list[Body] = []
    fits: dict[str, tuple[FigureFit, ...]] = {}
    for name, members in sorted(groups.items()):
        ignored: list[str] = []
        values = _values(members, options, ignored, trace)
        own = {
            figure: fit_figure(figure, values[figure], shape=options.shape, whole=figure != "gap")
            for figure in FIGURES
            if values.get(figure) and (figure != "gap" or trace_gaps(trace))
        }
        share = len(members) / len(trace.sessions)
        figures = {WIRE.get(figure, figure): _body(fit, options.shape) for figure, fit in own.items()}
        bodies.append({"name": name, "share": significant(share, 4), **figures})
        fits[name] = tuple(own.values())
    notes.append(f"classes are told apart by the trace's field {label!r}")
    return bodies, fits


def class_name(text: str) -> str:
    """Return a label as a class name: lower case, other signs as hyphens."""
    kept = "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in text.lower())
    return kept.strip("-")[:63].strip("-")


def _few(fits: Mapping[str, tuple[FigureFit, ...]]) -> list[str]:
    said = []
    for name, listed in fits.items():
        few = [fit for fit in listed if 1 < fit.count < FEW]
        if few:
            of = f" of class {name}" if name else ""
            figures = ", ".join(f"{WIRE.get(fit.name, fit.name)} ({fit.count})" for fit in few)
            said.append(f"few values{of} were recorded of {figures}: their tails are uncertain")
    return said
