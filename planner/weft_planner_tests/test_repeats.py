"""The same request, the same bytes, whatever the process; ``repeats`` does it a thousand times."""

from weft_planner_tests.repeats import compare


def test_two_processes_answer_the_same_bytes() -> None:
    plans, refusals = compare(range(8))
    assert plans + refusals == 8
    assert plans
