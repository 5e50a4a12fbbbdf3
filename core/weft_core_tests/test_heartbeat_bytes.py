"""Whatever bytes somebody writes as a heartbeat, they are a record or none; `make fuzz` looks for more of them."""

import json
import random

import pytest

from weft_core_tests.heartbeat_invariants import VALUES, parse, records_are_read_or_refused
from weft_core_tests.test_heartbeat import FULL


@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_are_a_record_or_none(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        records_are_read_or_refused(rng.randbytes(rng.randrange(80)))


@pytest.mark.parametrize("name", FULL.fields())
def test_any_value_in_a_field_is_read_or_refused(name: str) -> None:
    for value in VALUES:
        parse(json.dumps({**FULL.fields(), name: value}).encode())


def test_what_is_nested_deeply_is_none() -> None:
    assert parse(b"[" * 100_000) is None
    assert parse(b'{"worker":' * 100_000) is None
