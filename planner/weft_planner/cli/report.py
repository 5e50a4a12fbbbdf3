"""``weft plan --report``: write the page; after Ctrl-C with what was done by then."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft_cli.running import INTERRUPTED
from weft_planner.cli.service import Service

if TYPE_CHECKING:
    from weft_planner.evaluation.trials import KnownRuns

Json = Mapping[str, object]


def check_report_path(path: str) -> None:
    """Refuse a path that cannot be written, before any work is done.

    Raises:
        BadParameter: the folder is not there or not to be written, or the name is a folder's.
    """
    target = Path(path)
    unfinished = _unfinished(target)
    if target.is_dir():
        raise click.BadParameter(f"{path} is a folder; give the name of a file", param_hint="--report")
    if not target.parent.is_dir():
        raise click.BadParameter(f"the folder {target.parent} is not there; make it first", param_hint="--report")
    try:
        unfinished.touch()
        unfinished.unlink()
    except OSError as error:
        raise click.BadParameter(
            f"{path} cannot be written: {error.strerror}; name another file", param_hint="--report"
        ) from error


def write_report(path: str, service: Service, plan: Json, known: "KnownRuns") -> int:
    """Simulate around a plan and write the page; 0, or 130 when interrupted: then with what was done.

    ``known`` is what the plan was made with.
    """
    from weft_core.plan import plan_from_json
    from weft_planner.cli.progress import show_progress
    from weft_planner.report.facts import Facts
    from weft_planner.report.page import page
    from weft_planner.study.report_facts import gather_facts, method_of

    request = service.request
    facts = Facts(
        service=service.name or request.model.name,
        request=request,
        plan=plan_from_json(plan),
        version=version("weft"),
        method=method_of(),
    )
    status = 0
    with show_progress() as progress:
        try:
            for found in gather_facts(facts, known, progress):
                facts = found
        except KeyboardInterrupt:
            from dataclasses import replace

            facts, status = replace(facts, interrupted=True), INTERRUPTED
    write_page(path, page(facts))
    words = "interrupted: the report holds what was done" if status else "report written"
    click.echo(f"weft plan: {words}: {path}", err=True)
    return status


def write_page(path: str, text: str) -> None:
    """Write a page under its name, once it is whole."""
    target = Path(path)
    unfinished = _unfinished(target)
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(target)
    except OSError as error:
        raise click.ClickException(f"--report {path}: cannot be written: {error.strerror}") from error


def _unfinished(target: Path) -> Path:
    """Return where the page is written before it takes its name: a reader never sees half of it."""
    return target.with_name(f".{target.name}.part")
