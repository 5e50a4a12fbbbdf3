"""Fuzz the reading of Prometheus' answers: ``make fuzz``, or this file with a folder and options of libFuzzer."""

import json
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["weft_operator.metrics"]):
    from weft_operator.metrics.queries import windows_of
    from weft_operator_tests.fake_prometheus import Prometheus, Router
    from weft_operator_tests.metrics_invariants import NOW, answers_are_read_or_refused


if __name__ == "__main__":
    folder = Path(sys.argv[1])  # the seeds go here, and what libFuzzer finds worth keeping
    good = Prometheus([Router("d0", NOW - 5000, 2.0)], NOW, windows_of(300)).answers()
    (folder / "plain").write_bytes(b"\x00\x00\x01\x00\x00\x00" + json.dumps(good.results).encode())
    for n in range(64):
        (folder / str(n)).write_bytes(b"\x01\x00" + bytes([n % 3, 0, n % 2, 0, 1, 0, n, 0, n % 5, 0, n, 0]))
    atheris.Setup(sys.argv, answers_are_read_or_refused)
    atheris.Fuzz()
