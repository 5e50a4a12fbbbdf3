"""``weft explain [WHAT]``: why this plan, why not the others, what it rests on; or what a reason means."""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

import click
from click.shell_completion import CompletionItem

from weft_cli.output import emit, output_option

REASONS_GROUP = "weft.reasons"
"""Entry points: a function from a word ("" for all) to its JSON form and text; None where it is no such word."""

Explained = tuple[Mapping[str, object], str]


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete reasons and conditions first, then files."""
    found = _reasons("")
    words = cast("list[dict[str, str]]", found[0]["reasons"]) if found is not None else []
    names = sorted({row["reason"] for row in words} | {row["condition"] for row in words})
    begun = [CompletionItem(name) for name in names if name.lower().startswith(incomplete.lower())]
    return begun or [CompletionItem(incomplete, type="file")]


@click.command()
@click.argument("what", metavar="[REASON|CONDITION|PLAN]", required=False, shell_complete=_complete)
@click.option("--name", help="Which service, when the file has several.")
@output_option
def explain(*, what: str | None, name: str | None, output: str) -> int:
    """Explain a stored plan, or a reason of a condition: what it means, why it is there, what helps.

    A REASON is a word of a service's conditions, as `weft status` shows it; a CONDITION lists its reasons; without
    either all are listed.

    PLAN is a file that `weft plan -o json` or `-o yaml` wrote, or a service as `kubectl get dis NAME -o yaml` prints
    it; - reads stdin, live:NAME asks the cluster.
    """
    is_file = what is not None and (what == "-" or "/" in what or ":" in what or "." in what or Path(what).exists())
    if not is_file:
        found = _reasons(what or "")
        if found is not None:
            body, text = found
            emit(output, body, lambda: text)
            return 0
    if what is None:
        raise click.UsageError("name a plan; reasons are explained where weft[operator] is installed")
    if not is_file:
        raise click.UsageError(_unknown(what))
    return _plan(what, name, output)


def _plan(path: str, name: str | None, output: str) -> int:
    from dataclasses import asdict

    from weft_core.plan import plan_to_json
    from weft_planner.cli.stored import stored_plan
    from weft_planner.explanation import explain as explained
    from weft_planner.tables import text_of
    from weft_planner.tables.explanation import explanation_parts

    stored = stored_plan(path, name=name)
    found = explained(stored.plan)
    emit(
        output,
        {"plan": plan_to_json(stored.plan), "explanation": asdict(found)},
        lambda: text_of(explanation_parts(found, stored.plan, name=stored.name)),
    )
    return 0


def _reasons(word: str) -> Explained | None:
    for point in entry_points(group=REASONS_GROUP):
        try:
            explained = cast(Callable[[str], "Explained | None"], point.load())
        except ImportError:  # an image holds only the parts it runs
            continue
        return explained(word)
    return None


def _unknown(word: str) -> str:
    import difflib

    every = _reasons("")
    rows = cast("list[dict[str, str]]", every[0]["reasons"]) if every is not None else []
    known = {name.lower(): name for row in rows for name in (row["reason"], row["condition"])}
    near = [known[key] for key in difflib.get_close_matches(word.lower(), known, n=1)]
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{word!r} is no file and no reason of a condition; {hint}`weft explain` lists all reasons"
