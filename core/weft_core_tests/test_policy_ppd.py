"""PPD's offline table: classes, scores and weights."""

import pytest
from hypothesis import given

from weft_core.policies.inputs import LocalFigures, RemoteFigures, TaskFigures
from weft_core.policies.registry import parameters
from weft_core.policies.routing.ppd import CLASSES, PARAMETERS, POLICY, TPOT_RISE, TTFT_FALL, band, cell
from weft_core_tests.vectors import NOT_KNOWN, ask, fleets, local, locals_, remote, task, tasks

PARAMS = POLICY.params
BUSY = task(history=2000, increment=3000, answer=100, rate=6)


def test_a_cell_worked_by_hand() -> None:
    at = (1 * CLASSES + 2) * CLASSES + 1
    assert cell(BUSY, PARAMS) == at
    assert (PARAMS[TTFT_FALL + at], PARAMS[TPOT_RISE + at]) == (0.652, 0.09)
    assert PARAMETERS[TTFT_FALL + at].name == "ttft_fall.middle.prefill-heavy.medium"
    assert PARAMETERS[TPOT_RISE + at].name == "tpot_rise.middle.prefill-heavy.medium"


@pytest.mark.parametrize(
    ("increment", "answer", "shape"),
    [(40, 100, 0), (49.9, 100, 0), (50, 100, 1), (199, 100, 1), (200, 100, 2), (1, 0, 1)],
)
def test_the_shape_is_new_tokens_per_answer_token(increment: float, answer: float, shape: int) -> None:
    assert cell(task(history=10, increment=increment, answer=answer), PARAMS) == shape * CLASSES


def test_the_builtin_table_has_a_named_cell_for_every_class() -> None:
    """Table 1 of PPD: TTFT falls with the rate alone, TPOT rises where many tokens come in."""
    cells = {p.name: p.default for p in PARAMETERS[TTFT_FALL:]}
    assert len(cells) == 2 * CLASSES**3
    for context in ("short", "middle", "long"):
        for shape in ("decode-heavy", "balanced", "prefill-heavy"):
            for at, rate in enumerate(("low", "medium", "high")):
                name = f"{context}.{shape}.{rate}"
                assert cells[f"ttft_fall.{name}"] == (0.578, 0.652, 0.733)[at]
                assert cells[f"tpot_rise.{name}"] == ((0.07, 0.09, 0.12)[at] if shape == "prefill-heavy" else 0.02)


def test_weights_decide_worked_by_hand() -> None:
    assert ask("ppd", BUSY, local(), [remote()], PARAMS).short == (-1, "table")  # 0.652 - 0.09 > 0
    heavy = parameters("ppd", overrides={"w_tpot": 8})
    assert ask("ppd", BUSY, local(), [remote(own=2), remote(own=1)], heavy).short == (1, "table")  # 0.652 - 0.72 < 0


def test_turn_1_is_always_remote() -> None:
    assert ask("ppd", task(later=False), local(), [remote()], PARAMS).short == (0, "first-round")


def test_a_cell_of_the_table_can_be_set() -> None:
    name = "ttft_fall.middle.prefill-heavy.medium"
    worse = parameters("ppd", overrides={name: -0.2})
    assert ask("ppd", BUSY, local(), [remote()], worse).choice == 0


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (1.99, 0), (2, 1), (4.99, 1), (5, 2), (99, 2)])
def test_bands_hold_their_lower_border(value: float, expected: int) -> None:
    assert band(value, 2, 5) == expected


def test_what_is_not_known_counts_as_balanced_and_low() -> None:
    assert cell(task(history=10, answer=NOT_KNOWN, rate=NOT_KNOWN), PARAMS) == (0 * CLASSES + 1) * CLASSES + 0


@given(tasks, locals_, fleets)
def test_the_decision_is_the_tables(of: TaskFigures, here: LocalFigures, there: list[RemoteFigures]) -> None:
    found = ask("ppd", of, here, there, PARAMS)
    at = cell(of, PARAMS)
    assert 0 <= at < CLASSES**3
    score = PARAMS[TTFT_FALL + at] - PARAMS[TPOT_RISE + at]
    if not there:
        assert found.short == (-1, "no-prefill-worker")
    elif of.round == 0:
        assert found.reason == "first-round"
        assert found.choice >= 0
    else:
        assert (found.choice == -1) == (score > 0)
