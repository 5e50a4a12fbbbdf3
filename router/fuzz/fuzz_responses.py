"""Fuzz the plain reading of responses: ``make fuzz``, or this file with a folder and options of libFuzzer."""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["weft_router.http"]):
    from weft_router_tests.http_invariants import responses_are_read_alike
    from weft_router_tests.test_http_whole_response import NOT_PLAIN, PLAIN


def one(data: bytes) -> None:
    """Check one input."""
    responses_are_read_alike(data)


if __name__ == "__main__":
    folder = Path(sys.argv[1])  # the seeds go here, and what libFuzzer finds worth keeping
    for n, raw in enumerate([*PLAIN, *NOT_PLAIN]):
        (folder / str(n)).write_bytes(raw)
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
