"""Draw throughput-latency curves of one context, generation or aggregated server."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from weft_core.parallelism import Degree, batches_of, gpus_of
from weft_planner.rate_match.queueing import Prefills
from weft_planner.rate_match.rounds import RoundShape
from weft_planner.rate_match.servers import Server

UTILISATIONS = tuple(round(0.05 * k, 2) for k in range(1, 20))
"""Shares of a context server's time in use, up to ``MOST_BUSY``."""


@dataclass(frozen=True, slots=True)
class ContextPoint:
    """A context server of one degree at one load; ``ttft_s`` is the asked percentile, transfers included."""

    degree: Degree
    utilisation: float
    rounds_per_s: float
    ttft_s: float

    @property
    def rounds_per_s_gpu(self) -> float:
        """Return the request rate per GPU."""
        return self.rounds_per_s / gpus_of(self.degree)


@dataclass(frozen=True, slots=True)
class GenerationPoint:
    """A server of one degree that decodes at one concurrency; ``kv_share`` counts idle sessions' KV too.

    ``itl_s`` is the mean time between two tokens: a step, on an aggregated server with what prefills add to it.
    """

    degree: Degree
    concurrency: int
    itl_s: float
    tokens_per_s: float
    rounds_per_s: float
    kv_share: float

    @property
    def tokens_per_s_user(self) -> float:
        """Return how fast one user's answer grows."""
        return 1 / self.itl_s

    @property
    def tokens_per_s_gpu(self) -> float:
        """Return the tokens per second of one of the server's GPUs."""
        return self.tokens_per_s / gpus_of(self.degree)


def context_prefills(server: Server, rounds: RoundShape, *, bidirectional: bool) -> Prefills:
    """Return the rounds' prefills on a context server; transfers keep nobody else waiting."""
    history = rounds.history if bidirectional else np.zeros_like(rounds.history)
    computed = rounds.increment if bidirectional else rounds.history + rounds.increment
    return Prefills(
        busy=server.busy_seconds(history, computed),
        answered=server.prefill_seconds(history, computed) + server.transfer_seconds(history, computed),
        batches=batches_of(server.degree),
    )


def context_curve(server: Server, rounds: RoundShape, *, percentile: float, bidirectional: bool) -> list[ContextPoint]:
    """Return TTFT against request rate of one context server: Poisson arrivals, in order, evenly over its batches."""
    prefills = context_prefills(server, rounds, bidirectional=bidirectional)
    return [
        ContextPoint(
            degree=server.degree,
            utilisation=u,
            rounds_per_s=prefills.rounds_per_s(u),
            ttft_s=prefills.ttft_s(u, rounds, percentile=percentile),
        )
        for u in UTILISATIONS
    ]


def generation_curve(server: Server, rounds: RoundShape, *, waiting_s: float) -> list[GenerationPoint]:
    """Return tokens per second against ITL of one generation server, as far as its places and its KV cache go.

    ``waiting_s`` is the TTFT: a session's history stays in the cache while it waits, and between rounds.
    """
    points = (generation_point(server, rounds, n, waiting_s=waiting_s) for n in server.concurrencies)
    return [*_known(points)]


def aggregated_curve(server: Server, rounds: RoundShape) -> list[GenerationPoint]:
    """Return tokens per second against ITL of one server that does both, as far as its places and its KV cache go.

    Where nothing is known of prefills beside a batch there is no curve.
    """
    return [*_known(aggregated_point(server, rounds, n) for n in server.serving_concurrencies)]


def generation_point(
    server: Server, rounds: RoundShape, concurrency: int, *, waiting_s: float
) -> GenerationPoint | None:
    """Return one point of a generation server's curve; None where so many sequences have no room."""
    return _point(server, rounds, concurrency, server.itl(concurrency, rounds.decode_context), waiting_s=waiting_s)


def aggregated_point(server: Server, rounds: RoundShape, concurrency: int) -> GenerationPoint | None:
    """Return one point of an aggregated server's curve; None where so many sequences have no room.

    Each round's prefill rides along with the steps of its batch, which takes p seconds more than decoding alone. So
    does every round of a batch of n once per answer of o tokens, and the time between two tokens is T_dec + n p / o.
    Histories are in its own cache.
    """
    return _point(server, rounds, concurrency, server.serving_itl(concurrency, rounds), waiting_s=0.0)


def _point(
    server: Server, rounds: RoundShape, concurrency: int, itl_s: float, *, waiting_s: float
) -> GenerationPoint | None:
    answering = rounds.output_tokens * itl_s
    idle = (float(rounds.gap.mean()) * rounds.idle_context + waiting_s * float(rounds.history.mean())) / answering
    held = concurrency * (rounds.decode_context + idle)
    if held > server.kv_capacity or not math.isfinite(itl_s):
        return None
    return GenerationPoint(
        degree=server.degree,
        concurrency=concurrency,
        itl_s=itl_s,
        tokens_per_s=concurrency / itl_s,
        rounds_per_s=concurrency / answering,
        kv_share=held / server.kv_capacity,
    )


def _known(points: Iterable[GenerationPoint | None]) -> Iterator[GenerationPoint]:
    """Yield points up to the first that is none."""
    for point in points:
        if point is None:
            return
        yield point
