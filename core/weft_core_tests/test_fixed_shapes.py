"""Prompts of an engine of fixed shapes take as long as the next longer length, and steps as the whole batch."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.analytic import derive_profile
from weft_core.cost import CostProfileError
from weft_core.fixed_shapes import PROVENANCE, default_lengths, with_fixed_shapes
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_core.profile_json import profile_from_json, profile_to_json

LENGTHS = (512, 1024, 4096)
FREE = derive_profile(MODELS["Qwen/Qwen3-30B-A3B"], GPUS["aws-trainium2"], degrees=(4, 8))
FIXED = with_fixed_shapes(FREE, lengths=LENGTHS, batch=16)


@given(st.integers(1, LENGTHS[-1]), st.sampled_from([4, 8]))
def test_a_prompt_takes_as_long_as_the_next_longer_length(tokens: int, degree: int) -> None:
    padded = min(length for length in LENGTHS if length >= tokens)
    seconds = FIXED.t_pre(history=0, increment=tokens, degree=degree)
    assert seconds == FREE.t_pre(history=0, increment=padded, degree=degree)
    assert FIXED.t_pre(history=tokens - 1, increment=1, degree=degree) == seconds, "the whole of it is computed"


@given(st.integers(1, 16), st.integers(0, 4096))
def test_a_step_takes_as_long_as_that_of_the_whole_batch(batch: int, each: int) -> None:
    seconds = FIXED.t_dec(batch=batch, context=batch * each, degree=8)
    assert seconds == pytest.approx(FREE.t_dec(batch=16, context=batch * each, degree=8))


def test_without_a_batch_steps_stay_as_they_are() -> None:
    assert with_fixed_shapes(FREE, lengths=LENGTHS, batch=None).degrees[8].decode == FREE.degrees[8].decode


def test_regimes_of_larger_batches_than_the_whole_one_never_apply() -> None:
    costs = FREE.degrees[8]
    rows = (
        costs.decode[0],
        replace(costs.decode[0], alpha=1.0, from_batch=16),
        replace(costs.decode[0], alpha=2.0, from_batch=17),
    )
    profile = replace(FREE, degrees={8: replace(costs, decode=rows)})
    padded = with_fixed_shapes(profile, lengths=LENGTHS, batch=16)
    assert padded.t_dec(batch=1, context=0, degree=8) == pytest.approx(profile.t_dec(batch=16, context=0, degree=8))
    assert len(padded.degrees[8].decode) == 2


def test_it_is_the_same_after_json_and_says_what_it_is_padded_to() -> None:
    read = profile_from_json(profile_to_json(FIXED))
    assert read == FIXED
    assert read.provenance[PROVENANCE] == "prompts to 512, 1024, 4096 tokens; steps to 16 sequences"


def test_slower_workers_keep_the_lengths() -> None:
    slow = replace(FIXED, degrees={8: FIXED.degrees[8].slower(3.0)})
    for tokens in (512, 513):
        three = 3 * FIXED.t_pre(history=0, increment=tokens, degree=8)
        assert slow.t_pre(history=0, increment=tokens, degree=8) == pytest.approx(three)


def test_one_regime_must_apply_to_every_prompt() -> None:
    body = profile_to_json(FIXED)
    rows = body["degrees"]
    assert isinstance(rows, list)
    del rows[0]["prefill"][0]
    with pytest.raises(CostProfileError, match=r"degrees\[0\]\.prefill: every row has fromContext; one must apply"):
        profile_from_json(body)


@pytest.mark.parametrize(
    ("longest", "lengths"),
    [
        (64, (64,)),
        (128, (128,)),
        (1024, (128, 256, 512, 1024)),
        (1448, (128, 256, 512, 1448)),
        (1449, (128, 256, 512, 1024, 1449)),
    ],
)
def test_the_compilers_own_lengths(longest: int, lengths: tuple[int, ...]) -> None:
    """As ``generate_buckets(128, longest)`` of NxD Inference: powers of two below the rounded logarithm, and it."""
    assert default_lengths(longest) == lengths
