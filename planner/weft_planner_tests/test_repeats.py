"""The same request, the same bytes, whatever the process; ``repeats`` does it a thousand times."""

import pytest

from weft_planner_tests.repeats import compare


@pytest.mark.timeout(60)  # two processes begin
def test_two_processes_answer_the_same_bytes() -> None:
    plans, refusals = compare(range(8))
    assert plans + refusals == 8
    assert plans
