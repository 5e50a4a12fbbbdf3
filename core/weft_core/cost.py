"""Predict how long prefill, decode and KV transfers take, from a profiled or derived cost profile.

The functions are piecewise alpha-beta models (AMPD section 3): each predicted time is the
largest of a few affine pieces, so that compute-bound and memory-bound regimes meet where they
cross. All times are seconds, all lengths tokens, all sizes bytes. The formulas themselves are in ``timing.py``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

from weft_core.parallelism import Degree, parallelism_of
from weft_core.timing import prefill_seconds, step_seconds, transfer_seconds

Link = Literal["intra-node", "inter-node"]
LINKS: tuple[Link, ...] = ("intra-node", "inter-node")
NOTHING = -1e3
"""The exponential of this is 0."""


class CostProfileError(ValueError):
    """Report a cost profile that cannot be used; the message names the field and the fix."""


@dataclass(frozen=True, slots=True)
class FitError:
    """How well fitted figures predict measurements that were held out: shares of the measured time, and how many."""

    median: float
    p95: float
    points: int


def log_unread(expert_share: float) -> float:
    """Return the logarithm of the share of the experts that a token leaves unread, which is 0 where it reads all."""
    return math.log1p(-expert_share) if expert_share < 1 else NOTHING


@dataclass(frozen=True, slots=True)
class PrefillPiece:
    """One regime of T_pre; ``per_pair`` multiplies increment x (history + increment / 2), the attended pairs.

    Affine, but for the expert weights of a mixture of experts, as in ``DecodePiece``. The regime applies where history
    and increment are ``from_context`` tokens and more: engines that pad prompts have steps there.
    """

    alpha: float
    per_token: float = 0.0
    per_pair: float = 0.0
    per_context_token: float = 0.0
    experts_seconds: float = 0.0
    expert_share: float = 0.0
    from_context: float = 0.0

    @property
    def figures(self) -> tuple[float, ...]:
        """Return the piece in the order of ``timing.PREFILL_FIELDS``."""
        return (
            self.alpha,
            self.per_token,
            self.per_pair,
            self.per_context_token,
            self.experts_seconds,
            log_unread(self.expert_share),
            self.from_context,
        )

    def seconds(self, history: float, increment: float) -> float:
        """Return this regime's time for an increment on top of a cached history; 0 where it does not apply."""
        return prefill_seconds(self.figures, history, increment)

    def slower(self, factor: float) -> "PrefillPiece":
        """Return the regime in which everything takes ``factor`` times as long."""
        slowed = PrefillPiece(*(factor * figure for figure in self.figures))
        return replace(slowed, expert_share=self.expert_share, from_context=self.from_context)  # these are no times


@dataclass(frozen=True, slots=True)
class DecodePiece:
    """One regime of one engine step over a batch, and over a chunk of prefill beside it.

    Affine, but for the expert weights of a mixture of experts: a step reads only the experts that its tokens chose.
    ``experts_seconds`` is the time to read all of them and ``expert_share`` the share that one token chooses, so a step
    reads 1 - (1 - share)^tokens of them. Dense: both 0. ``per_chunk_pair`` multiplies chunk x (chunk's history +
    chunk / 2), ``per_chunk_context`` the tokens that the chunk's sequence then holds; ``per_chunk`` is what any chunk
    costs, as the kernels of its attention have to be started. The regime applies to batches of
    ``from_batch`` and more: engines take other kernels for larger batches.
    """

    alpha: float
    per_sequence: float = 0.0
    per_context_token: float = 0.0
    experts_seconds: float = 0.0
    expert_share: float = 0.0
    per_chunk_token: float = 0.0
    per_chunk_pair: float = 0.0
    per_chunk_context: float = 0.0
    from_batch: float = 0.0
    per_chunk: float = 0.0

    @property
    def figures(self) -> tuple[float, ...]:
        """Return the piece in the order of ``timing.STEP_FIELDS``."""
        return (
            self.alpha,
            self.per_sequence,
            self.per_context_token,
            self.experts_seconds,
            log_unread(self.expert_share),
            self.per_chunk_token,
            self.per_chunk_pair,
            self.per_chunk_context,
            self.from_batch,
            self.per_chunk,
        )

    def seconds(self, batch: float, context: float) -> float:
        """Return this regime's time for one step of ``batch`` sequences holding ``context`` tokens in total.

        It is 0 where the regime does not apply.
        """
        return step_seconds(self.figures, batch, context)

    def slower(self, factor: float) -> "DecodePiece":
        """Return the regime in which everything takes ``factor`` times as long."""
        slowed = DecodePiece(*(factor * figure for figure in self.figures))
        return replace(slowed, expert_share=self.expert_share, from_batch=self.from_batch)  # these are no times


def with_chunk_costs(decode: Sequence[DecodePiece], prefill: Sequence[PrefillPiece]) -> tuple[DecodePiece, ...]:
    """Return decode regimes whose chunk costs follow from prefill alone, for profiles that never measured mixed steps.

    An upper estimate: each figure is the largest of any prefill regime and is added to every decode regime, so that a
    mixed step takes at least as long as the decode step and the chunk's marginal prefill time together.
    """
    token = max(piece.per_token for piece in prefill)
    pair = max(piece.per_pair for piece in prefill)
    context = max(piece.per_context_token for piece in prefill)
    return tuple(
        replace(piece, per_chunk_token=token, per_chunk_pair=pair, per_chunk_context=context) for piece in decode
    )


@dataclass(frozen=True, slots=True)
class DegreeCosts:
    """Everything known about one worker of one degree; the figures are the pieces, laid flat.

    A worker that runs several batches at a time (``parallelism.py``) has the times of one of them while the others are
    as full; ``kv_capacity_tokens`` is that of the whole worker.

    ``prefill_fit`` and ``step_fit`` are there when the figures were fitted to measurements.
    """

    prefill: tuple[PrefillPiece, ...]
    decode: tuple[DecodePiece, ...]
    weight_bytes_per_gpu: int
    kv_capacity_tokens: int
    prefill_fit: FitError | None = None
    step_fit: FitError | None = None
    prefill_figures: tuple[float, ...] = field(init=False, repr=False, compare=False)
    step_figures: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Lay the pieces flat once: every routing decision reads them."""
        object.__setattr__(self, "prefill_figures", tuple(chain.from_iterable(p.figures for p in self.prefill)))
        object.__setattr__(self, "step_figures", tuple(chain.from_iterable(p.figures for p in self.decode)))

    def slower(self, factor: float) -> "DegreeCosts":
        """Return the costs of a worker that takes ``factor`` times as long for everything."""
        return replace(
            self,
            prefill=tuple(piece.slower(factor) for piece in self.prefill),
            decode=tuple(piece.slower(factor) for piece in self.decode),
        )


@dataclass(frozen=True, slots=True)
class TransferCost:
    """Time of moving KV from a worker of one degree to one of another over one kind of link."""

    alpha: float
    per_token: float
    fit: FitError | None = None

    def seconds(self, tokens: float) -> float:
        """Return the transfer time; nothing to move takes no time."""
        return transfer_seconds(self.alpha, self.per_token, tokens)


@dataclass(frozen=True, slots=True)
class CostProfile:
    """T_pre, T_dec, T_kv and memory of one model on one GPU type and engine (AMPD section 3, appendix A.1)."""

    model: str
    gpu: str
    engine: str
    kv_bytes_per_token: int
    degrees: Mapping[Degree, DegreeCosts]
    transfers: Mapping[tuple[Degree, Degree, Link], TransferCost]
    provenance: Mapping[str, str] = field(default_factory=dict)

    def _of(self, degree: Degree) -> DegreeCosts:
        try:
            return self.degrees[degree]
        except KeyError:
            known = ", ".join(str(d) for d in sorted(self.degrees)) or "none"
            raise CostProfileError(
                f"degrees: profile of {self.model} on {self.gpu} has no degree {degree} (it has {known}); profile it"
            ) from None

    def prefill_figures(self, degree: Degree) -> tuple[float, ...]:
        """Return a degree's prefill regimes as ``weft_core.timing`` reads them."""
        return self._of(degree).prefill_figures

    def step_figures(self, degree: Degree) -> tuple[float, ...]:
        """Return a degree's regimes of an engine step as ``weft_core.timing`` reads them."""
        return self._of(degree).step_figures

    def t_pre(self, *, history: float, increment: float, degree: Degree) -> float:
        """Predict T_pre(l_hist, l_incr; degree): prefilling ``increment`` tokens after ``history`` cached ones."""
        return prefill_seconds(self._of(degree).prefill_figures, history, increment)

    def t_dec(self, *, batch: float, context: float, degree: Degree) -> float:
        """Predict one decode step of ``batch`` sequences that hold ``context`` tokens in total."""
        return step_seconds(self._of(degree).step_figures, batch, context)

    def t_step(self, *, batch: float, context: float, chunk: float, chunk_history: float, degree: Degree) -> float:
        """Predict a mixed step: that of t_dec with ``chunk`` tokens prefilled after ``chunk_history`` cached ones."""
        return step_seconds(self._of(degree).step_figures, batch, context, chunk, chunk_history)

    def t_kv(self, tokens: float, *, source: Degree, destination: Degree, link: Link = "inter-node") -> float:
        """Predict T_kv(l; source degree -> destination degree) over a link."""
        try:
            return self.transfers[source, destination, link].seconds(tokens)
        except KeyError:
            raise CostProfileError(
                f"transfers: profile of {self.model} on {self.gpu} has no {link} transfer "
                f"from degree {source} to degree {destination}; add it"
            ) from None

    def longest_context(self, degree: Degree) -> int:
        """Return how many tokens one sequence may have on a worker of this degree: it lies on one rank."""
        return self.kv_capacity(degree) // parallelism_of(degree).dp

    def kv_capacity(self, degree: Degree) -> int:
        """Return how many tokens of KV cache one worker of this degree holds."""
        return self._of(degree).kv_capacity_tokens
