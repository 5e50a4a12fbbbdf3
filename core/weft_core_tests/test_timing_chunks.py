"""The largest chunk is what trying every length gives, and chunks of any kind add up."""

import math

from hypothesis import given
from hypothesis import strategies as st

from weft_core.timing import chunked_seconds, largest_chunk, queue_history, step_seconds

MOST = 96
seconds = st.floats(0, 0.05)
slopes = st.one_of(st.just(0.0), st.floats(1e-6, 1e-3))


@st.composite
def steps(draw: st.DrawFn) -> tuple[float, ...]:
    """Draw one to three regimes of an engine step, some of a mixture of experts."""
    figures: list[float] = []
    for _ in range(draw(st.integers(1, 3))):
        experts = draw(st.one_of(st.just(0.0), st.floats(1e-3, 0.02)))
        share = draw(st.floats(0.01, 0.5)) if experts else 0.0
        figures += [draw(seconds), draw(slopes), draw(slopes) / 1e3, experts, math.log1p(-share)]
        figures += [draw(slopes), draw(slopes) / 1e3, draw(slopes) / 1e2, draw(st.sampled_from([0.0, 0.0, 16.0]))]
        figures.append(draw(slopes) * 10)
    return tuple(figures)


limits = st.one_of(st.floats(0.001, 0.2), st.just(math.inf))
batches, contexts, histories = st.integers(0, 64).map(float), st.floats(0, 1e5), st.floats(0, 1e4)


@given(steps(), batches, contexts, histories, limits, st.integers(1, MOST))
def test_the_largest_chunk_is_what_trying_them_all_gives(
    pieces: tuple[float, ...], batch: float, context: float, history: float, limit: float, most: int
) -> None:
    fitting = [n for n in range(1, most + 1) if step_seconds(pieces, batch, context, float(n), history) <= limit]
    assert largest_chunk(pieces, batch, context, history, limit, most) == max(fitting, default=0)


@given(steps(), batches, contexts, histories, st.integers(0, 400), limits, st.integers(1, MOST))
def test_chunks_add_up_to_the_task(
    pieces: tuple[float, ...], batch: float, context: float, history: float, tokens: int, limit: float, most: int
) -> None:
    found = chunked_seconds(pieces, batch, context, history, float(tokens), limit, most)
    held = history + tokens / 2
    chunk = largest_chunk(pieces, batch, context, held, limit, most)
    if tokens == 0:
        assert found == 0.0
    elif chunk == 0:
        assert found == math.inf
    else:
        whole, rest = divmod(tokens, chunk)
        expected = whole * step_seconds(pieces, batch, context, float(chunk), held) if whole else 0.0
        expected += step_seconds(pieces, batch, context, float(rest), held) if rest else 0.0
        assert found == expected


def test_each_chunk_but_the_last_costs_the_overhead() -> None:
    pieces = (0.01, 0.0, 0.0, 0.0, 0.0, 1e-4, 0.0, 0.0, 0.0, 0.0)  # 10 ms and 0.1 ms a token: 350 fit into 45.05 ms
    plain = chunked_seconds(pieces, 1.0, 0.0, 0.0, 1000.0, 0.04505, 4096)
    assert math.isclose(plain, 2 * 0.045 + 0.04)
    assert math.isclose(chunked_seconds(pieces, 1.0, 0.0, 0.0, 1000.0, 0.04505, 4096, 1, 0.02), plain + 2 * 0.02)
    assert math.isclose(chunked_seconds(pieces, 1.0, 0.0, 0.0, 700.0, 0.04505, 4096, 1, 0.02), 0.09 + 0.02)
    assert math.isclose(chunked_seconds(pieces, 1.0, 0.0, 0.0, 1000.0, 0.04505, 4096, 500, 0.02), 2 * 0.06 + 0.02)
    assert math.isclose(chunked_seconds(pieces, 1.0, 0.0, 0.0, 300.0, 0.04505, 4096, 1, 0.02), 0.04)


def test_a_queue_is_one_prefill_of_the_same_work() -> None:
    """600 tokens after 100 and 200 after 500: (600 x 400 + 200 x 600) / 800 = 450 on average, 400 of them its own."""
    assert queue_history(800.0, 600 * 400 + 200 * 600) == 50.0
    assert queue_history(1000.0, 1000 * 700) == 200.0, "of one task: its own history"
    assert queue_history(1000.0, 1000 * 200) == 0.0, "short tasks side by side hold less than one long task does"
    assert queue_history(0.0, 0.0) == 0.0
