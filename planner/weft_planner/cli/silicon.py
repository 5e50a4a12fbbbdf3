"""``weft profile silicon``: fit a cost profile to the operator times that NVIDIA measured on its GPUs."""

from pathlib import Path
from typing import Any

import click

from weft_cli.degree import DEGREE
from weft_cli.errors import BadInputError, lines_of
from weft_planner.cli.profile_result import DURATION, LENGTHS, finish, result_options
from weft_planner.cli.progress import show_progress


@click.command()
@click.option("--model", required=True, help="A well-known model's name, or any name with --config.")
@click.option("--backend", default="vllm", show_default=True, help="Engine type: vllm, sglang or tensorrt-llm.")
@click.option("--version", "release", default="", help="Version of the backend; default: the tables' current one.")
@click.option("--degree", "degrees", type=DEGREE, multiple=True, default=(1, 2, 4, 8), help="GPUs, or tp4pp2, dp16ep.")
@click.option(
    "--all-to-all",
    type=click.Choice(["deepep"]),
    help="How whole experts exchange tokens (vLLM, SGLang); default: as the engine does by itself, by collectives.",
)
@click.option("--engine", default="", help="Engine in the profile; default: the backend.")
@click.option("--prefill-overhead", type=DURATION, default="2ms", show_default=True, help="Of an engine's prefill.")
@click.option("--step-overhead", type=DURATION, default="1ms", show_default=True, help="Of an engine's step.")
@click.option(
    "-m", "--measurements", "store", type=click.Path(), metavar="FILE", help="Keep the times here (.json or .csv)."
)
@click.option("--histories", type=LENGTHS, default=(0, 1024, 4096, 16384), help="Cached tokens before a prefill.")
@click.option("--increments", type=LENGTHS, default=(16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192))
@click.option(
    "--batches",
    type=LENGTHS,
    default=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512),
)
@click.option("--contexts", type=LENGTHS, default=(256, 1024, 4096, 16384), help="Tokens each sequence holds.")
@click.option("--chunks", type=LENGTHS, default=(128, 512, 2048), help="Prefill tokens beside a batch.")
@result_options
def silicon(**given: Any) -> int:
    """Fit a profile to NVIDIA's tables of operator times (aiconfigurator-core). Needs no GPU and no network.

    Degrees at which the model does not fit or that the tables lack are left out, and named.
    """
    from weft_core.hf_config import config_of_text
    from weft_planner.profiling.files import write_measurements
    from weft_planner.profiling.knowledge import known
    from weft_planner.profiling.measurements import MeasurementContext, MeasurementError, Measurements
    from weft_planner.profiling.operators import OperatorGrid, Overheads
    from weft_planner.profiling.silicon import NOISE, SiliconError, measure, tables_of

    if given["store"] and not all(isinstance(degree, int) for degree in given["degrees"]):
        raise click.UsageError("--measurements: the file holds plain degrees only; leave it out, or other degrees")

    lengths = {name: given[name] for name in OperatorGrid.__dataclass_fields__ if name in given}
    grid = OperatorGrid(**lengths, chunk_histories=given["histories"])
    overheads = Overheads(given["prefill_overhead"], given["step_overhead"])
    source = str(given["config"] or given["model"])
    try:
        facts = known(model=given["model"], gpu=given["gpu"], config=given["config"])
        tables = tables_of(given["gpu"], given["backend"], given["release"], given["all_to_all"] or "")
        with show_progress() as progress:
            found = measure(
                facts,
                tables,
                degrees=sorted(set(given["degrees"])),
                grid=grid,
                overheads=overheads,
                config=given["config"] and config_of_text(given["config"].read_text(encoding="utf-8")),
                progress=lambda done, of, _: progress("reading tables", done, of),
            )
        about = MeasurementContext(given["model"], given["gpu"], given["engine"] or given["backend"], notes=found.notes)
        result = Measurements(about, found.rows)
        if given["store"]:
            write_measurements(result, Path(given["store"]))
    except SiliconError as error:
        raise click.ClickException(str(error)) from error
    except (MeasurementError, OSError) as error:
        raise BadInputError(source, *lines_of(error, source)) from error
    given |= {"allow_missing": True, "noise": max(given["noise"], NOISE)}
    return finish(result, given, place=given["store"] or "silicon tables", notes=found.left_out)
