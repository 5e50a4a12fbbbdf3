"""Whole days of replanning on a virtual clock: plans do not flap, and bad metrics never shrink anything.

RELIABILITY B1 and B2. The planner here knows one figure, what a worker carries; the decisions are the operator's own.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from weft_core_tests.property_tests import examples
from weft_operator.metrics.history import History, sample_of
from weft_operator.metrics.observation import Observation, Tally, WorkerPressure
from weft_operator.planning.request import planner_request
from weft_operator.render.inputs import PlanRecord
from weft_operator.replanning.decide import AskPlanner, ChangePlan, KeepPlan, ReplanInputs, decide
from weft_operator_tests.observations import (
    EACH,
    at,
    blind,
    look,
    plan_for,
    record_of,
    service_with,
    solve_rate,
    spread,
)
from weft_operator_tests.valid import spec

DAY_S = 86_400.0
STEP_S = 300.0
LEAST, MOST = 2, 12
PLANNING = {"objective": "cost", "decode": {"min": LEAST, "max": MOST}}
SEEDS = 50

SPEC = spec(service_with(**PLANNING))
PRIOR = planner_request(SPEC)["workload"]
SMALL = record_of(plan_for(2, rate=0.6), changed=-3600.0, **PLANNING)
LARGE = record_of(plan_for(10, rate=4.0), changed=-3600.0, **PLANNING)
"""Active plans for two workers, and for five times the load that ``quiet`` has."""


@dataclass
class Operator:
    """One service whose planner answers at once; ``changes`` are the moments and decode workers of every change."""

    record: PlanRecord = SMALL
    history: History = field(default_factory=lambda: History(1800.0))
    changes: list[tuple[float, int]] = field(default_factory=list)
    asked: int = 0

    @property
    def workers(self) -> int:
        """Return the decode workers of the active plan."""
        return sum(group.replicas for group in self.record.plan.groups if group.role == "decode")

    def sees(self, seconds: float, observation: Observation) -> None:
        """Take in one look and do what is decided."""
        self.history = self.history.with_(sample_of(observation, attainment=0.9, min_samples=30, burn_rate=1))
        now = ReplanInputs(
            spec=SPEC,
            prior=PRIOR,
            record=self.record,
            history=self.history,
            observation=observation,
            now=at(seconds),
        )
        decision = decide(now)
        if isinstance(decision, AskPlanner):
            self.asked += 1
            rate = decision.replan_request.workload["arrivalRate"]
            answer = solve_rate(rate, now=self.workers, least=LEAST, most=MOST)
            decision = decide(replace(now, replan_request=decision.replan_request, answer=answer))
        assert isinstance(decision, KeepPlan | ChangePlan)
        before, self.record = self.workers, decision.record
        if self.workers != before:
            self.changes.append((seconds, self.workers))


def served(seconds: float, rate: float, workers: int) -> Observation:
    """Return a look at so many workers under a load: what they cannot carry misses the SLO, and fills their caches."""
    use = min(1.0, rate / (workers * EACH))
    missed = max(0.0, 1 - workers * EACH / rate) if rate > 0 else 0.0
    rounds = round(rate * STEP_S * 5)
    slow = Tally(rounds - round(rounds * missed), round(rounds * missed))
    fast = Tally(slow.good // 5, slow.bad // 5)
    return look(
        seconds,
        rate,
        fast=fast,
        slow=slow,
        first_prompt=spread(1000.0, count=max(1, rounds // 5)),
        pressure=WorkerPressure(queue=0.0, kv_use={"decode": 0.4 * use}),
    )


def turns(changes: list[tuple[float, int]], first: int) -> list[float]:
    """Return the moments at which a change goes against the one before."""
    found, before, direction = [], first, 0
    for moment, workers in changes:
        sign = 1 if workers > before else -1
        if direction and sign != direction:
            found.append(moment)
        before, direction = workers, sign
    return found


def most_in_an_hour(moments: list[float]) -> int:
    return max((sum(begin <= other < begin + 3600 for other in moments) for begin in moments), default=0)


def constant(_seconds: float) -> float:
    return 1.9


def sine(seconds: float) -> float:
    return 2.4 + 1.6 * math.sin(2 * math.pi * seconds / DAY_S)


def step(seconds: float) -> float:
    return 0.8 if seconds < DAY_S / 3 or seconds > 2 * DAY_S / 3 else 3.6


def spike(seconds: float) -> float:
    return 4.2 if seconds % 14_400 < 900 else 1.2


@pytest.mark.parametrize(
    ("load", "least_changes", "most_turns"), [(constant, 0, 1), (sine, 6, 4), (step, 2, 4), (spike, 2, 4)]
)
def test_plans_do_not_flap(load: Callable[[float], float], least_changes: int, most_turns: int) -> None:
    """A day of each load with noise of a fifth either way: at most 4 turns in any hour, within min and max."""
    worst, changes = 0, []
    for seed in range(SEEDS):
        rng, operator = random.Random(seed), Operator()
        for number in range(int(DAY_S / STEP_S)):
            seconds = number * STEP_S
            operator.sees(seconds, served(seconds, load(seconds) * rng.uniform(0.8, 1.2), operator.workers))
            assert LEAST <= operator.workers <= MOST
        worst = max(worst, most_in_an_hour(turns(operator.changes, 2)))
        changes.append(len(operator.changes))
        pauses = [b[0] - a[0] for a, b in zip(operator.changes, operator.changes[1:], strict=False)]
        assert all(pause >= 600 for pause in pauses), "the cooldown"
    assert worst <= most_turns
    assert min(changes) >= least_changes, "it must follow the load at all"
    assert max(changes) <= 60


def test_a_load_that_stays_is_followed_and_then_left_alone() -> None:
    """Without noise: up within ten minutes of a step, down half an hour after it, and nothing else all day."""
    operator = Operator()
    for number in range(int(DAY_S / STEP_S)):
        seconds = number * STEP_S
        operator.sees(seconds, served(seconds, step(seconds), operator.workers))
    (up, most), *downs = operator.changes[-2:] if len(operator.changes) > 1 else [(0.0, 0), (0.0, 0)]
    assert up - DAY_S / 3 <= 600
    assert most == math.ceil(3.6 * 1.2 / EACH)
    assert [2 * DAY_S / 3 + 1800 <= moment <= 2 * DAY_S / 3 + 2700 for moment, _ in downs] == [True]


BAD: dict[str, Callable[[float, random.Random], Observation]] = {
    "stale": lambda t, _: blind(t, "Stale"),
    "absent": lambda t, _: blind(t, "NoSeries"),
    "half the pods": lambda t, _: blind(t, "Partial"),
    "error 500": lambda t, _: blind(t, "QueryFailed"),
    "timeout": lambda t, _: blind(t, "PrometheusUnreachable"),
    "NaN": lambda t, _: look(t, math.nan, sessions=100),
    "infinite": lambda t, _: look(t, 0.1, decode=spread(math.inf)),
    "negative": lambda t, rng: look(t, -rng.random(), sessions=100),
    "bad KV use": lambda t, _: look(t, 0.1, pressure=WorkerPressure(queue=0.0, kv_use={"decode": math.nan})),
}
"""What a look may come back with when something is wrong; counter resets and the like are ``metrics``'s to see."""


def quiet(seconds: float, operator: Operator) -> Observation:
    return served(seconds, 0.3, operator.workers)


def test_sequences_of_bad_metrics_never_shrink() -> None:
    """A plan of ten workers at the load for two: it would shrink, if it were not for one bad look in between."""
    shrunk = 0
    for seed in range(examples(5000)):
        rng = random.Random(seed)
        operator = Operator(LARGE)
        seconds, bad_at = 0.0, 0.0
        for _ in range(rng.randint(8, 14)):
            seconds += rng.choice((300.0, 300.0, 300.0, 330.0, 900.0))
            # Never half an hour of good looks in a row.
            if seconds - bad_at >= 1500 or rng.random() < 0.3:
                bad_at = seconds
                name = rng.choice(sorted(BAD))
                operator.sees(seconds, BAD[name](seconds, rng))
            else:
                operator.sees(seconds, quiet(seconds, operator))
            shrunk += operator.workers < 10
        assert operator.workers >= 10, seed
    assert shrunk == 0


def test_the_same_service_shrinks_when_all_is_seen() -> None:
    """The test before could not fail if nothing ever shrank."""
    operator = Operator(LARGE)
    for number in range(8):
        operator.sees(number * 300.0, quiet(number * 300.0, operator))
    assert operator.changes == [(1800.0, LEAST)]


@pytest.mark.parametrize("name", sorted(BAD))
def test_no_kind_of_bad_observation_changes_anything(name: str) -> None:
    """At the end of a quiet time, and at the end of a busy one."""
    rng = random.Random(1)
    for rate in (0.3, 9.0):
        operator = Operator(LARGE)
        steps: list[Any] = [look(number * 300.0, rate) for number in range(6)]
        for one in steps[:-1]:
            operator.history = operator.history.with_(sample_of(one, attainment=0.9, min_samples=30, burn_rate=1))
        before = operator.record
        for number in range(5):
            operator.sees(1500.0 + number, BAD[name](1500.0 + number, rng))
        assert operator.record is before
        assert operator.asked == 0
