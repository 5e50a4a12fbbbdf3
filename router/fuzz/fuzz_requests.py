"""Fuzz the reading of requests: ``make fuzz``, or this file with a folder and options of libFuzzer."""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["weft_router.http"]):
    from weft_router_tests.framing_corpus import CORPUS
    from weft_router_tests.http_invariants import requests_are_read_alike


def one(data: bytes) -> None:
    """Check one input; its first byte says how it is cut."""
    requests_are_read_alike(data[1:], step=data[0] if data else 1)


if __name__ == "__main__":
    folder = Path(sys.argv[1])  # the seeds go here, and what libFuzzer finds worth keeping
    for n, case in enumerate(CORPUS):
        (folder / str(n)).write_bytes(b"\x03" + case.raw)
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
