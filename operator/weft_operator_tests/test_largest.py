"""The largest services: their bounds fit together, and what is too large to be stored is refused with the parts."""

import re

import pytest

from weft_operator.api import DisaggInferenceService
from weft_operator.api.spec_size import MAX_SPEC_BYTES, size_fault
from weft_operator.commands.manifest_checks import service_messages
from weft_operator_tests.largest import SHAPES, largest_service, shortened
from weft_operator_tests.valid import service
from weft_operator_tests.world import World

WORDS = (
    r"spec: has 1,\d{3},\d{3} bytes as JSON, and 524,288 is the most; "
    r"shorten its largest parts: spec\.engine \(32\d,\d{3}\), "
)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_the_largest_service_breaks_no_rule_but_that_of_its_size(shape: str) -> None:
    body = largest_service(shape)
    DisaggInferenceService.model_validate(body)
    (message,) = service_messages(body)
    assert re.match(WORDS, message), message
    assert service_messages(shortened(body, MAX_SPEC_BYTES)) == []


async def test_a_service_that_is_too_large_says_so_and_keeps_its_plan() -> None:
    world = World()
    await world.until_quiet()
    workers = world.cluster.names("StatefulSet")
    env = [{"name": f"A{number}", "value": "a" * 2048} for number in range(64)]
    labels = {f"example.com/{number}": "a" * 63 for number in range(16)}
    pool = service()["spec"]["capacity"]["pools"][0]
    world.cluster.change(
        engine={"type": "mock", "env": env, "args": ["a" * 1024] * 64},
        capacity={"gpus": 16, "pools": [{**pool, "nodeSelector": labels}]},
        model={**service()["spec"]["model"], "config": {"rope": "a" * 400_000}},
    )
    await world.step()
    told = world.cluster.condition("Planned")
    assert (told["status"], told["reason"]) == ("False", "InvalidSpec")
    assert "spec.engine (" in told["message"]
    assert world.cluster.names("StatefulSet") == workers


def test_common_specs_are_far_from_it() -> None:
    assert size_fault(service()["spec"]) is None
