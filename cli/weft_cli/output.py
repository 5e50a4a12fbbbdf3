"""Write a command's result: a table for people, JSON or YAML for programs."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import click

FORMATS = ("table", "json", "yaml")
Function = TypeVar("Function", bound=Callable[..., object])


def output_option(function: Function) -> Function:
    """Add ``-o/--output`` to a command."""
    return click.option(
        "-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True, help="Form of the result."
    )(function)


def emit(output: str, body: Mapping[str, object], table: Callable[[], str]) -> None:
    """Write ``body`` as JSON or YAML, or the table."""
    if output == "json":
        from weft_core.plan import canonical_json

        click.echo(canonical_json(body))
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(dict(body), sort_keys=True, allow_unicode=True), nl=False)
    else:
        click.echo(table())
