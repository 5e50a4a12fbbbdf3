"""The state in compiled code: what is stored in 32 bits reads and writes as the integer that it is."""

from typing import Any

import numpy as np
import pytest

from weft_planner.simulation import state_type
from weft_planner.simulation.compiled import jitable, numba  # before ir_compiler: it sets the cache folder

from weft_planner.simulation import ir_compiler  # isort: skip
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
        tables.after[1, 0] = less(tables.after[1, 0])
        tables.sessions[1].reserve = 0.5
        tables.totals[0].events = less(1 << 40)
        return row.session

    assert change(state_type.addresses(state)) == -1

    found = {
        (name, field): table[field].tolist() if field else table.tolist()
        for name, table in state._asdict().items()
        for field in table.dtype.names or ("",)
        if np.any(table[field] if field else table)
    }
    assert found == {
        ("rows", "session"): [0, -1, 0],
        ("rows", "history"): [0.0, -1.0, 0.0],
        ("after", ""): [[0, 0], [-1, 0], [0, 0]],
        ("totals", "events"): [(1 << 40) - 1, 0, 0],
        ("sessions", "reserve"): [0.0, 0.5, 0.0],
    }, "fields beside them stay as they were"


def test_stored_integers_have_one_type_in_compiled_code() -> None:
    """Another type would compile many functions a second time, which a first plan waits for."""

    @compiled
    def read(words: Any) -> Any:
        tables = state_type.state_at(words)
        return tables.rows[0].session, tables.totals[0].events, tables.after[0, 0], tables.dirty[0]

    read.compile((numba.types.Array(numba.types.int64, 1, "C"),))

    (overload,) = read.overloads.values()
    assert set(overload.signature.return_type) == {numba.types.int64}


def test_only_what_python_calls_has_machine_code() -> None:
    @compiled
    def call(value: int) -> int:
        return less(less(value))

    assert call(5) == 3

    (overload,) = call.overloads.values()
    (inner,) = {library for library in overload.library._linking_libraries if "less" in library.name}
    assert isinstance(inner, ir_compiler.IrLibrary)
