"""Fuzz the cutting of event streams: ``make fuzz``, or this file with a folder and options of libFuzzer."""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["weft_router.http"]):
    from weft_router_tests.http_invariants import events_are_cut_alike
    from weft_router_tests.test_http_sse import RECORDED


def one(data: bytes) -> None:
    """Check one input; its first byte says how it is cut."""
    events_are_cut_alike(data[1:], step=data[0] if data else 1)


if __name__ == "__main__":
    folder = Path(sys.argv[1])  # the seeds go here, and what libFuzzer finds worth keeping
    for n, (raw, _) in enumerate(RECORDED.values()):
        (folder / str(n)).write_bytes(b"\x03" + raw)
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
