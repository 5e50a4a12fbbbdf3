"""Every rule compiles with numba and then gives what it gives as plain Python, bit for bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft_core.policies import compilable, early_rejection, hedge, local_only, output_cap
from weft_core.policies.ampd_window import MAX_WINDOW
from weft_core.policies.catalogue import BINDINGS, MODES, ORDERS, POLICIES, parameters
from weft_core.policies.decide import decide
from weft_core.policies.decide_binding import bind
from weft_core.policies.decide_order import ORDER_MAX, next_task
from weft_core.policies.priority import next_by_priority
from weft_core_tests.vectors import fleets, gap_lists, locals_, tasks, unknown_remotes

numba = pytest.importorskip("numba")
pytestmark = pytest.mark.timeout(120)  # every rule is compiled first

Function = Callable[..., Any]


@pytest.fixture(scope="module")
def compiled() -> Callable[[Function], Function]:
    """Compile a function, callees included; the same function once."""
    for function in compilable.FUNCTIONS:
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


@given(
    st.sampled_from(sorted(POLICIES)), st.sampled_from(sorted(MODES)), st.integers(0, 2), tasks, locals_,
    st.one_of(fleets, st.lists(unknown_remotes, max_size=3)), gap_lists, st.data(),
)  # fmt: skip
@SLOW
def test_routing_rules(
    compiled: Callable[[Function], Function], policy: str, mode: str, statistic: int, of: list[float],
    here: list[float], there: list[list[float]], gaps: list[tuple[float, float]], data: st.DataObject,
) -> None:  # fmt: skip
    order = data.draw(st.permutations(range(len(there))))
    params = parameters(policy, mode, {"itl_statistic": statistic} if policy == "weft" else None)
    flat = [figure for worker in there for figure in worker]
    sums, counts = [gap[0] for gap in gaps], [gap[1] for gap in gaps]
    costs, other = [0.0] * (len(there) + 1), np.zeros(len(there) + 1)
    code = POLICIES[policy].code
    plain = decide(code, of, here, flat, len(there), order, params, sums, counts, costs)
    fast = compiled(decide)(
        code, floats(of), floats(here), floats(flat), len(there), ints(order), floats(params), floats(sums),
        floats(counts), other,
    )  # fmt: skip
    assert plain == fast
    assert same(costs, other)


figures = st.lists(
    st.tuples(st.floats(0.01, 3), st.floats(0, 10), st.sampled_from([1.0, 2.0, 5.0]), st.integers(0, 4),
              st.integers(0, 1), st.integers(0, 2)),
    min_size=1, max_size=30,
)  # fmt: skip


@given(st.sampled_from(sorted(ORDERS)), figures, st.integers(1, MAX_WINDOW), st.integers(1, 5), st.booleans())
@SLOW
def test_queue_orders(
    compiled: Callable[[Function], Function], name: str, rows: list[tuple[float, ...]], window: int, cap: int,
    classes: bool,
) -> None:  # fmt: skip
    seconds, enqueued, slo, postponed, lost, priority = (list(column) for column in zip(*rows, strict=True))
    count, counts = [int(p) for p in postponed], ints(postponed)
    order, orders = [0] * ORDER_MAX, np.zeros(ORDER_MAX, dtype=np.int64)
    flags = [int(flag) for flag in lost]
    code = ORDERS[name].code
    if classes:
        plain = next_by_priority(code, 10.0, seconds, enqueued, slo, count, flags, priority, window, cap, order)
        fast = compiled(next_by_priority)(
            code, 10.0, floats(seconds), floats(enqueued), floats(slo), counts, ints(flags), floats(priority), window,
            cap, orders,
        )  # fmt: skip
    else:
        plain = next_task(code, 10.0, seconds, enqueued, slo, count, flags, window, cap, order)
        fast = compiled(next_task)(
            code, 10.0, floats(seconds), floats(enqueued), floats(slo), counts, ints(flags), window, cap, orders
        )
    assert plain == fast
    assert count == counts.tolist()
    assert order == orders.tolist()


@given(
    st.sampled_from(sorted(BINDINGS)), st.lists(st.tuples(*[st.floats(0, 1000)] * 5), max_size=8), st.floats(0, 1000),
    st.integers(0, 8),
)  # fmt: skip
@SLOW
def test_bindings(
    compiled: Callable[[Function], Function], name: str, rows: list[tuple[float, ...]], need: float, cursor: int
) -> None:
    free, capacity, sessions, hits, load = ([row[i] for row in rows] for i in range(5))
    code = BINDINGS[name].code
    fast = compiled(bind)(
        code, need, floats(free), floats(capacity), floats(sessions), floats(hits), floats(load), cursor
    )  # fmt: skip
    assert bind(code, need, free, capacity, sessions, hits, load, cursor) == fast


@given(tasks, locals_, fleets, st.floats(0, 1.2), st.data())
@SLOW
def test_quality_of_service(
    compiled: Callable[[Function], Function], of: list[float], here: list[float], there: list[list[float]],
    kv_use: float, data: st.DataObject,
) -> None:  # fmt: skip
    flat = [figure for worker in there for figure in worker]
    k = len(there)
    choice = data.draw(st.integers(-1, k - 1))
    task, local, remote = floats(of), floats(here), floats(flat)
    plain = [
        early_rejection.reject(of, here, flat, k, early_rejection.PARAMS),
        output_cap.output_cap(of[1], kv_use, of[9], output_cap.PARAMS),
        local_only.keep_local(of, flat, k, local_only.PARAMS),
        hedge.hedge(choice, of, here, flat, k, hedge.PARAMS),
    ]
    fast = [
        compiled(early_rejection.reject)(task, local, remote, k, floats(early_rejection.PARAMS)),
        compiled(output_cap.output_cap)(of[1], kv_use, of[9], floats(output_cap.PARAMS)),
        compiled(local_only.keep_local)(task, remote, k, floats(local_only.PARAMS)),
        compiled(hedge.hedge)(choice, task, local, remote, k, floats(hedge.PARAMS)),
    ]
    assert plain == fast


def test_nothing_is_left_out() -> None:
    names = {function.__name__ for function in compilable.FUNCTIONS}
    assert len(names) == len(compilable.FUNCTIONS)
    for function in compilable.FUNCTIONS:
        called = set(function.__code__.co_names) & {
            name
            for name, value in function.__globals__.items()
            if getattr(value, "__module__", "").startswith("weft_core")
        }
        assert called <= names, function.__name__
