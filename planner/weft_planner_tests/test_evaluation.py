"""Rising load sorts candidates; goodput lies between two rates; equal ones are told apart in one fixed way."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.plan import LayoutKind, PlannedGroup, Prediction
from weft_core.prediction import Estimate
from weft_planner.evaluation import ranking
from weft_planner.evaluation.candidates import Candidate
from weft_planner.evaluation.goodput_search import (
    DESCENT,
    DESCENTS,
    STEP,
    TOP_RUNG,
    GoodputBracket,
    finalists,
    goodputs,
)
from weft_planner.evaluation.load_bound import LoadBound
from weft_planner.evaluation.ranking import Evaluation
from weft_planner.evaluation.shortlist import SearchSpace
from weft_planner.evaluation.trials import Trial, Trials
from weft_planner.programs.inputs import prepare_inputs
from weft_planner.simulation.layout import PolicyChoice
from weft_planner_tests.requests import request

POLICY = PolicyChoice(mode="ia")


def candidate(name: int) -> Candidate:
    groups = PlannedGroup("prefill", 1, name, "h20"), PlannedGroup("decode", 1, 1, "h20")
    return Candidate("disaggregated", groups, POLICY)


class FakeTrials:
    """Attainment falls from 1 at half the capacity to 0 at twice of it; a candidate's is its number of workers."""

    def __init__(self, capacity_of: Callable[[Candidate], float]) -> None:
        self.capacity_of = capacity_of
        self.rates: list[float] = []
        self.runs: list[tuple[str, float, float]] = []

    def known_to_miss(self, candidate: Candidate, rate: float, share: float) -> bool:
        return any(key == candidate.key and at <= rate and found < share for key, at, found in self.runs)

    def attained(
        self, candidates: Sequence[Candidate], rate: float, *, full: bool = False, sieve: bool = False
    ) -> list[list[float]]:
        del sieve
        self.rates.append(rate)
        rows = []
        for c in candidates:
            share = max(0.0, min(1.0, 1 - (rate / self.capacity_of(c) - 0.5) / 1.5))
            rows.append([share, share, share] if full else [share])
            self.runs.append((c.key, rate, share))
        return rows


def capacity(c: Candidate) -> float:
    return float(c.groups[0].replicas)


def fake(capacity_of: Callable[[Candidate], float] = capacity) -> tuple[Trials, FakeTrials]:
    made = FakeTrials(capacity_of)
    return cast(Trials, made), made


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20, unique=True), st.integers(1, 5), st.integers(-8, 8))
def test_those_that_carry_most_are_left(sizes: list[int], count: int, start: int) -> None:
    trials, _ = fake()
    found = finalists(trials, [candidate(n) for n in sizes], rate=20.0, goal=0.5, start=STEP**start, count=count)
    assert len(found) == min(count, len(sizes))
    least = min(capacity(s.candidate) for s in found)
    left_out = set(sizes) - {s.candidate.groups[0].replicas for s in found}
    # Whoever is left out carries less, but for a step of the ladder, or has more room than is asked about.
    tried_down_to = 20 * STEP ** (start - DESCENT * DESCENTS)
    assert all(
        n <= least * STEP**DESCENT * 1.01 or n >= 20 * STEP ** (TOP_RUNG - 1) or n < tried_down_to for n in left_out
    )


@given(st.integers(1, 500), st.integers(-9, 9))
def test_goodput_is_found_wherever_the_search_begins(size: int, start: int) -> None:
    trials, made = fake()
    values = goodputs(trials, candidate(size), GoodputBracket(STEP**start, float("inf")), rate=20.0, goal=0.5)
    true = 1.25 * size  # where the share has fallen to one half
    top = 20 * STEP**TOP_RUNG
    lowest = 20 * STEP**-26
    if true >= top:
        assert values == [pytest.approx(top)] * 3
    elif true > lowest * 4:
        assert values == [pytest.approx(true, rel=0.01)] * 3
    assert max(made.rates) <= top * STEP * 1.001
    assert len(made.rates) < 20


def test_what_never_holds_has_no_goodput() -> None:
    trials, made = fake(lambda _: 1e-9)
    assert goodputs(trials, candidate(1), GoodputBracket(0.0, 1.0), rate=1.0, goal=0.9) == [0.0] * 3
    assert len(made.rates) < 8


def evaluated(degree: int, k: int, *, goodput: float, ttft: float, itl: float, runnable: bool = True) -> Evaluation:
    groups = PlannedGroup("prefill", degree, k, "h20"), PlannedGroup("decode", 8, 1, "h20")
    predicted = Prediction(
        ttft, itl, ttft, itl, gpus=degree * k + 8, slo_met=True, goodput=Estimate(goodput, goodput, goodput)
    )
    return Evaluation(Candidate("disaggregated", groups, POLICY, runnable=runnable), predicted, degree * k + 8.0, True)


class FakeSpace:
    def __init__(self, **changes: object) -> None:
        self.inputs = prepare_inputs(request(**changes))
        self.limits = self.inputs.limits


SPACE = cast(SearchSpace, FakeSpace())


def ranked(*given: Evaluation, **changes: object) -> list[str]:
    space = cast(SearchSpace, FakeSpace(**changes))
    return [str(one.candidate) for one in ranking._ranked(space, given)]


def test_noise_does_not_decide_between_equals() -> None:
    """P8x1 and P4x2 carry the same but for noise; the lower TTFT decides, and the order given does not."""
    for noise in (-0.004, 0.004):
        fast = evaluated(8, 1, goodput=3.0 + noise, ttft=0.9, itl=0.0201)
        slow = evaluated(4, 2, goodput=3.0, ttft=1.2, itl=0.0200)
        assert ranked(fast, slow) == ranked(slow, fast) == ["P8x1 D8x1", "P4x2 D8x1"]


def test_more_goodput_wins_and_what_misses_the_slo_comes_last() -> None:
    most = evaluated(4, 2, goodput=3.2, ttft=1.2, itl=0.03)
    less = evaluated(8, 1, goodput=3.0, ttft=0.9, itl=0.02)
    misses = replace(evaluated(2, 4, goodput=9.0, ttft=0.1, itl=0.01), holds=False)
    assert ranked(less, misses, most) == ["P4x2 D8x1", "P8x1 D8x1", "P2x4 D8x1"]
    assert ranked(most, evaluated(2, 1, goodput=2.0, ttft=2.0, itl=0.03), objective="cost")[0] == "P2x1 D8x1"


@pytest.mark.parametrize(
    ("gain", "engine", "changes"),
    [(1.03, "mock", True), (1.01, "mock", False), (1.03, "sglang", False), (1.06, "sglang", True)],
)
def test_other_roles_of_the_same_workers_need_less_gain_where_roles_change(
    gain: float, engine: str, changes: bool
) -> None:
    runs = evaluated(8, 2, goodput=3.0, ttft=0.9, itl=0.02)
    groups = PlannedGroup("prefill", 8, 1, "h20"), PlannedGroup("decode", 8, 2, "h20")
    other = replace(
        runs,
        candidate=replace(runs.candidate, groups=groups),
        predicted=replace(runs.predicted, goodput=Estimate(3.0 * gain, 3.0 * gain, 3.0 * gain)),
    )
    current = [{"role": g.role, "degree": g.degree, "replicas": g.replicas, "pool": g.pool} for g in runs.groups]
    best = ranked(runs, other, current=current, minImprovement=0.05, **{"engine.type": engine})[0]
    assert best == ("P8x1 D8x2" if changes else "P8x2 D8x1")


@given(st.lists(st.integers(1, 40), min_size=1, max_size=15, unique=True), st.integers(1, 4))
def test_the_cheapest_that_hold_the_slo_are_found(sizes: list[int], count: int) -> None:
    trials, _ = fake()
    found = ranking._cheapest(SPACE, trials, [candidate(n) for n in sizes], rate=8.0, wanted=1.5, goal=0.9, count=count)
    holding = sorted(n for n in sizes if 1 - (12 / n - 0.5) / 1.5 >= 0.9)
    assert [standing.candidate.groups[0].replicas for standing in found] == holding[:count]


def test_layouts_that_missed_the_slo_at_a_lower_rate_are_not_run_again() -> None:
    trials, made = fake()
    small, large = candidate(2), candidate(40)
    trials.attained([small, large], 4.0)
    found = ranking._cheapest(SPACE, trials, [small, large], rate=8.0, wanted=1.5, goal=0.9, count=2)
    assert [one.candidate for one in found] == [large]
    assert [rate for key, rate, _ in made.runs if key == small.key] == [4.0]


def test_modes_that_carry_less_than_the_best_layout_are_no_advice() -> None:
    trials, _ = fake()
    small, large = candidate(2), candidate(40)
    assert ranking._as_good(trials, [small, large], rate=12.0, goal=0.9) == [large]
    assert ranking._as_good(trials, [small, large], rate=0.0, goal=0.9) == [small, large]  # no layout holds the SLO


def test_of_layouts_that_are_only_advised_the_largest_are_tried() -> None:
    tried: list[tuple[LayoutKind, int, int]] = [
        ("colocated", 4, 1),
        ("colocated", 4, 2),
        ("symmetric", 4, 1),
        ("colocated", 8, 1),
    ]
    alone = [
        Candidate(
            kind, (PlannedGroup("both" if kind == "symmetric" else "decode", degree, count, "h20"),), POLICY,
            runnable=False,
        )
        for kind, degree, count in tried
    ]  # fmt: skip
    assert [str(one) for one in ranking._largest(alone)] == ["C4x2", "C8x1", "B4x1"]


def test_a_bound_on_the_load_is_one() -> None:
    """Ideal sharing: with many prefill workers only decoding counts; local prefills help where they are few."""
    load_bound = LoadBound(prepare_inputs(request()))
    decode = PlannedGroup("decode", 8, 1, "h20")
    by_count = [load_bound.most((PlannedGroup("prefill", 4, k, "h20"), decode)) for k in (1, 2, 4, 64)]
    assert by_count == sorted(by_count)
    alone = load_bound.most((decode,))
    assert 0 < alone < by_count[0]
    assert load_bound.most((PlannedGroup("decode", 8, 2, "h20"),)) == pytest.approx(2 * alone)
    assert by_count[-1] == pytest.approx(load_bound.most((PlannedGroup("prefill", 4, 640, "h20"), decode)))


def test_workers_whose_steps_are_too_slow_are_not_run_and_would_meet_no_slo() -> None:
    groups = PlannedGroup("prefill", 4, 1, "h20"), PlannedGroup("decode", 8, 1, "h20")
    least = LoadBound(prepare_inputs(request())).least_itl(groups)
    one = Candidate("disaggregated", groups, POLICY)
    slow = Trials(prepare_inputs(request(**{"slo.itl": least * 0.999})))
    assert slow.hopeless(one, 0.01)
    assert slow._evaluated([Trial(one, 0.01, seed=0, rounds=200)]) == [0.0]
    assert slow.attained([one], 0.01, full=True) == [[0.0] * 3]
    assert slow.runs == 1
    assert not Trials(prepare_inputs(request(**{"slo.itl": least * 1.001}))).hopeless(one, 0.01)
