"""Turn a cost profile into the durations of an engine's steps, in seconds of wall time."""

from collections.abc import Sequence
from dataclasses import dataclass

from weft_core.cost import LINKS, CostProfile, CostProfileError, Link, TransferCost
from weft_core.parallelism import Degree, parallelism_of
from weft_core.timing import prefill_step_seconds
from weft_core.transfers import transfer_between


@dataclass(slots=True)
class Pacing:
    """Durations of one engine: the profile's figures for its degree times ``time_scale``, times a fault's slowdown.

    Times are those of one data-parallel rank, until ``together`` joins them. A rank that runs several batches at a
    time, one in each pipeline stage, is taken for one that shares its sequences evenly among them, and computes one
    prefill after the other, each in its share of the time: as many prefills as a real one, but a lone one is too fast.
    The steps of an engine that only prefills (``prefill_only``) are prefills of all their chunks at once.
    ``shared_work`` is the share of a rank's work that all ranks do together, that of routed experts.
    """

    profile: CostProfile
    degree: Degree
    time_scale: float = 1.0
    slowdown: float = 1.0
    prefill_only: bool = False
    shared_work: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a degree the profile does not have, at start and not at the first request."""
        self.profile.kv_capacity(self.degree)

    @property
    def factor(self) -> float:
        """Return how many times as long as in the profile everything takes."""
        return self.time_scale * self.slowdown

    def together(self, seconds: Sequence[float], ranks: int) -> float:
        """Return the time of a step of all ranks, some of which have work that takes so long by itself.

        As ``weft_planner.simulation.lockstep``: attention waits for the slowest, experts share all tokens.
        """
        if ranks == 1:
            return seconds[0]
        return (1.0 - self.shared_work) * max(seconds) + self.shared_work * sum(seconds) / ranks

    def decode(self, *, batch: int, context: int) -> float:
        """Return the time of one decode step."""
        share = parallelism_of(self.degree).pp
        return (
            self.profile.t_dec(batch=max(1.0, batch / share), context=context / share, degree=self.degree) * self.factor
        )

    def prefill(self, *, history: int, increment: int) -> float:
        """Return the time of one exclusive prefill."""
        seconds = self.profile.t_pre(history=history, increment=increment, degree=self.degree)
        return seconds / parallelism_of(self.degree).pp * self.factor

    def mixed(self, *, batch: int, context: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Return the time of a step that decodes a batch and prefills chunks of (history, increment) beside it.

        Each chunk adds what it adds to the step so far, because weights are read once per step; the tokens of the
        chunks before it count as sequences of that step.
        """
        share = parallelism_of(self.degree).pp
        if self.prefill_only and batch == 0:
            sums = [(part, part * (history + part / 2), history + part) for history, part in chunks]
            figures = self.profile.prefill_figures(self.degree)
            return prefill_step_seconds(figures, *map(sum, zip(*sums, strict=True))) / share * self.factor
        seconds, tokens, held = 0.0, batch / share, context / share
        for index, (history, increment) in enumerate(chunks):
            step = self.profile.t_step(
                batch=tokens, context=held, chunk=increment, chunk_history=history, degree=self.degree
            )
            seconds += step - (self.profile.t_dec(batch=tokens, context=held, degree=self.degree) if index else 0.0)
            tokens += increment
            held += history + increment
        return seconds * self.factor

    def transfer(self, tokens: int, *, source: CostProfile, source_degree: Degree, same_node: bool) -> float:
        """Return the time of reading KV from an engine of another profile and degree.

        Where one kind of link is not profiled the other stands in for it.

        Raises:
            CostProfileError: no profile has a transfer between these degrees.
        """
        wanted: Link = "intra-node" if same_node else "inter-node"
        for link in sorted(LINKS, key=lambda link: link != wanted):
            cost = self._over(link, source, source_degree)
            if cost is not None:
                return cost.seconds(tokens) * self.factor
        raise CostProfileError(
            f"transfers: the profile has none from degree {source_degree} to degree {self.degree}; add it"
        )

    def _over(self, link: Link, source: CostProfile, source_degree: Degree) -> TransferCost | None:
        if source is self.profile:
            return source.transfers.get((source_degree, self.degree, link))
        try:
            return transfer_between(
                source, self.profile, source_degree=source_degree, destination_degree=self.degree, link=link
            )
        except CostProfileError:
            return None
