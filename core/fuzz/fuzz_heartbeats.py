"""Fuzz the reading of heartbeats: ``make fuzz``, or this file with a folder and options of libFuzzer."""

import json
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["weft_core.heartbeat"]):
    from weft_core_tests.heartbeat_invariants import records_are_read_or_refused
    from weft_core_tests.test_heartbeat import FULL


if __name__ == "__main__":
    folder = Path(sys.argv[1])  # the seeds go here, and what libFuzzer finds worth keeping
    (folder / "whole").write_bytes(b"\x01\x00" + json.dumps(FULL.fields()).encode())
    for n in range(32):
        (folder / str(n)).write_bytes(b"\x00\x00\x01\x00" + bytes([n, 0, 1, 0, 1, 0, n, 0]))
    atheris.Setup(sys.argv, records_are_read_or_refused)
    atheris.Fuzz()
