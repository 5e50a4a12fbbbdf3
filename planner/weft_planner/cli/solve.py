"""``python -m weft_planner solve``: one JSON request in, one JSON answer out; how the operator asks for plans."""

import sys

import click

from weft_core.plan import canonical_json

MAX_REQUEST_BYTES = 8 * 2**20
"""A request with a cost profile of every degree pair is under 100 kB; anything near this is not a request."""


@click.command()
def solve() -> int:
    """Read a planning request (JSON) on stdin, write the answer on stdout.

    Exit status: 0 for a plan or a reasoned refusal, 2 for a request that cannot be read.
    """
    from weft_planner.plan.solve import answer
    from weft_planner.request.reading import RequestError, parse_request

    text = sys.stdin.buffer.read(MAX_REQUEST_BYTES + 1)
    if len(text) > MAX_REQUEST_BYTES:
        click.echo(f"request: more than {MAX_REQUEST_BYTES} bytes", err=True)
        return 2
    try:
        request = parse_request(text)
    except RequestError as error:
        click.echo(error, err=True)
        return 2
    sys.stdout.write(canonical_json(answer(request)) + "\n")
    return 0
