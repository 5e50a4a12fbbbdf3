"""Predict how long prefill, decode and KV transfers take, from a profiled or derived cost profile.

The functions are piecewise alpha-beta models (AMPD section 3): each predicted time is the
largest of a few affine pieces, so that compute-bound and memory-bound regimes meet where they
cross. All times are seconds, all lengths tokens, all sizes bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Link = Literal["intra-node", "inter-node"]
LINKS: tuple[Link, ...] = ("intra-node", "inter-node")


class CostProfileError(ValueError):
    """Report a cost profile that cannot be used; the message names the field and the fix."""


@dataclass(frozen=True, slots=True)
class PrefillPiece:
    """One affine regime of T_pre; ``per_pair`` multiplies increment x (history + increment / 2), the attended pairs."""

    alpha: float
    per_token: float = 0.0
    per_pair: float = 0.0
    per_context_token: float = 0.0

    def seconds(self, history: float, increment: float) -> float:
        """Return this regime's time for an increment on top of a cached history."""
        pairs = increment * (history + increment / 2)
        context = history + increment
        return self.alpha + self.per_token * increment + self.per_pair * pairs + self.per_context_token * context


@dataclass(frozen=True, slots=True)
class DecodePiece:
    """One regime of one decode step over a batch: affine, but for the expert weights of a mixture of experts.

    A batch reads only the experts that its tokens chose: ``experts_seconds`` is the time to read all of them and
    ``expert_share`` the share that one token chooses, so a batch reads 1 - (1 - share)^batch of them. Dense: both 0.
    """

    alpha: float
    per_sequence: float = 0.0
    per_context_token: float = 0.0
    experts_seconds: float = 0.0
    expert_share: float = 0.0

    def seconds(self, batch: float, context: float) -> float:
        """Return this regime's time for one step of ``batch`` sequences holding ``context`` tokens in total."""
        affine = self.alpha + self.per_sequence * batch + self.per_context_token * context
        if self.experts_seconds <= 0:
            return affine
        untouched: float = (1 - self.expert_share) ** batch
        return affine + self.experts_seconds * (1 - untouched)


@dataclass(frozen=True, slots=True)
class DegreeCosts:
    """Everything known about one worker of one tensor-parallel degree."""

    prefill: tuple[PrefillPiece, ...]
    decode: tuple[DecodePiece, ...]
    weight_bytes_per_gpu: int
    kv_capacity_tokens: int


@dataclass(frozen=True, slots=True)
class TransferCost:
    """Time of moving KV from a worker of one degree to one of another over one kind of link."""

    alpha: float
    per_token: float

    def seconds(self, tokens: float) -> float:
        """Return the transfer time; nothing to move takes no time."""
        return self.alpha + self.per_token * tokens if tokens > 0 else 0.0


@dataclass(frozen=True, slots=True)
class CostProfile:
    """T_pre, T_dec, T_kv and memory of one model on one GPU type and engine (AMPD section 3, appendix A.1)."""

    model: str
    gpu: str
    engine: str
    kv_bytes_per_token: int
    degrees: Mapping[int, DegreeCosts]
    transfers: Mapping[tuple[int, int, Link], TransferCost]
    provenance: Mapping[str, str] = field(default_factory=dict)

    def _of(self, degree: int) -> DegreeCosts:
        try:
            return self.degrees[degree]
        except KeyError:
            known = ", ".join(str(d) for d in sorted(self.degrees)) or "none"
            raise CostProfileError(
                f"degrees: profile of {self.model} on {self.gpu} has no degree {degree} (it has {known}); profile it"
            ) from None

    def t_pre(self, *, history: float, increment: float, degree: int) -> float:
        """Predict T_pre(l_hist, l_incr; degree): prefilling ``increment`` tokens after ``history`` cached ones."""
        return max(piece.seconds(history, increment) for piece in self._of(degree).prefill)

    def t_dec(self, *, batch: float, context: float, degree: int) -> float:
        """Predict one decode step of ``batch`` sequences that hold ``context`` tokens in total."""
        return max(piece.seconds(batch, context) for piece in self._of(degree).decode)

    def t_kv(self, tokens: float, *, source: int, destination: int, link: Link = "inter-node") -> float:
        """Predict T_kv(l; source degree -> destination degree) over a link."""
        try:
            return self.transfers[source, destination, link].seconds(tokens)
        except KeyError:
            raise CostProfileError(
                f"transfers: profile of {self.model} on {self.gpu} has no {link} transfer "
                f"from degree {source} to degree {destination}; add it"
            ) from None

    def kv_capacity(self, degree: int) -> int:
        """Return how many tokens of KV cache one worker of this degree holds."""
        return self._of(degree).kv_capacity_tokens
