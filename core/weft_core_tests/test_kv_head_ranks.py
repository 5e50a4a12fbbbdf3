"""KV heads over the ranks of tensor parallelism: each is somewhere, all ranks have as many, neighbours share."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.dimensions import WindowedHeads
from weft_core.kv_head_ranks import kv_heads_of_ranks
from weft_core.memory import kv_layout
from weft_core.models import MODELS

LLAMA = MODELS["meta-llama/Llama-3.1-70B-Instruct"]


@pytest.mark.parametrize(
    ("tp", "ranks"),
    [
        (1, ((0, 1, 2, 3, 4, 5, 6, 7),)),
        (4, ((0, 1), (2, 3), (4, 5), (6, 7))),
        (8, ((0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,))),
        (16, tuple((head,) for head in range(8) for _ in range(2))),
        (3, None),
        (12, None),
    ],
)
def test_heads_are_divided_or_repeated(tp: int, ranks: tuple[tuple[int, ...], ...] | None) -> None:
    assert kv_heads_of_ranks(LLAMA, tp) == ranks


@given(st.integers(1, 64), st.integers(1, 64))
def test_every_head_has_as_many_copies_as_memory_is_counted_for(heads: int, tp: int) -> None:
    model = replace(LLAMA, heads=heads * 8, kv_heads=heads)
    ranks = kv_heads_of_ranks(model, tp)
    if ranks is None:
        assert heads % tp
        assert tp % heads
        return
    assert len(ranks) == tp
    assert len({len(rank) for rank in ranks}) == 1
    held = [head for rank in ranks for head in rank]
    assert held == sorted(held), "neighbours share a head"
    assert {held.count(head) for head in range(heads)} == {len(held) // heads}
    assert kv_layout(model, tp).per_token * heads == kv_layout(model).per_token * len(held)


def test_there_is_no_division_where_layers_cache_something_else() -> None:
    latent = next(model for model in MODELS.values() if model.latent is not None)
    assert kv_heads_of_ranks(latent, 1) is None
    assert kv_heads_of_ranks(replace(LLAMA, windowed_heads=WindowedHeads(4, 128, 128)), 8) is None
