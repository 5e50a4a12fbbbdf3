"""What the sources of ``weft profile`` have in common: lengths and durations, facts, and the fitted result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weft_cli.errors import BadInputError, lines_of
from weft_core.parallelism import Degree
from weft_planner.cli.ranges import LINK_RATE, NOISE

if TYPE_CHECKING:
    from weft_planner.profiling.knowledge import KnownHardware
    from weft_planner.profiling.measurements import MeasurementContext, Measurements, Memory

Function = TypeVar("Function", bound=Callable[..., object])


class _Lengths(click.ParamType[tuple[int, ...]]):
    """Whole numbers with commas between them."""

    name = "N,N,…"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in str(value).split(",") if part.strip())
        except ValueError:
            self.fail(f"{value!r} is no list of whole numbers; write 0,1024,4096", param, ctx)
        if any(number < 0 for number in numbers):
            self.fail(f"{value!r}: lengths are 0 or more", param, ctx)
        return numbers


class _Duration(click.ParamType[float]):
    """A duration such as 30m."""

    name = "DURATION"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from weft_core.durations import parse_duration

        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


LENGTHS, DURATION = _Lengths(), _Duration()


def result_options(function: Function) -> Function:
    """Add the options that say what was measured and where the profile goes."""
    options = [
        click.option(
            "-o", "--output", "target", type=click.Path(), metavar="FILE", help="Write the CostProfile (YAML) here."
        ),
        click.option("--name", default="", help="Name of the CostProfile; default: of model and GPU."),
        click.option("--config", type=click.Path(path_type=Path), help="The model's config.json, if not well known."),
        click.option("--gpu", default="", help="GPU type, such as nvidia-h100."),
        click.option(
            "--kv-capacity",
            "capacities",
            multiple=True,
            metavar="[DEGREE=]TOKENS",
            help="KV cache of a worker, if neither engine nor catalogue says.",
        ),
        click.option(
            "--kv-dtype",
            default="",
            metavar="FORMAT",
            help="What the engine keeps KV in (float32, bfloat16, fp8, …); default: what it says, else as the model.",
        ),
        click.option(
            "--link-rate",
            type=LINK_RATE,
            metavar="BYTES_PER_S",
            help="Bytes/s of one GPU's link, such as 25e9, if transfers are unknown.",
        ),
        click.option(
            "--noise",
            type=NOISE,
            default=0.3,
            show_default=True,
            metavar="SHARE",
            help="Contradiction of two rows to accept.",
        ),
        click.option("--allow-missing", is_flag=True, help="Fit although shapes of the grid are missing."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def _with_capacities(
    memory: "Mapping[Degree, Memory]", texts: Sequence[str], degrees: Sequence[Degree]
) -> "Mapping[Degree, Memory]":
    """Return the memory of workers with the KV capacities of the command line, for one degree or all of them."""
    from weft_planner.profiling.measurements import Memory

    found = dict(memory)
    for text in texts:
        degree, _, tokens = text.rpartition("=")
        if not tokens.isdigit() or int(tokens) < 1 or not (degree == "" or degree.isdigit()):
            raise click.UsageError(f"--kv-capacity {text}: write tokens, or DEGREE=TOKENS")
        for one in [int(degree)] if degree else degrees:
            weights = found[one].weight_bytes_per_gpu if one in found else 0
            found[one] = Memory(weights, int(tokens))
    return found


def _in_format(given: dict[str, Any], about: "MeasurementContext") -> tuple["KnownHardware", "MeasurementContext"]:
    """Return the model with KV in the format that the user says, the engine says, or its transfers weigh."""
    from weft_planner.profiling.knowledge import known
    from weft_planner.profiling.kv_format import AUTO, weighed

    asked = given["kv_dtype"]
    kv_format = "" if asked == AUTO else asked or about.notes.get("kvFormat", "")
    facts = known(model=about.model, gpu=about.gpu, config=given["config"], kv_format=kv_format)
    if not kv_format and not asked and facts.model is not None and (moved := about.notes.get("kvBytesMoved")):
        kv_format = weighed(float(moved.split()[0]), facts.model)
        facts = known(model=about.model, gpu=about.gpu, config=given["config"], kv_format=kv_format)
    if kv_format:
        about = replace(about, notes={**about.notes, "kvFormat": kv_format})
    return facts, about


WHY_FEW = ("grid", "contradictions", "partial")
"""Notes of a run that say why some shapes are missing; an error for want of them quotes these notes."""


def finish(
    measurements: "Measurements", given: dict[str, Any], *, place: str = "measurements", notes: Sequence[str] = ()
) -> int:
    """Fit, print how well, and write the manifest; ``place`` is the file that errors are about."""
    from weft_planner.profiling.knowledge import FitStrictness, manifest, profile_from_measurements
    from weft_planner.profiling.measurements import MeasurementError
    from weft_planner.tables.profile import profile_table

    about = measurements.about
    about = replace(
        about,
        model=given["model"] or about.model,
        gpu=given["gpu"] or about.gpu,
        engine=given["engine"] or about.engine,
    )
    degrees = sorted({row.cell.degree for row in measurements.rows})
    about = replace(about, memory=_with_capacities(about.memory, given["capacities"], degrees))
    judgement = FitStrictness(given["noise"], given["allow_missing"], given["link_rate"] or 0.0)
    try:
        facts, about = _in_format(given, about)
        fitted = profile_from_measurements(replace(measurements, about=about), facts, judgement)
    except (MeasurementError, OSError) as error:
        for note in (*notes, *(f"{name}: {about.notes[name]}" for name in WHY_FEW if name in about.notes)):
            click.echo(f"note: {note}", err=True)
        lines = [line.removeprefix("measurements, ") for line in lines_of(error, place)]
        raise BadInputError(place, *lines) from error
    click.echo(profile_table(fitted, notes=notes))
    if given["target"]:
        import yaml

        text = yaml.safe_dump(manifest(fitted, given["name"]), sort_keys=False, allow_unicode=True)
        try:
            Path(given["target"]).write_text(text, encoding="utf-8")
        except OSError as error:
            raise BadInputError(given["target"], f"cannot be written: {error.strerror}") from error
        click.echo(f"wrote {given['target']}")
    return 0
