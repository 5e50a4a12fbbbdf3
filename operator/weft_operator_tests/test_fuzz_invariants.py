"""What `make fuzz` looks for in hours, on a few inputs: answers of Prometheus, and services."""

import json
import random

import pytest

from weft_operator.commands.manifest_checks import service_messages
from weft_operator_tests.metrics_invariants import answers_are_read_or_refused
from weft_operator_tests.service_invariants import service_is_refused_or_rendered, services_are_refused_or_rendered
from weft_operator_tests.valid import changed, service


@pytest.mark.parametrize("seed", range(4))
def test_any_answer_is_read_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        answers_are_read_or_refused(b"\1\0" + rng.randbytes(rng.randrange(60)))
    for text in ("[[]]", "[{}]", "[[[]]]", '[[{"metric": {}, "value": [0, "1"]}]]', "[" * 100_000):
        answers_are_read_or_refused(b"\0\0\1\0\0\0" + text.encode())


@pytest.mark.parametrize("seed", range(4))
def test_any_service_is_refused_or_becomes_objects(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        services_are_refused_or_rendered(rng.randbytes(20))


def test_half_a_character_is_refused() -> None:
    """JSON may hold one half of a pair of surrogates, which no encoding has."""
    body = changed(service(), "spec.model.name", "a\ud800")
    assert service_messages(body)
    service_is_refused_or_rendered(json.loads(json.dumps(body)))
