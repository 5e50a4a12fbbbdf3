"""``weft workload``: fit a workload to a trace; show a preset, a workload file or a trace as the planner sees it."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft_cli.errors import BadInputError
from weft_cli.output import emit, output_option
from weft_planner.cli.ranges import MEAN_ROUNDS, MEAN_TOKENS, RATE

if TYPE_CHECKING:
    from weft_planner.traces.records import Trace
    from weft_planner.workload.trace_fit import FitOptions


@click.group()
def workload() -> None:
    """Fit a workload to recorded sessions."""


@workload.command()
@click.argument("trace", metavar="TRACE")
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(),
    metavar="FILE",
    help="Write the workload (YAML, for spec.workload) here.",
)
@click.option(
    "--shape",
    type=click.Choice(["auto", "mean", "lognormal", "empirical"]),
    default="auto",
    show_default=True,
    help="What each figure is fitted with; auto takes quantiles where a lognormal is too far off.",
)
@click.option(
    "--fill-gaps",
    metavar="TIME|FILE|intervals",
    help="Where the trace has no pauses between rounds: a mean, a trace to take them from, or the time between calls.",
)
@click.option("--fill-arrivals", type=RATE, metavar="PER_S", help="Where the trace has no arrivals: sessions a second.")
@click.option("--rate", type=RATE, metavar="PER_S", help="Scale recorded arrivals to this many sessions a second.")
@click.option("--replay-arrivals", is_flag=True, help="Keep recorded arrivals as they are instead of fitting them.")
@click.option(
    "--rounds", type=MEAN_ROUNDS, metavar="MEAN", help="Rounds of a session, where the trace has no sessions."
)
@click.option(
    "--increment", type=MEAN_TOKENS, metavar="MEAN", help="New tokens of a later round, where the trace has none."
)
@click.option("--decode", type=MEAN_TOKENS, metavar="MEAN", help="Tokens of an answer, where the trace has none.")
@click.option("--classes-by", metavar="FIELD", help="Make a session class of each value of this text field.")
@click.option(
    "--where", metavar="FIELD=VALUE", multiple=True, help="Take only sessions whose text field has this value."
)
@click.option("--link", is_flag=True, help="Link requests into conversations by their block hashes: an inference.")
@click.option("--skip-bad", is_flag=True, help="Skip and count bad lines instead of refusing the trace.")
def fit(trace: str, target: str | None, **given: Any) -> int:
    """Fit distributions to a trace and print how well they fit; -o writes them for spec.workload.

    TRACE is a session, request or length file or Weft's request log, plain or gzip. What it does not record is filled
    only on request, and the result says so.
    """
    from weft_planner.tables.workload import fit_table
    from weft_planner.traces.records import TraceError
    from weft_planner.workload.file import spec_form, to_yaml
    from weft_planner.workload.trace_fit import fit_trace
    from weft_planner.workload.traffic import Workload

    try:
        recorded = _selected(_read(trace, skip_bad=given["skip_bad"], link=given["link"]), given["where"])
        stated = {name: given[name] for name in ("rounds", "increment", "decode") if given[name] is not None}
        fitted = fit_trace(recorded, _options(given, frozenset(stated)))
        body = {**fitted.body, **stated}
        checked = Workload.model_validate(body)
    except (TraceError, ValueError) as error:
        raise BadInputError(trace, _without(error, trace)) from error
    click.echo(fit_table(recorded, fitted, checked))
    if target is not None:
        fragment = to_yaml(
            spec_form(body), comments=(f"Fitted to {recorded.name} by weft workload fit.", *fitted.notes)
        )
        _write(target, fragment)
        click.echo(f"wrote {target}")
    return 0


@workload.command()
@click.argument("source", metavar="PRESET|FILE", required=False)
@output_option
def show(source: str | None, output: str) -> int:
    """Show a preset, a workload file or a trace: figures, classes, assumptions.

    Without an argument the presets are listed.
    """
    from weft_planner.tables.workload import presets_table, workload_table
    from weft_planner.workload.file import spec_form
    from weft_planner.workload.presets import presets
    from weft_planner.workload.resolving import resolve_workload
    from weft_planner.workload.traffic import Workload

    if source is None:
        rows = {name: {"source": item.source, "gpus": item.gpus} for name, item in presets().items()}
        emit(output, {"presets": rows}, lambda: presets_table(presets()))
        return 0
    try:
        body = resolve_workload(_body(source))
        missing = "arrivalRate" not in body
        checked = Workload.model_validate({"arrivalRate": 1.0, **body})
    except ValueError as error:
        raise BadInputError(source, _without(error, source)) from error
    known = presets().get(source.lower())
    slo = known.slo if known is not None else {}
    result = {
        "workload": spec_form(body),
        "source": checked.source,
        "assumptions": list(checked.assumptions),
        "slo": {model: {"ttft": ttft, "itl": itl} for model, (ttft, itl) in slo.items()},
    }
    emit(output, result, lambda: workload_table(checked, name=source, rate_given=not missing, slo=slo))
    return 0


def _body(source: str) -> Mapping[str, object]:
    from weft_planner.traces.lines import read_bytes
    from weft_planner.workload.presets import presets
    from weft_planner.workload.resolving import workload_of

    if source.lower() in presets():
        return {"preset": source}
    if not Path(source).exists():
        raise ValueError(f"is no file and no preset; the presets are {', '.join(presets())}")
    return workload_of(read_bytes(Path(source)), name=Path(source).name, given=frozenset({"arrivalRate", "gap"}))


def _without(error: ValueError, path: str) -> str:
    """Return an error's words on one line, without the file's name that the command line puts before them."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        faults = [(".".join(str(part) for part in f["loc"]), f["msg"]) for f in error.errors(include_url=False)]
        return "; ".join(f"{where}: {what}" if where else what for where, what in faults)
    words = str(error)
    for name in ("stdin" if path == "-" else path, Path(path).name):
        words = words.removeprefix(f"{name}: ").removeprefix(f"{name} ")
    return words


def _read(path: str, *, skip_bad: bool, link: bool) -> "Trace":
    from weft_planner.traces.reading import parse_trace, read_trace

    if path == "-":
        return parse_trace(sys.stdin.buffer.read(), name="stdin", skip_bad=skip_bad, link=link)
    return read_trace(Path(path), skip_bad=skip_bad, link=link)


def _selected(trace: "Trace", conditions: tuple[str, ...]) -> "Trace":
    """Return the trace with the sessions that all conditions hold for."""
    from dataclasses import replace

    from weft_planner.traces.records import TraceError

    for condition in conditions:
        field, sign, value = condition.partition("=")
        if not sign:
            raise TraceError(f"--where {condition}: write FIELD=VALUE")
        kept = tuple(session for session in trace.sessions if session.labels.get(field) == value)
        if not kept:
            raise TraceError(f"--where {condition}: no session has it")
        note = f"only the {len(kept)} of {len(trace.sessions)} sessions with {field} = {value}"
        trace = replace(trace, sessions=kept, notes=(*trace.notes, note))
    return trace


def _options(given: Mapping[str, Any], stated: frozenset[str]) -> "FitOptions":
    from weft_planner.workload.file import duration
    from weft_planner.workload.trace_fit import Fill, FitOptions, trace_gaps

    gaps, words = None, given["fill_gaps"]
    if words is not None and words != "intervals":
        if Path(words).exists():
            pool = trace_gaps(_read(words, skip_bad=False, link=False))
            if not pool:
                raise ValueError(f"--fill-gaps {words}: records no gaps itself")
            gaps = Fill(f"filled with the {len(pool)} recorded gaps of {Path(words).name}", values=pool)
        else:
            mean = _duration(words)
            gaps = Fill(f"filled with a mean of {duration(mean)}", mean=mean)
    return FitOptions(
        shape=given["shape"],
        gaps=gaps,
        intervals=words == "intervals",
        arrivals=given["fill_arrivals"],
        rate=given["rate"],
        arrival_fit="replayed" if given["replay_arrivals"] else "fit",
        classes_by=given["classes_by"],
        given=stated,
    )


def _duration(words: str) -> float:
    from weft_core.durations import parse_duration

    try:
        return parse_duration(words)
    except ValueError as error:
        raise ValueError(f"--fill-gaps: {error}, name a trace file, or say intervals") from error


def _write(target: str, text: str) -> None:
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInputError(target, f"cannot be written: {error.strerror}") from error
