"""``weft completion SHELL``: print the script that makes a shell complete commands, options and choices.

``kubectl weft`` is completed by kubectl's own script, which asks the program ``kubectl_complete-weft`` on PATH.
"""

import sys
from collections.abc import Sequence

import click
from click.shell_completion import ShellComplete, get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  source <(weft completion bash)     in ~/.bashrc (bash 4.4 or newer)
    zsh:   source <(weft completion zsh)      in ~/.zshrc, after compinit
    fish:  weft completion fish > ~/.config/fish/completions/weft.fish

    `kubectl weft` needs none of these, only kubectl's own (1.26 or newer).
    """
    from weft_cli import COMPLETION_VARIABLE, weft

    found = get_completion_class(shell)
    assert found is not None  # noqa: S101  click brings all three
    # source() would refuse where another bash is first on PATH; the script itself is the same.
    writer = found(weft, {}, "weft", COMPLETION_VARIABLE)
    click.echo(writer.source_template % writer.source_vars())


FILES, NO_FILES = 0, 4
"""What kubectl's shell does beside the given words: offer files, or nothing."""


def for_kubectl(argv: Sequence[str] | None = None) -> int:
    """Print the words that complete the last of ``kubectl weft …``'s arguments, as kubectl asks a plugin for them."""
    from weft_cli import COMPLETION_VARIABLE, weft

    *before, begun = (sys.argv[1:] if argv is None else argv) or [""]
    found = ShellComplete(weft, {}, "kubectl-weft", COMPLETION_VARIABLE).get_completions(list(before), begun)
    for item in found:
        if item.type == "plain":
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(f":{FILES if any(item.type in ('file', 'dir') for item in found) else NO_FILES}")
    return 0
