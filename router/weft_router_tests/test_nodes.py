"""Bodies of many values: counted before they are built, refused by name, and never mistaken for long texts."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from time import process_time
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weft_router.errors import InvalidRequestError, TooLargeError
from weft_router.openai.body import measured, parse
from weft_router.openai.nodes import AT_ONCE, MAX_NODES, NODE_BYTES, SLICE, JsonCounter, bound_in_turns
from weft_router.process import COLLECTING
from weft_router_tests.cpu_time import least_seconds, reference_seconds

texts = st.text(st.sampled_from('a,[{":\\}]\n\u00e9 '), max_size=8)
values = st.recursive(
    st.none() | st.integers(-5, 5) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
SIZE = 24_000_000


def counted(raw: bytes, step: int) -> int:
    counter = JsonCounter()
    for at in range(0, len(raw), step):
        counter.feed(raw[at : at + step])
    return counter.nodes


@given(body=st.dictionaries(texts, values), step=st.integers(1, 40))
@example(body={'\\"': ['\\\\"', "\\", '"[']}, step=1)
def test_what_is_counted_in_a_text_is_what_is_built_of_it(body: dict[str, Any], step: int) -> None:
    raw = orjson.dumps(body)
    assert counted(raw, step) == counted(raw, SLICE) == measured(raw, MAX_NODES)[1]


def test_a_value_counts_once_a_name_too_and_an_array_or_object_as_four() -> None:
    assert measured(b'{"a":[1,2,3],"b":{"c":[]},"d":"[,{"}', 24) == (
        {"a": [1, 2, 3], "b": {"c": []}, "d": "[,{"}, 24,
    )  # fmt: skip
    with pytest.raises(TooLargeError) as caught:
        parse(b'{"a":[1,2,3],"b":{"c":[]}}', 6)
    error = caught.value
    assert (error.status, error.param, error.code) == (413, "limits.maxBodyNodes", "request_too_large")
    assert "6 values" in error.message


def many(item: bytes, size: int) -> bytes:
    count = size // (len(item) + 1)
    return b'{"messages":[],"documents":[' + b",".join([item] * count) + b"]}"


def keys(size: int) -> bytes:
    return b"{" + b",".join(b'"%07x":1' % n for n in range(size // 12)) + b"}"


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "empty objects": lambda size: many(b"{}", size),
    "objects": lambda size: many(b'{"":0}', size),
    "nested lists": lambda size: many(b"[" * 16 + b"]" * 16, size),
    "mixed": lambda size: many(b'{"a":[{}]}', size),
    "texts": lambda size: many(b'"ab"', size),
    "numbers": lambda size: many(b"999", size),
    "keys": keys,
}


@pytest.fixture
def as_routers_collect() -> Iterator[None]:
    """Have the garbage collector look at little, as routers do: see ``process``."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTING)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def largest(kind: str) -> bytes:
    """Return a hostile body that has as many nodes as may be."""
    sample = HOSTILE[kind](100_000)
    return HOSTILE[kind](MAX_NODES * 99 // 100 * len(sample) // counted(sample, SLICE))


@pytest.mark.alone
@pytest.mark.usefixtures("as_routers_collect")
@pytest.mark.parametrize("kind", HOSTILE)
async def test_hostile_bodies_are_refused_before_anything_is_made_of_them(kind: str) -> None:
    raw = HOSTILE[kind](SIZE if kind == "empty objects" else SIZE // 4)
    times = []
    for _ in range(3):
        began = process_time()
        with pytest.raises(TooLargeError):
            await bound_in_turns(raw, MAX_NODES)
        times.append(process_time() - began)
    assert min(times) < 2 * reference_seconds()


@pytest.mark.alone
@pytest.mark.usefixtures("as_routers_collect")
@pytest.mark.parametrize("kind", HOSTILE)
def test_the_most_nodes_that_are_let_in_take_no_more_than_is_counted_for_them(kind: str) -> None:
    raw = largest(kind)
    assert least_seconds(lambda: parse(raw)) < 2 * reference_seconds()
    tracemalloc.start()
    try:
        body, nodes = measured(raw, MAX_NODES)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.95 * MAX_NODES < nodes <= MAX_NODES
    assert taken < nodes * NODE_BYTES
    del body


@pytest.mark.parametrize("char", [",", "[", "{", '"', "\\", "x", "\n"])
def test_a_long_text_is_one_node_whatever_is_in_it(char: str) -> None:
    body = {"messages": [{"role": "user", "content": char * (2 * AT_ONCE)}]}
    assert measured(orjson.dumps(body), 16) == (body, 16)


@pytest.mark.parametrize("depth", [65, 1000, 10_000, 400_000])
def test_what_is_nested_too_deeply_is_refused(depth: int) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        with pytest.raises((InvalidRequestError, TooLargeError)) as caught:
            parse(b'{"a":' + opening * depth + b"1" + closing * depth + b"}")
        assert caught.value.status in (400, 413)
