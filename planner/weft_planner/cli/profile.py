"""``weft profile``: measure a live engine or single operators, or read measured tables, and fit a cost profile."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft_cli.errors import BadInputError, lines_of
from weft_cli.running import INTERRUPTED
from weft_planner.cli.api_key import api_key_option, key_headers
from weft_planner.cli.profile_result import DURATION, LENGTHS, finish, result_options
from weft_planner.cli.progress import show_progress
from weft_planner.cli.silicon import silicon
from weft_planner.cli.sweep import sweep

if TYPE_CHECKING:
    from weft_planner.profiling.engine_run import ProfilingTarget
    from weft_planner.profiling.knowledge import KnownHardware
    from weft_planner.profiling.measurements import Measurements
    from weft_planner.profiling.operators import OperatorTimer


@click.group()
def profile() -> None:
    """Measure or import the cost profile of a model on a GPU."""


profile.add_command(silicon)
profile.add_command(sweep)


@profile.command()
@click.argument("url", metavar="URL")
@click.option("--decode-url", default="", help="A decode engine that reads KV from URL: measures transfers too.")
@click.option("--one-way", is_flag=True, help="Time KV on its way to the decode engine only, not back.")
@click.option("--degree", type=click.IntRange(1, 1024), default=1, show_default=True, help="GPUs of the engine.")
@click.option("--decode-degree", type=click.IntRange(1, 1024), help="GPUs of the decode engine; default: as --degree.")
@click.option("--link", type=click.Choice(["intra-node", "inter-node"]), default="inter-node", show_default=True)
@click.option("--served-model", default="", help="Name that requests use; default: the first that the engine lists.")
@click.option("--model", default="", help="Name in the profile; default: as served.")
@click.option("--engine", default="", help="Engine and version in the profile; default: what the engine says.")
@click.option(
    "-m", "--measurements", "store", type=click.Path(), metavar="FILE", help="Keep every timing here (.json or .csv)."
)
@click.option(
    "--resume", type=click.Path(), metavar="FILE", help="Go on with an earlier run's measurements, and keep them there."
)
@click.option("--histories", type=LENGTHS, default=(0, 1024, 4096, 16384), help="Cached tokens before a prefill.")
@click.option("--increments", type=LENGTHS, default=(32, 128, 512, 1024, 2048, 4096, 8192), help="Tokens of a prefill.")
@click.option("--batches", type=LENGTHS, default=(1, 4, 16, 64, 128), help="Sequences that decode together.")
@click.option("--contexts", type=LENGTHS, default=(256, 1024, 4096, 16384), help="Tokens each of them holds.")
@click.option("--chunks", type=LENGTHS, default=(128, 512, 2048), help="Prefill tokens beside a batch; empty: none.")
@click.option("--transfers", type=LENGTHS, default=(256, 1024, 4096, 16384), help="Tokens whose KV is moved.")
@click.option("--steps", type=click.IntRange(4, 512), default=16, show_default=True, help="Decode steps per timing.")
@click.option("--repeats", type=click.IntRange(1, 100), default=3, show_default=True, help="Timings per shape.")
@click.option("--budget", type=DURATION, default="30m", show_default=True, help="Stop after this time.")
@click.option("--timeout", type=DURATION, default="2m", show_default=True, help="Longest wait for an answer.")
@click.option(
    "--most-batch", type=click.IntRange(0), default=0, help="Largest batch the engine runs (vLLM: max-num-seqs)."
)
@api_key_option
@result_options
def engine(**given: Any) -> int:
    """Time a live OpenAI-compatible engine over a grid, and fit a profile to it.

    Prompts are random token ids; nothing else should use the engine meanwhile. Ctrl-C keeps what was measured when -m
    or --resume is given. A grid that the budget has no time for is thinned first. Exit status: 0 a profile, whole or of
    what the budget allowed; 1 the engine failed; 2 the measurements make no profile.
    """
    from weft_planner.profiling.engine_client import EngineError
    from weft_planner.profiling.engine_grid import Grid
    from weft_planner.profiling.engine_profiler import ProfilingSettings
    from weft_planner.profiling.engine_run import measure_engine
    from weft_planner.profiling.files import read_measurements, write_measurements
    from weft_planner.profiling.measurements import MeasurementError

    place = given["resume"] or given["store"]
    if place is not None and not place.endswith((".json", ".csv")):
        raise BadInputError(place, "measurements are kept as .json or .csv; choose one of the endings")
    if given["store"] and not given["resume"] and Path(given["store"]).exists():
        raise BadInputError(given["store"], "exists; continue it with --resume, or name another file")
    lengths = {name: given[name] for name in Grid.__dataclass_fields__}
    for name, values in lengths.items():
        if not values and name not in ("chunks", "transfers"):
            raise click.UsageError(f"--{name}: at least one length is needed")
    settings = ProfilingSettings(
        steps=given["steps"], repeats=given["repeats"], budget_s=given["budget"], noise=given["noise"]
    )
    kept: list[Measurements] = []

    def save(state: "Measurements") -> None:
        kept[:] = [state]
        if place is not None:
            write_measurements(state, Path(place))

    try:
        start = read_measurements(Path(given["resume"])) if given["resume"] else None
        with show_progress() as progress:
            run = asyncio.run(
                measure_engine(
                    _target(given),
                    Grid(**lengths),
                    settings,
                    start=start,
                    most_batch=given["most_batch"],
                    save=save,
                    progress=lambda p: progress("timing", p.done, p.total),
                )
            )
    except KeyboardInterrupt:
        click.echo(_interrupted(len(kept[0].rows) if kept else 0, place), err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except EngineError as error:
        raise click.ClickException(f"{error}{_kept(kept, place)}") from error
    except (MeasurementError, OSError) as error:
        kept_in = place or "measurements"
        raise BadInputError(kept_in, *lines_of(error, kept_in)) from error
    # What the budget cut short is a result all the same: it says what it lacks.
    given["allow_missing"] = given["allow_missing"] or not run.complete
    return finish(run.measurements, given, place=place or "measurements", notes=run.notes)


def _target(given: dict[str, Any]) -> "ProfilingTarget":
    from weft_planner.profiling.engine_grid import TransferEnds
    from weft_planner.profiling.engine_run import ProfilingTarget

    reader = (given["decode_degree"] or given["degree"]) if given["decode_url"] else 0
    return ProfilingTarget(
        url=given["url"],
        ends=TransferEnds(given["degree"], reader, given["link"], back=bool(reader) and not given["one_way"]),
        decode_url=given["decode_url"],
        served=given["served_model"],
        model=given["model"],
        gpu=given["gpu"],
        engine=given["engine"],
        headers=key_headers(given["api_key_env"]),
        timeout_s=given["timeout"],
    )


def _interrupted(timings: int, place: str | None) -> str:
    if place is None:
        return "interrupted: nothing was saved; give -m FILE to save what was measured"
    return f"interrupted: {timings} timings are in {place}; continue with --resume {place}"


def _kept(kept: Sequence["Measurements"], place: str | None) -> str:
    if not kept or place is None:
        return ""
    return f"\n{len(kept[0].rows)} timings are in {place}; continue with --resume {place}"


@profile.command()
@click.option("--model", required=True, help="A well-known model's name, or any name with --config.")
@click.option("--degree", "degrees", type=click.IntRange(1, 1024), multiple=True, default=(1,), show_default=True)
@click.option("--device", default="cuda", show_default=True, help="Where to time: cuda, cuda:1, or cpu for a trial.")
@click.option("--dtype", type=click.Choice(["bfloat16", "float16", "float32"]), default="bfloat16", show_default=True)
@click.option("--aiconfigurator", type=click.Path(path_type=Path), metavar="DIR", help="Take times from its tables.")
@click.option("--vidur", type=click.Path(path_type=Path), metavar="DIR", help="Take times from its tables.")
@click.option("--engine", default="operators", show_default=True, help="Engine in the profile.")
@click.option("--prefill-overhead", type=DURATION, default="2ms", show_default=True, help="Of an engine's prefill.")
@click.option("--step-overhead", type=DURATION, default="1ms", show_default=True, help="Of an engine's step.")
@click.option(
    "-m",
    "--measurements",
    "store",
    type=click.Path(),
    metavar="FILE",
    help="Keep the composed times here (.json or .csv).",
)
@click.option("--histories", type=LENGTHS, default=(0, 1024, 4096, 16384), help="Cached tokens before a prefill.")
@click.option("--increments", type=LENGTHS, default=(16, 64, 128, 256, 512, 1024, 2048, 4096, 8192))
@click.option("--batches", type=LENGTHS, default=(1, 2, 4, 8, 16, 32, 64, 128, 256))
@click.option("--contexts", type=LENGTHS, default=(256, 1024, 4096, 16384), help="Tokens each sequence holds.")
@click.option("--chunks", type=LENGTHS, default=(128, 512, 2048), help="Prefill tokens beside a batch.")
@result_options
def operators(**given: Any) -> int:
    """Time every operator of a model on this machine's GPU, and compose a profile of them.

    One GPU is enough for every degree: shapes are those of one shard, all-reduces are estimated from the GPU's links
    unless there are enough GPUs to measure them.
    """
    from weft_planner.profiling.files import write_measurements
    from weft_planner.profiling.knowledge import known
    from weft_planner.profiling.measurements import MeasurementContext, MeasurementError, Measurements
    from weft_planner.profiling.operators import OperatorGrid, Overheads, cells, compose

    try:
        facts = known(model=given["model"], gpu=given["gpu"], config=given["config"])
        if facts.model is None:
            raise click.UsageError(f"--model: {given['model']!r} is not well known; give its config.json by --config")
        degrees = sorted(set(given["degrees"]))
        odd = [str(n) for n in degrees if not facts.model.splits(n)]
        if odd:
            raise click.UsageError(f"--degree: the model's heads do not split over {', '.join(odd)} GPUs")
        timer, notes = _timer(given, facts, degrees)
        grid = OperatorGrid(**{name: given[name] for name in OperatorGrid.__dataclass_fields__ if name in given})
        analytic = facts.analytic(degrees)
        capacity = {n: analytic.kv_capacity(n) for n in degrees if n in analytic.degrees} if analytic else {}
        wanted = cells(grid, degrees, kv_capacity=capacity)
        overheads = Overheads(given["prefill_overhead"], given["step_overhead"])
        with show_progress() as progress:
            composed = compose(
                facts.model,
                wanted,
                timer,
                overheads=overheads,
                progress=lambda done, of, _: progress("timing", done, of),
            )
        if not composed.rows:
            raise MeasurementError(composed.left_out or ("no shape of the grid fits the model",))
        about = MeasurementContext(given["model"], given["gpu"], given["engine"], notes=notes)
        result = Measurements(about, composed.rows)
        if given["store"]:
            write_measurements(result, Path(given["store"]))
    except (MeasurementError, OSError) as error:
        source = str(given["config"] or given["vidur"] or given["aiconfigurator"] or "operators")
        raise BadInputError(source, *lines_of(error, source)) from error
    place = given["store"] or "operators"
    return finish(result, {**given, "allow_missing": True}, place=place, notes=composed.left_out)


def _timer(
    given: dict[str, Any], facts: "KnownHardware", degrees: Sequence[int]
) -> tuple["OperatorTimer", dict[str, str]]:
    """Return what times operators, and what the provenance says of it."""
    from weft_planner.profiling.all_reduce import measured_or_estimated
    from weft_planner.profiling.operator_tables import RooflineTimer, TableTimer, aiconfigurator_tables, vidur_tables
    from weft_planner.profiling.operators import EstimatedAllReduce
    from weft_planner.profiling.torch_timer import TorchMissingError, TorchTimer

    if facts.model is None:
        raise click.UsageError("--model: not known")
    notes = {
        "source": "operators",
        "overheads": f"prefill {given['prefill_overhead']:g} s, step {given['step_overhead']:g} s",
    }
    folder = given["vidur"] or given["aiconfigurator"]
    if (folder or max(degrees) > 1) and facts.gpu is None:
        raise click.UsageError(
            f"--gpu: {given['gpu']!r} is not in the catalogue, and tables or degrees above 1 need it"
        )
    if folder:
        if facts.gpu is None:
            raise click.UsageError("--gpu: not known")
        rows = vidur_tables(folder) if given["vidur"] else aiconfigurator_tables(folder)
        notes["tables"] = f"{'Vidur' if given['vidur'] else 'aiconfigurator'}, {len(rows)} operator times"
        notes["allReduce"] = "estimated from the GPU's links"
        tables = TableTimer(rows, otherwise=RooflineTimer(facts.gpu))
        return EstimatedAllReduce(tables, facts.model, facts.gpu), notes
    try:
        timer = TorchTimer(device=given["device"], dtype=given["dtype"])
    except TorchMissingError as error:
        raise click.ClickException(str(error)) from error
    notes |= {"device": timer.name, "versions": timer.versions, "dtype": given["dtype"]}
    if facts.gpu is None:
        return timer, notes
    with_links, notes["allReduce"] = measured_or_estimated(timer, facts.model, facts.gpu, dtype=given["dtype"])
    return with_links, notes


@profile.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path))
@click.option("--model", default="", help="Name of the model, where the files do not say.")
@click.option("--engine", default="", help="Engine and version, where the files do not say.")
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="FIELD=COLUMN[:UNIT]",
    help="Read CSV files with other columns: increment=isl, seconds=ttft:ms, or degree=@4 for a value. Repeat.",
)
@click.option("--passes", is_flag=True, help="The files are aiconfigurator's tables of whole passes (isl, ttft, tpot).")
@result_options
def fit(**given: Any) -> int:
    """Check measured tables and fit a profile to them.

    Several FILEs count as one run: more degrees, shapes or repetitions.
    """
    from weft_planner.profiling.columns import mapping_of, read_mapped, read_passes
    from weft_planner.profiling.files import read_measurements
    from weft_planner.profiling.knowledge import merge_measurements
    from weft_planner.profiling.measurements import MeasurementError

    runs = []
    for path in given["files"]:
        try:
            if given["columns"]:
                mapped = mapping_of(given["columns"])
                runs.append(read_mapped(path.read_text(encoding="utf-8"), path.name, mapped))
            elif given["passes"]:
                runs.append(read_passes(path.read_text(encoding="utf-8"), path.name))
            else:
                runs.append(read_measurements(path))
        except (MeasurementError, OSError, UnicodeDecodeError) as error:
            raise BadInputError(str(path), *lines_of(error, str(path))) from error
    place = str(given["files"][0]) if len(given["files"]) == 1 else "measurements"
    try:
        return finish(merge_measurements(runs), given, place=place)
    except MeasurementError as error:
        raise BadInputError(place, *error.problems) from error
