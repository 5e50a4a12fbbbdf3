"""Draw throughput-latency curves of one context, generation or aggregated server."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from weft_core.parallelism import Degree, batches_of, gpus_of
from weft_planner.rate_match.rounds import RoundShape
from weft_planner.rate_match.servers import Server

UTILISATIONS = tuple(round(0.05 * k, 2) for k in range(1, 20))
"""Shares of a context server's time in use; beyond 95 % its queue takes longer to settle than the sample is long."""


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


def context_curve(server: Server, rounds: RoundShape, *, percentile: float, bidirectional: bool) -> list[ContextPoint]:
    """Return TTFT against request rate of one context server: Poisson arrivals, in order, evenly over its batches."""
    history = rounds.history if bidirectional else np.zeros_like(rounds.history)
    computed = rounds.increment if bidirectional else rounds.history + rounds.increment
    busy = server.busy_seconds(history, computed)
    answered = server.prefill_seconds(history, computed) + server.transfer_seconds(history, computed)
    mean = float(busy.mean())
    utilisations = np.array(UTILISATIONS)
    distances = rounds.arrivals[:, None] * mean / utilisations[None, :]
    waited = np.zeros_like(distances)
    for k in range(1, len(busy)):  # Lindley: what is left of the work found by the round before
        waited[k] = np.maximum(0.0, waited[k - 1] + busy[k - 1] - distances[k])
    ttft = np.percentile(waited + answered[:, None], percentile, axis=0)
    batches = batches_of(server.degree)
    return [
        ContextPoint(
            degree=server.degree, utilisation=float(u), rounds_per_s=batches * float(u) / mean, ttft_s=float(t)
        )
        for u, t in zip(utilisations, ttft, strict=True)
    ]


def generation_curve(server: Server, rounds: RoundShape, *, waiting_s: float) -> list[GenerationPoint]:
    """Return tokens per second against ITL of one generation server, as far as its places and its KV cache go.

    ``waiting_s`` is the TTFT: a session's history stays in the cache while it waits, and between rounds.
    """
    return _curve(
        server,
        rounds,
        server.concurrencies,
        itl=lambda concurrency: server.itl(concurrency, rounds.decode_context),
        waiting_s=waiting_s,
    )


def aggregated_curve(server: Server, rounds: RoundShape) -> list[GenerationPoint]:
    """Return tokens per second against ITL of one server that does both, as far as its places and its KV cache go.

    Each round's prefill rides along with the steps of its batch, which takes p seconds more than decoding alone. So
    does every round of a batch of n once per answer of o tokens, and the time between two tokens is T_dec + n p / o.
    Histories are in its own cache. Where nothing is known of prefills beside a batch there is no curve.
    """
    return _curve(
        server,
        rounds,
        server.serving_concurrencies,
        itl=lambda concurrency: server.serving_itl(concurrency, rounds),
        waiting_s=0.0,
    )


def _curve(
    server: Server,
    rounds: RoundShape,
    concurrencies: Sequence[int],
    *,
    itl: Callable[[int], float],
    waiting_s: float,
) -> list[GenerationPoint]:
    """Return the points of a server whose ``itl`` follows from its concurrency."""
    points = []
    for concurrency in concurrencies:
        seconds = itl(concurrency)
        answering = rounds.output_tokens * seconds
        idle = (float(rounds.gap.mean()) * rounds.idle_context + waiting_s * float(rounds.history.mean())) / answering
        held = concurrency * (rounds.decode_context + idle)
        if held > server.kv_capacity or not math.isfinite(seconds):
            break
        points.append(
            GenerationPoint(
                degree=server.degree,
                concurrency=concurrency,
                itl_s=seconds,
                tokens_per_s=concurrency / seconds,
                rounds_per_s=concurrency / answering,
                kv_share=held / server.kv_capacity,
            )
        )
    return points
