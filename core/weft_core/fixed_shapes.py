"""Costs of an engine that is compiled for fixed shapes: a prompt takes as long as the next longer length it knows.

AWS Neuron's compiler makes one program for each length of a prompt and one for the whole batch (NxD Inference,
autobucketing): shorter prompts and free places of the batch are filled up with padding.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from weft_core.cost import CostProfile, DecodePiece, DegreeCosts, PrefillPiece
from weft_core.timing import prefill_seconds

PROVENANCE = "fixed shapes"
"""Where a profile's provenance says what its costs are padded to."""
SHORTEST = 128
"""Tokens of the shortest prompt that the compiler chooses a length for."""


def default_lengths(longest: int) -> tuple[int, ...]:
    """Return the lengths that the compiler chooses up to the context limit: powers of two, and the limit itself.

    A power of two is left out that the limit exceeds by less than the square root of 2.
    """
    powers = (1 << power for power in range(SHORTEST.bit_length() - 1, longest.bit_length()))
    return (*(length for length in powers if 2 * length**2 <= longest**2), longest)


def with_fixed_shapes(profile: CostProfile, *, lengths: Sequence[int], batch: int | None) -> CostProfile:
    """Return a profile whose prompts are padded to the next of ``lengths``, ascending, and batches to ``batch``.

    Without ``batch`` steps stay as they are. What attention reads of each sequence is not padded.
    """
    steps = f"; steps to {batch} sequences" if batch is not None else ""
    return replace(
        profile,
        degrees={n: _padded(costs, lengths, batch) for n, costs in profile.degrees.items()},
        provenance={**profile.provenance, PROVENANCE: f"prompts to {', '.join(map(str, lengths))} tokens{steps}"},
    )


def _padded(costs: DegreeCosts, lengths: Sequence[int], batch: int | None) -> DegreeCosts:
    prefill = tuple(
        PrefillPiece(prefill_seconds(costs.prefill_figures, 0.0, length), from_context=shorter + 1 if shorter else 0)
        for shorter, length in pairwise((0, *lengths))
    )
    if batch is None:
        return replace(costs, prefill=prefill)
    return replace(
        costs,
        prefill=prefill,
        decode=tuple(_filled(piece, batch) for piece in costs.decode if piece.from_batch <= batch),
    )


def _filled(piece: DecodePiece, batch: int) -> DecodePiece:
    """Return a regime of steps that always have a whole batch."""
    experts = piece.experts_seconds * (1.0 - (1.0 - piece.expert_share) ** batch)
    return replace(
        piece,
        alpha=piece.alpha + piece.per_sequence * batch + experts,
        per_sequence=0.0,
        experts_seconds=0.0,
        expert_share=0.0,
        from_batch=0.0,
    )
