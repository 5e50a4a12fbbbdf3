"""``python -m weft_planner solve``: one JSON request in, one JSON answer out; how the operator asks for plans."""

import argparse
import sys

from weft_core.plan import canonical_json

MAX_REQUEST_BYTES = 8 * 2**20
"""A request with a cost profile of every degree pair is under 100 kB; anything near this is not a request."""


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verb."""
    parser = subparsers.add_parser("solve", help="read a planning request (JSON) on stdin, write the answer on stdout")
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Answer one request; 0 for a plan or a reasoned refusal, 2 for a request that cannot be read."""
    from weft_planner.solve import answer
    from weft_planner.workload import RequestError, parse_request

    text = sys.stdin.buffer.read(MAX_REQUEST_BYTES + 1)
    if len(text) > MAX_REQUEST_BYTES:
        print(f"request: more than {MAX_REQUEST_BYTES} bytes", file=sys.stderr)
        return 2
    try:
        request = parse_request(text)
    except RequestError as error:
        print(error, file=sys.stderr)
        return 2
    sys.stdout.write(canonical_json(answer(request)) + "\n")
    return 0
