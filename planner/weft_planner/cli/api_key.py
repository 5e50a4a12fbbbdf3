"""The API key of an engine that a command measures: named by an environment variable, never on the command line."""

import os

import click

api_key_option = click.option(
    "--api-key-env", default="", metavar="NAME", help="Environment variable with the engine's API key."
)


def key_headers(variable: str) -> dict[str, str] | None:
    """Return the header with the key of a variable; None where no variable is named.

    Raises:
        UsageError: the environment lacks the variable.
    """
    if not variable:
        return None
    key = os.environ.get(variable)
    if not key:
        raise click.UsageError(f"--api-key-env: the environment has no {variable}")
    return {"Authorization": f"Bearer {key}"}
