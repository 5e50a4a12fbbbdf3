"""Fuzz the way of a service to its objects: ``make fuzz``, or this file with a folder and options of libFuzzer."""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["weft_operator.api", "weft_operator.render"]):
    from weft_operator_tests.service_invariants import services_are_refused_or_rendered


if __name__ == "__main__":
    folder = Path(sys.argv[1])  # the seeds go here, and what libFuzzer finds worth keeping
    for n in range(256):
        (folder / str(n)).write_bytes(bytes([n % 4, 0, 0, 0, n * 7 % 256, n % 3, 1, 0]))
    atheris.Setup(sys.argv, services_are_refused_or_rendered)
    atheris.Fuzz()
