"""The state in compiled code: what is stored in 32 bits reads and writes as the integer that it is."""

from typing import Any

import numpy as np
import pytest

from weft_planner.simulation import state_type
from weft_planner.simulation.compiled import jitable, numba
from weft_planner.simulation.records import TABLES, SimulationState


@pytest.fixture
def state() -> SimulationState:
    """Give a state whose tables have three elements, or three by two, of zeros."""
    return SimulationState(**{n: np.zeros((3, 2)[:dimensions], kind) for n, (kind, dimensions) in TABLES.items()})


def compiled(function: Any) -> Any:
    return numba.njit(error_model="numpy")(function)


@jitable
def less(value: int) -> int:
    return value - 1


def test_integers_of_32_bits_are_read_and_written_as_any_other(state: SimulationState) -> None:
    @compiled
    def change(words: Any) -> Any:
        tables = state_type.state_at(words)
        row = tables.rows[1]
        row.session = less(row.session)
        row.history = row.session
        tables.after[2, 1] = less(tables.after[2, 1])
        tables.totals[0].events = less(1 << 40)
        return row.session

    assert change(state_type.addresses(state)) == -1

    assert state.rows["session"].tolist() == [0, -1, 0]
    assert state.rows["history"].tolist() == [0.0, -1.0, 0.0]
    assert state.after.tolist() == [[0, 0], [0, 0], [0, -1]]
    assert state.totals["events"].tolist() == [(1 << 40) - 1, 0, 0]
    others = [table for name, table in state._asdict().items() if name not in {"rows", "after", "totals"}]
    assert not any(np.frombuffer(table.tobytes(), np.uint8).any() for table in others)


def test_a_function_is_compiled_once_for_integers_of_any_width() -> None:
    """A stored width that reached the functions' arguments doubled the time until the first plan."""

    @compiled
    def read(words: Any) -> Any:
        tables = state_type.state_at(words)
        return tables.rows[0].session, tables.totals[0].events, tables.after[0, 0], tables.dirty[0]

    read.compile((numba.types.Array(numba.types.int64, 1, "C"),))

    (overload,) = read.overloads.values()
    assert set(overload.signature.return_type) == {numba.types.int64}
