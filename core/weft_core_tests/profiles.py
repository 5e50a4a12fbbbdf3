"""Cost profiles that tests share."""

from dataclasses import replace

from hypothesis import strategies as st

from weft_core.cost import LINKS, CostProfile, DecodePiece, DegreeCosts, FitError, Link, PrefillPiece, TransferCost
from weft_core.parallelism import Degree, Parallelism


def simple_profile() -> CostProfile:
    """One second per 1,000 new tokens at degree 1, half at degree 2; KV leaves at 10,000 tokens a second, after 0.1 s.

    Degree 2 sends half as fast, so that a transfer in the wrong direction shows.
    """
    return CostProfile(
        model="m",
        gpu="g",
        engine="e",
        kv_bytes_per_token=1000,
        degrees={
            n: DegreeCosts(
                prefill=(PrefillPiece(alpha=0.0, per_token=0.001 / n),),
                decode=(DecodePiece(alpha=0.01 / n, per_sequence=0.001, per_chunk_token=0.001 / n),),
                weight_bytes_per_gpu=10**9,
                kv_capacity_tokens=100_000 * n,
            )
            for n in (1, 2)
        },
        transfers={(s, d, link): TransferCost(0.1, 0.0001 * s) for s in (1, 2) for d in (1, 2) for link in LINKS},
    )


figures = st.floats(min_value=0, max_value=1e3, allow_nan=False, allow_infinity=False)
counts = st.integers(min_value=1, max_value=10**12)
texts = st.text(min_size=1, max_size=10)
prefill_pieces = st.builds(PrefillPiece, alpha=figures, per_token=figures, per_pair=figures, per_context_token=figures)


@st.composite
def decode_pieces(draw: st.DrawFn) -> DecodePiece:
    """Draw a decode piece, of a dense model or a mixture of experts."""
    experts = draw(st.floats(min_value=0, max_value=1))
    share = draw(st.floats(min_value=0.01, max_value=1)) if experts > 0 else 0.0
    return DecodePiece(
        alpha=draw(figures),
        per_sequence=draw(figures),
        per_context_token=draw(figures),
        experts_seconds=experts,
        expert_share=share,
        per_chunk_token=draw(figures),
        per_chunk_pair=draw(figures),
        per_chunk_context=draw(figures),
        from_batch=draw(st.sampled_from([0, 1, 2, 32, 200])),
        per_chunk=draw(figures),
    )


def _applicable(pieces: list[DecodePiece]) -> tuple[DecodePiece, ...]:
    """Return the pieces, the first of them for every batch."""
    return (replace(pieces[0], from_batch=0.0), *pieces[1:])


fits = st.none() | st.builds(
    FitError, median=st.floats(min_value=0, max_value=9), p95=st.floats(min_value=0, max_value=9), points=counts
)
degree_costs = st.builds(
    DegreeCosts,
    prefill=st.lists(prefill_pieces, min_size=1, max_size=3).map(tuple),
    decode=st.lists(decode_pieces(), min_size=1, max_size=3).map(_applicable),
    weight_bytes_per_gpu=counts,
    kv_capacity_tokens=counts,
    prefill_fit=fits,
    step_fit=fits,
)


@st.composite
def profiles(draw: st.DrawFn) -> CostProfile:
    """Draw a cost profile of any shape that is allowed."""
    kinds: list[Degree] = [1, 2, 4, 8, Parallelism(tp=4, pp=2), Parallelism(dp=16, ep=True)]
    degrees = draw(st.dictionaries(st.sampled_from(kinds), degree_costs, min_size=1))
    links: list[Link] = draw(st.lists(st.sampled_from(LINKS), min_size=1, unique=True))
    return CostProfile(
        model=draw(texts),
        gpu=draw(texts),
        engine=draw(texts),
        kv_bytes_per_token=draw(counts),
        degrees=degrees,
        transfers={
            (s, d, link): TransferCost(draw(figures), draw(figures), draw(fits))
            for s in degrees
            for d in degrees
            for link in links
        },
        provenance=draw(st.dictionaries(texts, texts, max_size=3)),
    )
