"""``weft completion SHELL``: print the script that makes a shell complete verbs, options and choices."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  source <(weft completion bash)     in ~/.bashrc (bash 4.4 or newer)
    zsh:   source <(weft completion zsh)      in ~/.zshrc, after compinit
    fish:  weft completion fish > ~/.config/fish/completions/weft.fish
    """
    from weft_planner.cli import COMPLETION_VARIABLE, weft

    found = get_completion_class(shell)
    assert found is not None  # noqa: S101  click brings all three
    # source() would refuse where another bash is first on PATH; the script itself is the same.
    writer = found(weft, {}, "weft", COMPLETION_VARIABLE)
    click.echo(writer.source_template % writer.source_vars())
