"""What the report simulates: no run that could not change what it says, and none twice."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.plan import PlannedGroup
from weft_planner.evaluation import samples
from weft_planner.evaluation.candidates import Candidate
from weft_planner.evaluation.threads import in_threads
from weft_planner.evaluation.trials import KnownRuns, Trials
from weft_planner.plan.solve import rank_for_other_objective, solve
from weft_planner.programs.inputs import prepare_inputs
from weft_planner.simulation.layout import PolicyChoice
from weft_planner.simulation.statistics import attainment
from weft_planner.study.report_facts import ConsideredLayout, choice, rivals_of
from weft_planner.study.scenario import PlanSessions, Scenario
from weft_planner_tests.effort import solver
from weft_planner_tests.plans import PLAN
from weft_planner_tests.requests import request

RATE = 0.5
GROUPS = (PlannedGroup("prefill", 4, 1, "h20"), PlannedGroup("decode", 8, 1, "h20"))


def _layout(gpus: int) -> ConsideredLayout:
    candidate = Candidate("colocated", (PlannedGroup("decode", 1, gpus, "a"),), PolicyChoice("colocated", mode=""))
    return ConsideredLayout(str(candidate), candidate, PLAN.predicted, None, runnable=True)


@given(
    layouts=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 100)), min_size=1, max_size=5),
    objective=st.sampled_from(["latency", "cost"]),
)
def test_what_is_not_simulated_does_not_change_the_choice(layouts: list[tuple[int, int]], objective: str) -> None:
    considered = [_layout(gpus) for gpus, _ in layouts]
    shares = [percent / 100 for _, percent in layouts]
    asked = request(objective=objective)
    goal = asked.slo.attainment
    rivals = rivals_of(considered, shares[0], asked)
    some = [share if place == 0 or place in rivals else 0.0 for place, share in enumerate(shares)]
    chosen = choice(considered, shares, goal=goal, objective=objective)
    assert choice(considered, some, goal=goal, objective=objective) == chosen
    assert some[chosen] == shares[chosen]


def test_results_come_in_the_order_of_the_items_from_tasks_within_tasks_too() -> None:
    def squares(upto: int) -> list[int]:
        return list(in_threads(lambda n: n * n, range(upto)))

    assert list(in_threads(squares, range(20))) == [[n * n for n in range(upto)] for upto in range(20)]


def test_an_error_of_a_task_is_raised() -> None:
    def fail(n: int) -> int:
        raise ValueError(str(n))

    with pytest.raises(ValueError, match="0"):
        list(in_threads(fail, range(4)))


def test_runs_that_another_objective_has_seen_are_not_run_again() -> None:
    inputs, known = prepare_inputs(request()), KnownRuns()
    tried: Sequence[Candidate] = [
        Candidate(
            "disaggregated",
            (PlannedGroup("prefill", 4, count, "h20"), PlannedGroup("decode", 8, 1, "h20")),
            PolicyChoice("weft", mode="ia"),
        )
        for count in (1, 2)
    ]
    first = Trials(inputs, known)
    found = first.attained(tried, RATE, sieve=True)
    assert first.runs == len(tried)
    other = Trials(inputs.asking(request(objective="cost")), known)
    assert other.attained(tried, RATE, sieve=True) == found
    assert other.runs == 0


def test_the_reports_runs_are_the_plans() -> None:
    inputs = prepare_inputs(request())
    tried = Candidate("disaggregated", GROUPS, PolicyChoice("weft", mode="ia"))
    (planned,) = Trials(inputs).attained([tried], RATE, full=True)
    scenario = Scenario(PlanSessions(inputs, samples.ROUNDS), tried)
    assert [attainment(scenario.run(RATE, seed), scenario.reading) for seed in range(3)] == planned


def test_layouts_of_the_other_objective_follow_from_what_the_plan_knows() -> None:
    asked, known = request(), KnownRuns()
    solve(asked, known=known, solver=solver())
    before = dict(known.attained)
    found = rank_for_other_objective(asked.model_copy(update={"objective": "cost"}), known, count=2)
    assert 0 < len(found) <= 2
    assert all(one.candidate.runnable for one in found)
    assert before.items() <= known.attained.items()


def test_without_a_plan_nothing_is_known_of_another_objective() -> None:
    assert rank_for_other_objective(request(), KnownRuns(), count=2) == []


def test_a_run_at_a_lower_rate_shows_that_a_layout_misses() -> None:
    inputs = prepare_inputs(request())
    one, other = (Candidate("disaggregated", (PlannedGroup("decode", 8, n, "h20"),), PolicyChoice()) for n in (1, 2))
    trials = Trials(inputs, KnownRuns(attained={(one.key, 2.0, 0, 100): 0.5}))
    assert trials.known_to_miss(one, 2.0, 0.8)
    assert trials.known_to_miss(one, 3.0, 0.8)
    assert not trials.known_to_miss(one, 1.0, 0.8)
    assert not trials.known_to_miss(one, 2.0, 0.4)
    assert not trials.known_to_miss(other, 3.0, 0.8)
