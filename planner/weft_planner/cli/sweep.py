"""``weft profile sweep``: throughput-latency curves of a live engine, for ``weft plan --rate-match --curves``."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft_cli.degree import DEGREE
from weft_cli.errors import BadInputError
from weft_cli.running import INTERRUPTED
from weft_planner.cli.api_key import api_key_option, key_headers
from weft_planner.cli.profile_result import DURATION, LENGTHS
from weft_planner.cli.progress import show_progress
from weft_planner.cli.ranges import Finite

if TYPE_CHECKING:
    from weft_planner.profiling.sweep_file import Sweep


@click.command()
@click.argument("url", metavar="URL")
@click.option("--degree", type=DEGREE, default=1, show_default=True, help="GPUs of the engine, or tp4pp2, dp16ep.")
@click.option("--gpu", default="", help="GPU type, such as nvidia-h100.")
@click.option("--served-model", default="", help="Name that requests use; default: the first that the engine lists.")
@click.option("--model", default="", help="Name in the file; default: as served.")
@click.option("--engine", default="", help="Engine and version in the file; default: what the engine says.")
@api_key_option
@click.option(
    "--seconds", type=Finite(min=1, max=86_400), default=300, show_default=True, help="Stop after this many seconds."
)
@click.option(
    "--requests", type=click.IntRange(1), default=10_000, show_default=True, help="Send at most this many prompts."
)
@click.option("--prompts", type=LENGTHS, default=(128, 512, 1024, 2048, 4096, 8192), help="Tokens of context prompts.")
@click.option("--clients", type=LENGTHS, default=(1, 2, 4), help="Clients that ask for them at a time.")
@click.option("--contexts", type=LENGTHS, default=(1024, 4096), help="Tokens that a decoding sequence holds.")
@click.option(
    "--concurrency",
    type=LENGTHS,
    default=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    help="Sequences that decode together; empty: no generation curve.",
)
@click.option(
    "--answers",
    type=click.IntRange(0, 1_000_000),
    default=128,
    show_default=True,
    help="Tokens of an answer to the shortest of --contexts where the engine does both; 0: no aggregated curve.",
)
@click.option("--rounds", type=click.IntRange(2, 100), default=3, show_default=True, help="Requests of each client.")
@click.option("--steps", type=click.IntRange(4, 512), default=32, show_default=True, help="Decode steps per timing.")
@click.option("--timeout", type=DURATION, default="2m", show_default=True, help="Longest wait for an answer.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the prompts; default: a random one.")
@click.option(
    "-o", "--output", "target", type=click.Path(), metavar="FILE", help="Write the curves here (.yaml or .json)."
)
def sweep(**given: Any) -> int:
    """Sweep a live OpenAI-compatible engine: TTFT, ITL and throughput over prompt lengths and concurrency.

    Bounded by --seconds and --requests: first the context curve, then generation, then the engine doing both, of each
    what costs least first; the points that the bounds cut off are named. Prompts are random token ids that no prefix
    cache knows; nothing else should use the engine meanwhile. Ctrl-C keeps what was measured when -o is given. Exit
    status: 0 curves, whole or of what the bounds allowed; 1 the engine failed.
    """
    from weft_planner.profiling.engine_errors import EngineError
    from weft_planner.profiling.sweep_engine import SweepSettings, SweepTarget, sweep_engine
    from weft_planner.profiling.sweep_file import write_sweep
    from weft_planner.profiling.sweep_points import SweepGrid
    from weft_planner.tables.sweep import sweep_parts
    from weft_planner.tables.writing import text_of

    place = given["target"]
    if place is not None and not place.endswith((".json", ".yaml", ".yml")):
        raise BadInputError(place, "curves are written as .yaml or .json; choose one of the endings")
    grid = SweepGrid(
        prompts=_lengths(given, "prompts"),
        clients=_lengths(given, "clients"),
        contexts=_lengths(given, "contexts"),
        concurrency=_lengths(given, "concurrency"),
        answer_tokens=given["answers"],
    )
    target = SweepTarget(
        url=given["url"],
        degree=given["degree"],
        served=given["served_model"],
        model=given["model"],
        gpu=given["gpu"],
        engine=given["engine"],
        headers=key_headers(given["api_key_env"]),
        timeout_s=given["timeout"],
    )
    settings = SweepSettings(
        seconds=given["seconds"],
        requests=given["requests"],
        rounds=given["rounds"],
        steps=given["steps"],
        seed=given["seed"],
    )
    kept: list[Sweep] = []

    def save(state: "Sweep") -> None:
        kept[:] = [state]
        if place is not None and not state.empty:
            try:
                write_sweep(state, Path(place))
            except OSError as error:
                raise BadInputError(place, f"cannot be written: {error.strerror}") from error

    try:
        with show_progress() as progress:
            found = asyncio.run(
                sweep_engine(
                    target,
                    grid,
                    settings,
                    now=lambda: datetime.now(UTC).isoformat(timespec="seconds"),
                    save=save,
                    progress=lambda done, of: progress("sweeping", done, of),
                )
            )
    except KeyboardInterrupt:
        click.echo(f"interrupted: {_kept(kept, place)}", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except EngineError as error:
        raise click.ClickException(f"{error}; {_kept(kept, place)}" if kept else str(error)) from error
    if found.empty:
        raise click.ClickException(f"{given['url']}: nothing was measured: {'; '.join(found.notes[:3])}")
    click.echo(text_of(sweep_parts(found)))
    if place is not None:
        click.echo(f"wrote {place}")
    return 0


def _lengths(given: dict[str, Any], name: str) -> tuple[int, ...]:
    """Return an option's lengths, in order and each once.

    Raises:
        UsageError: one is 0.
    """
    lengths: tuple[int, ...] = given[name]
    if 0 in lengths:
        raise click.UsageError(f"--{name}: lengths and counts are 1 or more")
    return tuple(sorted(set(lengths)))


def _kept(kept: "list[Sweep]", place: str | None) -> str:
    if not kept or kept[0].empty:
        return "nothing was measured"
    if place is None:
        return "nothing was saved; give -o FILE to keep what was measured"
    rows = len(kept[0].context) + len(kept[0].generation) + len(kept[0].aggregated)
    return f"{rows} points are in {place}"
