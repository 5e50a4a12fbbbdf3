"""PPD's offline table: classes, scores and weights."""

import pytest
from hypothesis import given

from weft_core.policies.inputs import LocalFigures, RemoteFigures, TaskFigures
from weft_core.policies.ppd_cells import CLASSES, CONTEXTS, RATES, SHAPES, cell_names
from weft_core.policies.ppd_table import CELLS
from weft_core.policies.registry import parameters
from weft_core.policies.routing.ppd import PARAMETERS, POLICY, TPOT_RISE, TTFT_FALL, band, cell
from weft_core_tests.vectors import NOT_KNOWN, ask, fleets, local, locals_, remote, task, tasks

PARAMS = POLICY.params
BUSY = task(history=3000, increment=3000, answer=100, rate=6)


def test_a_cell_worked_by_hand() -> None:
    at = (1 * CLASSES + 2) * CLASSES + 1
    assert cell(BUSY, PARAMS) == at
    assert PARAMETERS[TTFT_FALL + at].name == "ttft_fall.middle.prefill-heavy.medium"
    assert PARAMETERS[TPOT_RISE + at].name == "tpot_rise.middle.prefill-heavy.medium"


@pytest.mark.parametrize(
    ("increment", "answer", "shape"),
    [(40, 100, 0), (49.9, 100, 0), (50, 100, 1), (199, 100, 1), (200, 100, 2), (1, 0, 1)],
)
def test_the_shape_is_new_tokens_per_answer_token(increment: float, answer: float, shape: int) -> None:
    assert cell(task(history=10, increment=increment, answer=answer), PARAMS) == shape * CLASSES


def test_the_builtin_table_has_a_named_cell_for_every_class() -> None:
    names = [p.name for p in PARAMETERS[TTFT_FALL:]]
    assert [name for name, _, _ in CELLS] == list(cell_names())
    assert names == [*(f"ttft_fall.{name}" for name in cell_names()), *(f"tpot_rise.{name}" for name in cell_names())]


def test_the_builtin_table_has_the_papers_trends() -> None:
    """Sections 4.1 and 4.3 of PPD: local prefills cost TPOT where many tokens come in, the more so the busier it is."""
    rises = {name: rise for name, _, rise in CELLS}
    for context in CONTEXTS:
        for rate in RATES[1:]:
            ordered = [rises[f"{context}.{shape}.{rate}"] for shape in SHAPES]
            assert ordered == sorted(ordered)
        assert rises[f"{context}.prefill-heavy.low"] < 0.03, "little is to be disturbed"
        assert rises[f"{context}.prefill-heavy.medium"] < rises[f"{context}.prefill-heavy.high"]
    assert {name for name, fall, _ in CELLS if not 0.2 < fall < 1} == set()


def test_weights_decide_worked_by_hand() -> None:
    mine = {"ttft_fall.middle.prefill-heavy.medium": 0.652, "tpot_rise.middle.prefill-heavy.medium": 0.09}
    assert ask("ppd", BUSY, local(), [remote()], parameters("ppd", overrides=mine)).short == (-1, "table")
    heavy = parameters("ppd", overrides={**mine, "w_tpot": 8})  # 0.652 - 0.72 < 0
    assert ask("ppd", BUSY, local(), [remote(own=2), remote(own=1)], heavy).short == (1, "table")


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
