"""Write docs/reference/cli.md from the commands themselves: ``python -m weft_cli.reference``."""

import inspect
import sys
from collections.abc import Iterator

import click

from weft_cli import weft
from weft_cli.commands import SECTIONS

INTRODUCTION = """# Command line

Written by `python -m weft_cli.reference` (`make generate`) from the commands themselves; do not edit.

`weft COMMAND --help` prints the same. Which commands there are depends on the parts that are installed: `pip install
'weft[planner]'` brings planning and `weft local`, the images bring what they run. `weft completion bash|zsh|fish`
prints a script that makes a shell complete commands, options and choices.

Exit status: 0 done; 1 not possible, or failed; 2 a command line or an input that makes no sense, with a line on stderr
for each fault that names file, field, value and fix; 130 interrupted, after printing what was done by then.
"""


def page() -> str:
    """Return the page."""
    context = click.Context(weft, info_name="weft")
    parts = [INTRODUCTION]
    for title, commands in SECTIONS.items():
        parts.append(f"## {title}\n")
        for name in commands:
            command = weft.get_command(context, name)
            if command is not None:
                parts += _command(command, click.Context(command, info_name=name, parent=context), level=3)
    return "\n".join(parts)


def _command(command: click.Command, context: click.Context, *, level: int) -> Iterator[str]:
    """Yield the parts of a command and of those below it."""
    yield f"{'#' * level} `{context.command_path}`\n"
    if not isinstance(command, click.Group):
        yield f"```\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    if command.help:
        yield _plain(command.help) + "\n"
    rows = [row for parameter in command.get_params(context) if (row := _row(parameter, context)) is not None]
    if rows:
        yield "| option | default | meaning |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from _command(below, click.Context(below, info_name=name, parent=context), level=level + 1)


def _row(parameter: click.Parameter, context: click.Context) -> str | None:
    """Return the row of an option; ``--help`` is everywhere and needs none."""
    if not isinstance(parameter, click.Option) or "--help" in parameter.opts:
        return None
    metavar = "" if parameter.is_flag else f" {parameter.make_metavar(context)}"
    names = ", ".join(f"`{name}`" for name in parameter.opts) + (f" `{metavar.strip()}`" if metavar else "")
    default = "*required*" if parameter.required else _default(parameter)
    text = (parameter.help or "").split("  [")[0]
    more = " May be repeated." if parameter.multiple and "repeated" not in text else ""
    return f"| {_cell(names)} | {_cell(default)} | {_cell(text + _range(parameter.type) + more)} |"


def _range(kind: object) -> str:
    """Return the allowed values of a number."""
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return ""
    low = "" if kind.min is None else f"above {kind.min:g}" if kind.min_open else f"at least {kind.min:g}"
    high = "" if kind.max is None else f"below {kind.max:g}" if kind.max_open else f"at most {kind.max:g}"
    return f" ({', '.join(part for part in (low, high) if part)})" if low or high else ""


def _default(parameter: click.Option) -> str:
    """Return a default that is the same on every machine; others are told in the option's help."""
    value = parameter.default
    if parameter.is_flag or parameter.multiple or callable(value) or not isinstance(value, str | int | float):
        return ""
    return f"`{value}`" if str(value) else ""


def _plain(text: str) -> str:
    """Return a help text as paragraphs; what click keeps as it is becomes code."""
    blocks = []
    for block in inspect.cleandoc(text).split("\n\n"):
        lines = block.splitlines()
        if lines and lines[0].strip() == "\b":
            blocks.append("```\n" + "\n".join(lines[1:]) + "\n```")
        else:
            blocks.append(" ".join(line.strip() for line in lines))
    return "\n\n".join(blocks)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").strip()


if __name__ == "__main__":
    sys.stdout.write(page())
