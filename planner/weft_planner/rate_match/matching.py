"""Find the ratio of context to generation workers at which neither side waits, and the best of all configurations."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from weft_core.parallelism import Degree, gpus_of
from weft_planner.rate_match.curves import (
    ContextPoint,
    GenerationPoint,
    aggregated_curve,
    context_curve,
    generation_curve,
)
from weft_planner.rate_match.rounds import RoundShape
from weft_planner.rate_match.servers import Server

LARGEST_SIDE = 12
"""Workers of one side in a ratio of small whole numbers, such as 4:1 or 5:3."""
NEAR = math.log(1.03)
"""A whole ratio this near to the matched one wastes less than the curves' own error."""


class NoMatch(ValueError):  # noqa: N818  an answer, not a fault
    """No configuration holds the SLO; the message names the threshold and what would hold."""


@dataclass(frozen=True, slots=True)
class RateMatch:
    """A context and a generation configuration with matched rates; ``holds`` tells whether ITL is within the SLO.

    ``ratio`` is context workers for each generation worker, ``tokens_per_s_gpu`` counts the GPUs of both.
    """

    context: ContextPoint
    generation: GenerationPoint
    holds: bool

    @property
    def ratio(self) -> float:
        """Return context workers per generation worker: the generation's request rate over the context's."""
        return self.generation.rounds_per_s / self.context.rounds_per_s

    @property
    def tokens_per_s_gpu(self) -> float:
        """Return output tokens per second and GPU: tokens / (context GPUs x rate_gen / rate_ctx + generation GPUs)."""
        return self.generation.tokens_per_s / (
            gpus_of(self.context.degree) * self.ratio + gpus_of(self.generation.degree)
        )

    @property
    def whole_ratio(self) -> tuple[int, int]:
        """Return (context, generation) workers in small whole numbers: the fewest that come within 3 % of the ratio."""
        sides = range(1, LARGEST_SIDE + 1)
        pairs = [(abs(math.log(c / g / self.ratio)), c + g, c, g) for c in sides for g in sides]
        close = [pair for pair in pairs if pair[0] <= NEAR] or [min(pairs)]
        _, _, context, generation = min(close, key=lambda pair: (pair[1], pair[0]))
        return context, generation

    def workers_for(self, rounds_per_s: float) -> tuple[int, int]:
        """Return the (context, generation) workers that carry a request rate."""
        return (
            max(1, math.ceil(rounds_per_s / self.context.rounds_per_s - 1e-9)),
            max(1, math.ceil(rounds_per_s / self.generation.rounds_per_s - 1e-9)),
        )

    def gpus_for(self, rounds_per_s: float) -> int:
        """Return the GPUs of those workers."""
        context, generation = self.workers_for(rounds_per_s)
        return context * gpus_of(self.context.degree) + generation * gpus_of(self.generation.degree)


@dataclass(frozen=True, slots=True)
class RateMatching:
    """The curves, the best load of each context degree within the TTFT SLO, the rate-matched front, and the best.

    ``aggregated`` is the front of servers that do both, of all degrees that either side may have.
    """

    context_curves: dict[Degree, tuple[ContextPoint, ...]]
    generation_curves: dict[Degree, tuple[GenerationPoint, ...]]
    context_best: tuple[ContextPoint, ...]
    front: tuple[RateMatch, ...]
    held: tuple[RateMatch, ...]
    best: RateMatch
    aggregated: tuple[GenerationPoint, ...] = ()

    def aggregated_for(self, tokens_per_s_user: float) -> GenerationPoint | None:
        """Return the aggregated server with most tokens per GPU of those that are as fast for each user."""
        fast = [point for point in self.aggregated if point.tokens_per_s_user >= tokens_per_s_user * (1 - 1e-9)]
        return max(fast, key=lambda point: point.tokens_per_s_gpu, default=None)

    def smallest(self, rounds_per_s: float) -> RateMatch:
        """Return the match within the SLO that carries a request rate on the fewest GPUs, then with most to spare."""
        return min(self.held, key=lambda m: (m.gpus_for(rounds_per_s), -m.tokens_per_s_gpu, m.generation.itl_s))


@dataclass(frozen=True, slots=True)
class CurveSource:
    """Where curves come from, in words, whether they were measured, and what a reader should know of them."""

    words: str
    measured: bool
    remarks: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Servers:
    """One server of each degree that may do a side's work, in order of their GPUs, and those that may do both."""

    context: Sequence[Server]
    generation: Sequence[Server]
    aggregated: Sequence[Server]


Option = TypeVar("Option", RateMatch, GenerationPoint)


def match_rates(
    servers: Servers,
    rounds: RoundShape,
    *,
    ttft_s: float,
    itl_s: float,
    percentile: float,
    bidirectional: bool,
) -> RateMatching:
    """Draw both curves, choose the context configuration with most requests per GPU, and match every generation point.

    Raises:
        NoMatch: no context server holds the TTFT SLO at any load, or no generation server the ITL SLO.
    """
    contexts = {
        server.degree: tuple(context_curve(server, rounds, percentile=percentile, bidirectional=bidirectional))
        for server in servers.context
    }
    best_loads = [
        max(within, key=lambda p: p.rounds_per_s) for c in contexts.values() if (within := _within(c, ttft_s))
    ]
    if not best_loads:
        least = min(point.ttft_s for curve in contexts.values() for point in curve)
        raise NoMatch(
            f"slo.ttft: no context server answers within {ttft_s:g} s even almost idle; the least is {least:.3g} s "
            "(a larger degree, a faster GPU, shorter prompts or a later TTFT would do)"
        )
    context = max(best_loads, key=lambda p: (p.rounds_per_s_gpu, -gpus_of(p.degree)))
    generations = {
        server.degree: tuple(generation_curve(server, rounds, waiting_s=context.ttft_s))
        for server in servers.generation
    }
    matches = [
        RateMatch(context=context, generation=point, holds=point.itl_s <= itl_s)
        for curve in generations.values()
        for point in curve
    ]
    alone = [point for server in servers.aggregated for point in aggregated_curve(server, rounds)]
    held = [match for match in matches if match.holds]
    if not held:
        fastest = min((match.generation.itl_s for match in matches), default=math.inf)
        cause = f"the fastest step takes {fastest * 1e3:.3g} ms" if matches else "no degree has room for one session"
        raise NoMatch(
            f"slo.itl: no generation server keeps {itl_s * 1e3:g} ms between tokens; {cause} "
            "(a larger degree, a faster GPU or a later ITL would do)"
        )
    return RateMatching(
        context_curves=contexts,
        generation_curves=generations,
        context_best=tuple(best_loads),
        front=tuple(_front(matches, lambda match: match.generation.tokens_per_s_user)),
        held=tuple(held),
        best=max(held, key=lambda m: (m.tokens_per_s_gpu, -gpus_of(m.generation.degree))),
        aggregated=tuple(_front(alone, lambda point: point.tokens_per_s_user)),
    )


def _within(curve: Sequence[ContextPoint], ttft_s: float) -> list[ContextPoint]:
    return [point for point in curve if point.ttft_s <= ttft_s]


def _front(options: Iterable[Option], speed: Callable[[Option], float]) -> list[Option]:
    """Return the options that no other beats in both speed per user and tokens per GPU, fastest user first."""
    front: list[Option] = []
    for option in sorted(options, key=lambda one: (-speed(one), -one.tokens_per_s_gpu)):
        if not front or option.tokens_per_s_gpu > front[-1].tokens_per_s_gpu:
            front.append(option)
    return front
