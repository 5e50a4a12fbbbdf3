"""The ``weft`` program: finds its commands among the installed parts and loads only the one that is called."""

import difflib
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

import click

from weft_cli.commands import SECTIONS, known_help
from weft_cli.errors import NotInstalledError
from weft_cli.running import run

GROUP = "weft.commands"
"""Entry points of this group are click commands, called by the entry points' names."""
COMPLETION_VARIABLE = "_WEFT_COMPLETE"
OTHERS = "More"
"""Section of the help for the commands of other packages."""


class CommandGroup(click.Group):
    """The commands of the installed parts; none is imported before it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """Return every command, in the order of the help."""
        points = _points()
        known = [name for name in known_help() if name in points]
        return known + sorted(set(points) - set(known))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  click's
        """Load a command.

        Raises:
            NotInstalledError: it is registered, and a package that it needs is not installed.
        """
        point = _points().get(cmd_name)
        if point is None:
            return None
        try:
            command = point.load()
        except ImportError as error:
            raise NotInstalledError(cmd_name, f"it ({error})") from error
        assert isinstance(command, click.Command), f"{point.value} is no click command"  # noqa: S101
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the called command; an unknown one names those there are, the nearest first."""
        name = click.utils.make_str(args[0])
        commands = self.list_commands(ctx)
        if name not in commands and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, commands, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            ctx.fail(f"unknown command {name!r}; {hint}the commands are {', '.join(commands)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; a library that an image leaves out is named."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            raise NotInstalledError(str(ctx.invoked_subcommand), str(error.name)) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, with the known help lines."""
        lines = known_help()
        points = _points()
        sections = {title: [name for name in commands if name in points] for title, commands in SECTIONS.items()}
        sections[OTHERS] = [name for name in self.list_commands(ctx) if name not in lines]
        for title, names in sections.items():
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name, _line(points[name], lines.get(name, ""))) for name in names])


def _points() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _line(point: EntryPoint, text: str) -> str:
    """Return a command's line of help; an image holds only the parts it runs."""
    if find_spec(point.module.partition(".")[0]) is None:
        return f"{text} (not installed)".lstrip()
    return text


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="weft", message="weft %(version)s")
def weft() -> None:
    """Multi-round LLM inference on Kubernetes: plan, route, operate.

    Exit status: 0 done, 1 not possible or failed, 2 a command line or an input that makes no sense.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``weft COMMAND …`` and return its exit status; 2 for a command line that makes no sense."""
    if COMPLETION_VARIABLE in os.environ:
        weft.main(prog_name="weft", complete_var=COMPLETION_VARIABLE)
    return run(weft, argv, prog="weft")
