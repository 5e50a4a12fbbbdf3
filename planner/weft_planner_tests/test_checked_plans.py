"""Every answer to a random request passes a checker of its own, and the checker refuses what is changed in one thing.

`make test-programs` checks 1,000 answers.
"""

from functools import cache

import pytest

from weft_core.plan import Plan
from weft_planner_tests.checked_plans import MUTATIONS, check_answer, kept_plan
from weft_planner_tests.plan_checker import Json, broken_limits, confirms

SEEDS = 40


def test_plans_keep_every_limit_and_refusals_are_true() -> None:
    reasons = {check_answer(seed) for seed in range(SEEDS)}
    assert "" in reasons
    assert len(reasons) >= 4, "too few kinds of refusals to mean anything"


@cache
def _kept() -> tuple[Json, Plan]:
    return kept_plan()


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_checker_refuses_what_breaks_one_limit(name: str) -> None:
    body, plan = _kept()
    assert broken_limits(body, plan) == []
    assert broken_limits(*MUTATIONS[name](dict(body), plan)) != []


def test_the_checker_refuses_a_refusal_that_is_not_true() -> None:
    body, _ = _kept()
    assert not confirms(body, "TooFewGpus", "")
