"""Slices of a prompt, each a request of its own: the prefix cache joins them, and each shares a step with the batch."""

from itertools import pairwise

import pytest

from weft_mock.sequence import Sequence
from weft_mock_tests.engines import profile
from weft_mock_tests.machine import Machine

COSTS = profile(decode=0.01)
PROMPT = [7] * 900


def sliced(machine: Machine, ends: list[int]) -> list[Sequence]:
    """Send a prompt's parts one by one, each when the one before is done and another step has begun."""
    parts = []
    for end in ends:
        machine.step()
        parts.append(machine.add(PROMPT[:end], tokens=1))
        while not machine.out[parts[-1]]:
            machine.step()
    return parts


def test_a_slice_computes_what_the_ones_before_it_did_not() -> None:
    machine = Machine(chunk=4096, costs=COSTS)
    machine.add([1, 2, 3], tokens=30)
    parts = sliced(machine, [400, 800, 900])
    assert [part.record.computed for part in parts] == [400, 400, 100]
    assert [part.record.cached for part in parts] == [0, 400, 800]


@pytest.mark.parametrize(("chunk", "longest"), [(4096, 0.01 + 400e-5), (None, 0.01 + 0.001 + 400e-5)])
def test_beside_a_batch_a_slice_lengthens_one_gap(chunk: int | None, longest: float) -> None:
    # In a step of the batch it adds 10 us a token; where whole prompts run alone, the gap has a prefill and a step.
    machine = Machine(chunk=chunk, costs=COSTS)
    other = machine.add([1, 2, 3], tokens=30)
    sliced(machine, [400, 800])
    machine.run()
    times = machine.times(other)
    gaps = [after - before for before, after in pairwise(times)]
    assert sorted(gaps)[-2:] == [pytest.approx(longest)] * 2
    assert sorted(gaps)[:-2] == [pytest.approx(0.01)] * 27
