"""Every policy compiles with numba and then gives what it gives as plain Python, bit for bit."""

from collections.abc import Callable
from dataclasses import astuple, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft_core.policies.inputs import (
    MAX_WINDOW,
    BindingInputs,
    LocalFigures,
    QueueInputs,
    RemoteFigures,
    RoutingInputs,
    TaskFigures,
)
from weft_core.policies.registry import BINDINGS, MODES, ORDERS, POLICIES, compilable_functions, parameters
from weft_core.policies.routing.colocated import delays_prefill
from weft_core_tests.vectors import fleets, gap_lists, inputs, locals_, tasks, unknown_remotes

numba = pytest.importorskip("numba")

Function = Callable[..., Any]


@pytest.fixture(scope="module")
def compiled() -> Callable[[Function], Function]:
    """Compile a function, callees included; the same function once."""
    for function in compilable_functions():
        numba.extending.register_jitable(function)
    made: dict[Function, Function] = {}

    def make(function: Function) -> Function:
        if function not in made:
            made[function] = numba.njit(function)
        return made[function]

    return make


def floats(values: object) -> Any:
    return np.array(values, dtype=np.float64)


def ints(values: object) -> Any:
    return np.array(values, dtype=np.int64)


def same(a: object, b: object) -> bool:
    return np.array_equal(floats(a), floats(b), equal_nan=True)


SLOW = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def records(figures: list[Any], kind: type[Any]) -> Any:
    """Return figures as the record array that the simulator has of them."""
    record = np.dtype([(field.name, np.float64) for field in fields(kind)])
    return np.array([astuple(one) for one in figures], dtype=record)


@given(
    st.sampled_from(sorted(POLICIES)), st.sampled_from(sorted(MODES)), st.integers(0, 2), tasks, locals_,
    st.one_of(fleets, st.lists(unknown_remotes, max_size=3)), gap_lists, st.data(),
)  # fmt: skip
@SLOW
def test_routing_policies(
    compiled: Callable[[Function], Function], policy: str, mode: str, statistic: int, of: TaskFigures,
    here: LocalFigures, there: list[RemoteFigures], gaps: list[tuple[float, float]], data: st.DataObject,
) -> None:  # fmt: skip
    order = data.draw(st.permutations(range(len(there))))
    params = parameters(policy, mode, {"itl_statistic": statistic} if policy == "weft" else None)
    plain = inputs(of, here, there, params, order=order, gaps=gaps)
    fast = RoutingInputs(
        records([of], TaskFigures)[0], records([here], LocalFigures)[0], records(there, RemoteFigures), ints(order),
        floats(params), floats(plain.gap_sums), floats(plain.gap_counts), floats(plain.costs),
    )  # fmt: skip
    route = POLICIES[policy].route
    assert route(plain) == compiled(route)(fast)
    assert same(plain.costs, fast.costs)


@given(
    st.floats(0, 3), st.floats(1, 9), st.floats(0, 1), st.integers(0, 2),
    st.lists(st.tuples(st.floats(0, 9), st.integers(0, 99).map(float), st.floats(1, 99)), max_size=5),
)  # fmt: skip
@SLOW
def test_delay_of_prefills(
    compiled: Callable[[Function], Function], seconds: float, chunks: float, urgency: float, statistic: int,
    sessions: list[tuple[float, float, float]],
) -> None:  # fmt: skip
    params = parameters("colocated", overrides={"itl_statistic": statistic})
    columns = [[one[i] for one in sessions] for i in range(3)]
    known = (urgency, seconds, chunks, 0.02, 0.03)
    fast = compiled(delays_prefill)(*known, floats(params), *map(floats, columns))
    assert delays_prefill(*known, params, *columns) == fast


rows = st.lists(
    st.tuples(st.floats(0.01, 3), st.floats(0, 10), st.sampled_from([1.0, 2.0, 5.0]), st.integers(0, 4),
              st.integers(0, 1)),
    min_size=1, max_size=30,
)  # fmt: skip


@given(st.sampled_from(sorted(ORDERS)), rows, st.integers(1, MAX_WINDOW), st.integers(1, 5))
@SLOW
def test_queue_orders(
    compiled: Callable[[Function], Function], name: str, tasks: list[tuple[float, ...]], window: int, cap: int
) -> None:
    seconds, enqueued, slo, postponed, lost = (list(column) for column in zip(*tasks, strict=True))
    counts, flags = [int(p) for p in postponed], [int(flag) for flag in lost]
    plain = QueueInputs(10.0, seconds, enqueued, slo, counts, flags, window, cap, [0] * MAX_WINDOW)
    fast = QueueInputs(
        10.0, floats(seconds), floats(enqueued), floats(slo), ints(postponed), ints(lost), window, cap,
        ints([0] * MAX_WINDOW),
    )  # fmt: skip
    next_task = ORDERS[name].next_task
    assert next_task(plain) == compiled(next_task)(fast)
    assert same(plain.postponed, fast.postponed)
    assert same(plain.head, fast.head)


@given(
    st.sampled_from(sorted(BINDINGS)), st.lists(st.tuples(*[st.floats(0, 1000)] * 5), max_size=8), st.floats(0, 1000),
    st.integers(0, 8),
)  # fmt: skip
@SLOW
def test_bindings(
    compiled: Callable[[Function], Function], name: str, workers: list[tuple[float, ...]], needed_kv: float, cursor: int
) -> None:
    free, capacity, sessions, hits, load = ([row[i] for row in workers] for i in range(5))
    bind = BINDINGS[name].bind
    here = [hit / 2 for hit in hits]
    plain = BindingInputs(needed_kv, free, capacity, sessions, hits, load, cursor, here)
    fast = BindingInputs(
        needed_kv, floats(free), floats(capacity), floats(sessions), floats(hits), floats(load), cursor, floats(here)
    )
    assert bind(plain) == compiled(bind)(fast)
