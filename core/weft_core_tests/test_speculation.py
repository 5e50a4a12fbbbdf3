"""Speculative decoding as a change of a profile: tokens per step, what a step verifies, and the draft's memory."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.analytic import ModelDoesNotFit, derive_profile
from weft_core.cost import CostProfile, DecodePiece
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_core.parallelism import Degree, degree_of
from weft_core.profile_json import profile_from_json, profile_to_json
from weft_core.speculation import PROVENANCE, Method, Speculation, SpeculationError, draft_model, with_speculation
from weft_core_tests.profiles import decode_pieces, simple_profile

R1 = MODELS["deepseek-ai/DeepSeek-R1"]
LLAMA = MODELS["meta-llama/Llama-3.1-8B-Instruct"]
H200 = GPUS["nvidia-h200"]
METHODS: tuple[Method, ...] = ("mtp", "eagle", "ngram")

acceptances = st.floats(min_value=0.01, max_value=0.99)
drafted = st.integers(min_value=1, max_value=8)


def with_steps(*pieces: DecodePiece) -> CostProfile:
    """Return a profile of one degree with these regimes of a step."""
    profile = simple_profile()
    costs = replace(
        profile.degrees[1], decode=(replace(pieces[0], from_batch=0.0), *pieces[1:]), kv_capacity_tokens=10**9
    )
    return replace(
        profile, degrees={1: costs}, transfers={k: v for k, v in profile.transfers.items() if k[:2] == (1, 1)}
    )


def speculative(profile: CostProfile, speculation: Speculation) -> CostProfile:
    return with_speculation(profile, speculation, R1 if speculation.method == "mtp" else LLAMA)


def step(profile: CostProfile, batch: float, context: float, degree: Degree = 1) -> float:
    return profile.t_dec(batch=batch, context=context, degree=degree)


@given(drafted, acceptances)
def test_a_step_yields_the_tokens_of_the_closed_form(tokens: int, acceptance: float) -> None:
    found = Speculation("ngram", tokens, acceptance).tokens_per_step
    assert found == pytest.approx((1 - acceptance ** (tokens + 1)) / (1 - acceptance))
    assert 1 < found < tokens + 1


@given(st.lists(decode_pieces(), min_size=1, max_size=3), st.integers(1, 256), st.integers(0, 10**6))
def test_nothing_drafted_is_plain_decoding(pieces: list[DecodePiece], batch: int, context: int) -> None:
    plain = with_steps(*pieces)
    none = with_speculation(plain, Speculation("ngram", 0, 0.7))
    assert none.degrees[1].prefill == plain.degrees[1].prefill
    assert none.kv_capacity(1) == plain.kv_capacity(1)
    assert none.transfers == plain.transfers
    assert step(none, batch, context) == pytest.approx(step(plain, batch, context))


@given(
    st.lists(decode_pieces(), min_size=1, max_size=3),
    st.sampled_from(METHODS),
    drafted,
    acceptances,
    acceptances,
    st.integers(1, 256),
    st.integers(0, 10**6),
)
def test_a_token_takes_less_time_the_more_drafts_are_accepted(
    pieces: list[DecodePiece], method: Method, tokens: int, one: float, other: float, batch: int, context: int
) -> None:
    plain = with_steps(*pieces)
    low, high = (speculative(plain, Speculation(method, tokens, share)) for share in sorted((one, other)))
    assert step(high, batch, context) <= step(low, batch, context) * (1 + 1e-12)


@given(
    st.lists(decode_pieces(), min_size=1, max_size=3),
    st.sampled_from(METHODS),
    drafted,
    acceptances,
    st.integers(1, 256),
    st.integers(0, 10**6),
)
def test_a_step_that_verifies_is_never_faster_than_a_plain_one(
    pieces: list[DecodePiece], method: Method, tokens: int, acceptance: float, batch: int, context: int
) -> None:
    plain, asked = with_steps(*pieces), Speculation(method, tokens, acceptance)
    whole = asked.tokens_per_step * step(speculative(plain, asked), batch, context)
    assert whole >= step(plain, batch, context) * (1 - 1e-12)


@given(drafted, acceptances, st.integers(1, 64), st.sampled_from([0.0, 0.03, 0.5]))
def test_n_grams_verify_the_tokens_of_a_larger_batch(tokens: int, acceptance: float, batch: int, share: float) -> None:
    """Without context a step over b sequences of k + 1 tokens is one over b (k + 1) sequences, experts included."""
    piece = DecodePiece(alpha=0.01, per_sequence=0.0005, experts_seconds=0.02 if share else 0.0, expert_share=share)
    plain, asked = with_steps(piece), Speculation("ngram", tokens, acceptance)
    found = step(with_speculation(plain, asked), batch, 0)
    assert found == pytest.approx(step(plain, batch * (tokens + 1), 0) / asked.tokens_per_step)


@given(st.lists(decode_pieces(), min_size=1, max_size=1), drafted, acceptances, st.integers(16, 4096))
def test_a_chunk_costs_what_it_did(pieces: list[DecodePiece], tokens: int, acceptance: float, chunk: int) -> None:
    dense = replace(pieces[0], experts_seconds=0.0, expert_share=0.0, alpha=1.0)
    plain = with_steps(dense)
    found = with_speculation(plain, Speculation("ngram", tokens, acceptance))

    def added(profile: CostProfile) -> float:
        mixed = profile.t_step(batch=8, context=1000, chunk=chunk, chunk_history=0, degree=1)
        return mixed - step(profile, 8, 1000)

    assert added(found) == pytest.approx(added(plain), rel=1e-6, abs=1e-6)


@given(st.lists(decode_pieces(), min_size=1, max_size=3), st.sampled_from(METHODS), drafted, acceptances)
def test_such_a_profile_can_be_stored(
    pieces: list[DecodePiece], method: Method, tokens: int, acceptance: float
) -> None:
    found = speculative(with_steps(*pieces), Speculation(method, tokens, acceptance))
    stored = profile_from_json(profile_to_json(found))
    assert step(stored, 7, 7000) == step(found, 7, 7000)
    assert (stored.transfers, stored.provenance) == (found.transfers, found.provenance)


def test_the_draft_of_deepseek_has_the_published_size() -> None:
    """README_WEIGHTS of DeepSeek-V3: 11.5 billion weights in FP8 beside the shared embedding and head."""
    draft = draft_model(R1, Speculation("mtp", 1, 0.7))
    assert draft.weight_bytes / 1e9 == pytest.approx(11.5, rel=0.02)
    assert draft.kv_share == pytest.approx(1 / 61)
    assert draft_model(R1, Speculation("mtp", 3, 0.7)) == draft, "one layer is run again for each token"
    assert draft_model(LLAMA, Speculation("ngram", 3, 0.7)).weight_bytes == 0


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.prediction_layers])
def test_prediction_layers_weigh_about_as_much_as_a_layer(name: str) -> None:
    model = MODELS[name]
    draft = draft_model(model, Speculation("mtp", 1, 0.7))
    assert 0.001 < draft.prompt_share < 0.1
    assert draft.prompt_share <= draft.pass_share < 0.2
    assert 0 < draft.expert_bytes <= draft.weight_bytes or model.experts == 1


def test_the_draft_s_weights_and_kv_are_in_the_memory_and_in_the_transfers() -> None:
    degrees: list[Degree] = [8, degree_of(dp=8, ep=True)]
    plain = derive_profile(R1, H200, degrees=degrees)
    found = with_speculation(plain, Speculation("mtp", 2, 0.7), R1)
    draft = draft_model(R1, Speculation("mtp", 2, 0.7))
    moved = 1 + 1 / 61
    assert found.kv_bytes_per_token == pytest.approx(plain.kv_bytes_per_token * moved, abs=1)
    for degree in degrees:
        of_worker = draft.weight_bytes + (7 if degree != 8 else 0) * (draft.weight_bytes - draft.expert_bytes)
        more = found.degrees[degree].weight_bytes_per_gpu - plain.degrees[degree].weight_bytes_per_gpu
        assert more == pytest.approx(of_worker / 8, abs=1)
        assert found.kv_capacity(degree) < plain.kv_capacity(degree) / moved
    for pair, cost in found.transfers.items():
        assert cost.per_token == pytest.approx(plain.transfers[pair].per_token * moved)
    assert found.provenance[PROVENANCE].startswith(
        "mtp, 2 tokens drafted a step, acceptance 0.7 (assumed), so 2.19 tokens a step"
    )
    assert found.t_pre(history=0, increment=4096, degree=8) > plain.t_pre(history=0, increment=4096, degree=8)


def test_attention_over_all_heads_of_a_latent_takes_as_often_the_time() -> None:
    """A GPU with all 128 heads computes longer than it reads the latent; with 16 of them it reads it once for all."""
    ranks = degree_of(dp=8, ep=True)
    plain = derive_profile(R1, H200, degrees=[8, ranks])
    asked = Speculation("mtp", 2, 0.7)
    found = with_speculation(plain, asked, R1)

    def ratio(degree: Degree) -> float:
        before, after = (
            max(piece.per_context_token for piece in profile.degrees[degree].decode) for profile in (plain, found)
        )
        return after * asked.tokens_per_step / before

    assert ratio(ranks) == pytest.approx(3 + 2 / 61, rel=1e-6)
    assert ratio(8) == pytest.approx(1 + 2 / 61, rel=1e-6)


def test_what_a_model_cannot_do_is_refused_by_name() -> None:
    profile = derive_profile(LLAMA, H200, degrees=[1])
    with pytest.raises(SpeculationError, match=r"^method: mtp needs .* none of meta-llama/Llama-3.1-8B-Instruct"):
        with_speculation(profile, Speculation("mtp", 1, 0.7), LLAMA)
    with pytest.raises(SpeculationError, match=r"^method: .*eagle.*spec\.model\.config"):
        with_speculation(profile, Speculation("eagle", 1, 0.7))


def test_a_degree_without_room_beside_the_draft_is_left_out() -> None:
    plain = derive_profile(LLAMA, H200, degrees=[1, 2])
    full = replace(plain.degrees[1], kv_capacity_tokens=100)
    tight = replace(plain, degrees={**plain.degrees, 1: full})
    found = with_speculation(tight, Speculation("eagle", 3, 0.7), LLAMA)
    assert set(found.degrees) == {2}
    assert {pair[:2] for pair in found.transfers} == {(2, 2)}
    alone = replace(tight, degrees={1: full})
    with pytest.raises(ModelDoesNotFit, match=r"no memory for KV beside the eagle draft of 0\.8 GB at degree 1"):
        with_speculation(alone, Speculation("eagle", 3, 0.7), LLAMA)
    assert with_speculation(alone, Speculation("ngram", 3, 0.7)).kv_capacity(1) == 100
