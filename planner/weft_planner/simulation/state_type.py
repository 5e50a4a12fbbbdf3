"""Teach numba one type: a state of tables behind a single pointer, with the syntax of numpy's record arrays.

Numba hands arrays to functions as seven figures each and counts their references; with two dozen arrays in some eighty
functions that is most of the work of compiling, and none of it is needed: the arrays live as long as the run. Here
``state.rows[row]`` loads a base address and adds an offset. The addresses stand in one array of integers, two for each
table: where it begins, and how many columns it has (0: it has one dimension). Bounds are not checked.

A stored integer is read as one of 64 bits, whatever its own width is (but for ``vector``): numba compiles a function
once for every combination of argument types.
"""

import importlib
import operator
from typing import Any

import numpy as np

from weft_planner.simulation.records import TABLES, Numbers, SimulationState

numba = importlib.import_module("numba")
_types = importlib.import_module("numba.core.types")
_templates = importlib.import_module("numba.core.typing.templates")
_extending = importlib.import_module("numba.extending")
_arrays = importlib.import_module("numba.np.arrayobj")
_ir = importlib.import_module("llvmlite.ir")

_WORD = _ir.IntType(64)
_ALIGNED = 4
"""Bytes: records are not padded, so after an odd number of 32-bit fields the next record begins at a multiple of 4."""
_STORED = {"<i4": _ir.IntType(32), "<i8": _WORD, "<f8": _ir.DoubleType()}


class _StateType(_types.Opaque):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__("weft_state")


class _RecordType(_types.Opaque):  # type: ignore[misc, name-defined]
    """A record of a table, by its address."""

    def __init__(self, dtype: np.dtype[np.void]) -> None:
        self.dtype = dtype
        super().__init__(f"weft_record({dtype})")


class _TableType(_types.Opaque):  # type: ignore[misc, name-defined]
    """One table: its place in the state, and what an element is, stored and read."""

    def __init__(self, place: int, dtype: np.dtype[Any]) -> None:
        self.place = place
        self.dtype = dtype
        self.element = _RecordType(dtype) if dtype.fields else _wide(dtype)
        super().__init__(f"weft_table({place}, {dtype})")


def _wide(dtype: np.dtype[Any]) -> Any:
    """Return the type of a stored number in compiled code; a KeyError names a type that no table may have."""
    return {"i": _types.int64, "f": _types.float64}[dtype.kind]


_extending.register_model(_StateType)(_extending.models.OpaqueModel)
_extending.register_model(_RecordType)(_extending.models.OpaqueModel)
_extending.register_model(_TableType)(_extending.models.OpaqueModel)

_STATE = _StateType()
_TABLES = {name: _TableType(place, np.dtype(TABLES[name][0])) for place, name in enumerate(SimulationState._fields)}


def addresses(state: SimulationState) -> Numbers:
    """Return the addresses of a state's tables, for ``state_at``; the state must outlive their use."""
    words = [(table.ctypes.data, table.shape[1] if table.ndim == 2 else 0) for table in state]
    return np.array(words, np.int64).ravel()


def vector(table: Numbers, row: int, length: int) -> Numbers:
    """Return the first figures of a table's row as an array; a table of one dimension is row 0."""
    return (table[row] if table.ndim == 2 else table)[:length]


@_extending.intrinsic  # type: ignore[untyped-decorator]
def state_at(typing: Any, words: Any) -> Any:  # noqa: ARG001 - numba's protocol
    """Return the state whose addresses stand in an array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = _arrays.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.bitcast(array.data, context.get_value_type(_STATE))

    return _STATE(words), generate


@_extending.intrinsic  # type: ignore[untyped-decorator]
def state_from(typing: Any, address: Any) -> Any:  # noqa: ARG001 - numba's protocol
    """Return the state whose words stand at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.inttoptr(arguments[0], context.get_value_type(_STATE))

    return _STATE(_types.int64), generate


@_extending.intrinsic  # type: ignore[untyped-decorator]
def call_policy(typing: Any, rule: Any, state: Any) -> Any:  # noqa: ARG001 - numba's protocol
    """Call a rule by the address of its machine code; it takes the state's address and returns a number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        kind = _ir.FunctionType(_WORD, [_WORD]).as_pointer()
        return builder.call(builder.inttoptr(arguments[0], kind), [builder.ptrtoint(arguments[1], _WORD)])

    return _types.int64(_types.int64, _STATE), generate


@_templates.infer_getattr
class _StateAttributes(_templates.AttributeTemplate):  # type: ignore[misc, name-defined]
    key = _StateType

    def generic_resolve(self, state: Any, name: str) -> Any:  # noqa: ARG002
        return _TABLES.get(name)


@_extending.lower_getattr_generic(_StateType)  # type: ignore[untyped-decorator]
def _state_attribute(context: Any, builder: Any, kind: Any, value: Any, name: str) -> Any:  # noqa: ARG001
    return value


def _index_of(index: Any) -> Any:
    if isinstance(index, _types.Integer):
        return _types.intp
    if isinstance(index, _types.BaseTuple) and len(index) == 2 and all(isinstance(i, _types.Integer) for i in index):
        return _types.UniTuple(_types.intp, 2)
    return None


@_templates.infer_global(operator.getitem)
class _TableItem(_templates.AbstractTemplate):  # type: ignore[misc, name-defined]
    def generic(self, arguments: Any, keywords: Any) -> Any:  # noqa: ARG002
        table, index = arguments
        if isinstance(table, _TableType) and _index_of(index) is not None:
            return _templates.signature(table.element, table, _index_of(index))
        return None


@_templates.infer_global(operator.setitem)
class _TableSetItem(_templates.AbstractTemplate):  # type: ignore[misc, name-defined]
    def generic(self, arguments: Any, keywords: Any) -> Any:  # noqa: ARG002
        table, index, _ = arguments
        if isinstance(table, _TableType) and _index_of(index) is not None:
            return _templates.signature(_types.none, table, _index_of(index), table.element)
        return None


def _word(builder: Any, state: Any, at: int) -> Any:
    """Load a word of the state: it never changes during a run, which lets the compiler load it once."""
    words = builder.bitcast(state, _WORD.as_pointer())
    loaded = builder.load(builder.gep(words, [_WORD(at)]))
    loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
    return loaded


def _address(builder: Any, table: Any, state: Any, places: list[Any]) -> Any:
    """Return the address of an element: base + size x (row x columns + column)."""
    offset = places[0]
    if len(places) == 2:
        offset = builder.add(builder.mul(offset, _word(builder, state, 2 * table.place + 1)), places[1])
    return builder.add(_word(builder, state, 2 * table.place), builder.mul(offset, _WORD(table.dtype.itemsize)))


def _load(builder: Any, address: Any, dtype: np.dtype[Any]) -> Any:
    """Load a stored number, an integer as one of 64 bits."""
    loaded = builder.load(builder.inttoptr(address, _STORED[dtype.str].as_pointer()), align=_ALIGNED)
    return loaded if dtype.itemsize == 8 else builder.sext(loaded, _WORD)


def _store(builder: Any, address: Any, dtype: np.dtype[Any], value: Any) -> None:
    """Store a number as its table or record has it."""
    stored = value if dtype.itemsize == 8 else builder.trunc(value, _STORED[dtype.str])
    builder.store(stored, builder.inttoptr(address, _STORED[dtype.str].as_pointer()), align=_ALIGNED)


@_templates.infer_getattr
class _RecordAttributes(_templates.AttributeTemplate):  # type: ignore[misc, name-defined]
    key = _RecordType

    def generic_resolve(self, record: Any, name: str) -> Any:
        return _wide(record.dtype[name]) if name in record.dtype.names else None


def _field(builder: Any, record: Any, value: Any, name: str) -> tuple[Any, np.dtype[Any]]:
    """Return the address of a record's field, and how it is stored."""
    dtype, offset = record.dtype.fields[name][:2]
    return builder.add(builder.ptrtoint(value, _WORD), _WORD(offset)), dtype


@_extending.lower_getattr_generic(_RecordType)  # type: ignore[untyped-decorator]
def _record_attribute(context: Any, builder: Any, kind: Any, value: Any, name: str) -> Any:  # noqa: ARG001
    return _load(builder, *_field(builder, kind, value, name))


@_extending.lower_setattr_generic(_RecordType)  # type: ignore[untyped-decorator]
def _set_record_attribute(context: Any, builder: Any, signature: Any, arguments: Any, name: str) -> Any:  # noqa: ARG001
    record, value = arguments
    _store(builder, *_field(builder, signature.args[0], record, name), value)


def _places(builder: Any, index: Any, value: Any) -> list[Any]:
    return (
        [builder.extract_value(value, 0), builder.extract_value(value, 1)]
        if isinstance(index, _types.UniTuple)
        else [value]
    )


@_extending.lower_builtin(operator.getitem, _TableType, _types.Integer)  # type: ignore[untyped-decorator]
@_extending.lower_builtin(operator.getitem, _TableType, _types.UniTuple)  # type: ignore[untyped-decorator]
def _get(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    table, index = signature.args
    address = _address(builder, table, arguments[0], _places(builder, index, arguments[1]))
    if table.dtype.fields:
        return builder.inttoptr(address, context.get_value_type(table.element))
    return _load(builder, address, table.dtype)


@_extending.lower_builtin(operator.setitem, _TableType, _types.Integer, _types.Number)  # type: ignore[untyped-decorator]
@_extending.lower_builtin(operator.setitem, _TableType, _types.UniTuple, _types.Number)  # type: ignore[untyped-decorator]
def _set(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    table, index, _ = signature.args
    address = _address(builder, table, arguments[0], _places(builder, index, arguments[1]))
    _store(builder, address, table.dtype, arguments[2])
    return context.get_dummy_value()


@_extending.intrinsic  # type: ignore[untyped-decorator]
def _vector(typing: Any, table: Any, row: Any, length: Any) -> Any:  # noqa: ARG001 - numba's protocol
    array_type = _types.Array(numba.from_dtype(table.dtype), 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        state, place, count = arguments
        address = _address(builder, table, state, [place, _WORD(0)])
        array = _arrays.make_array(array_type)(context, builder)
        size = _WORD(table.dtype.itemsize)
        _arrays.populate_array(
            array,
            data=builder.inttoptr(address, array.data.type),
            shape=[count],
            strides=[size],
            itemsize=size,
            meminfo=None,
        )
        return array._getvalue()

    return array_type(table, _types.intp, _types.intp), generate


@_extending.overload(vector)  # type: ignore[untyped-decorator]
def _vector_in_compiled_code(table: Any, row: Any, length: Any) -> Any:  # noqa: ARG001 - numba reads their types
    if not isinstance(table, _TableType):
        return None

    def build(table: Any, row: Any, length: Any) -> Any:
        return _vector(table, row, length)

    return build
