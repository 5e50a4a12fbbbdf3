"""Draw throughput-latency curves of one context, generation or aggregated server from a cost profile."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weft_core.cost import CostProfile
from weft_core.parallelism import Degree, batches_of, gpus_of
from weft_planner.workload.distributions import Floats
from weft_planner.workload.sessions import Sample

MOST_ROUNDS = 4000
"""Rounds that a curve is drawn from: P95 within a few percent in about 20 ms per degree."""
UTILISATIONS = tuple(round(0.05 * k, 2) for k in range(1, 20))
"""Shares of a context server's time in use; beyond 95 % its queue takes longer to settle than the sample is long."""
RIDING_ROUNDS = 200
"""Rounds of which the prefills beside a batch are timed, at each concurrency."""
LARGEST_BATCH = 1024
"""Sequences decoded at once at most, the largest default of common engines."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundShape:
    """What requests look like: tokens of history, prompt and answer of each round, and the idle seconds after it."""

    history: Floats
    increment: Floats
    tokens: Floats
    gap: Floats
    arrivals: Floats
    """Distances between arrivals at one round per second."""

    @property
    def output_tokens(self) -> float:
        """Return the mean length of an answer."""
        return float(self.tokens.mean())

    @property
    def input_tokens(self) -> float:
        """Return the mean length of a whole prompt, history included."""
        return float((self.history + self.increment).mean())

    @property
    def decode_context(self) -> float:
        """Return the tokens that a sequence holds while it is decoded, on average over its steps."""
        held = self.history + self.increment + self.tokens / 2
        return float((held * self.tokens).sum() / self.tokens.sum())

    @property
    def idle_context(self) -> float:
        """Return the tokens that a session holds between its rounds, on average over that time."""
        held, gap = self.history + self.increment + self.tokens, self.gap
        return float((held * gap).sum() / gap.sum()) if gap.sum() > 0 else 0.0


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


def rounds_of(sample: Sample, *, seed: int) -> RoundShape:
    """Take the rounds of a sample, as evenly spread as they are many, and Poisson arrivals for them."""
    chosen = np.linspace(0, sample.rows - 1, min(sample.rows, MOST_ROUNDS)).astype(np.int64)
    last = np.append(sample.first_row[1:], sample.rows) - 1
    gap = sample.gap.copy()
    gap[last] = 0.0  # a session's last round keeps no KV
    return RoundShape(
        history=sample.history[chosen],
        increment=sample.increment[chosen],
        tokens=sample.tokens[chosen],
        gap=gap[chosen],
        arrivals=np.random.default_rng((seed, 4)).exponential(size=len(chosen)),
    )


def context_curve(
    profile: CostProfile, rounds: RoundShape, *, degree: Degree, percentile: float, bidirectional: bool
) -> list[ContextPoint]:
    """Return TTFT against request rate of one context server: Poisson arrivals, in order, evenly over its batches."""
    history = rounds.history if bidirectional else np.zeros_like(rounds.history)
    computed = rounds.increment if bidirectional else rounds.history + rounds.increment
    service = np.array(
        [profile.t_pre(history=h, increment=n, degree=degree) for h, n in zip(history, computed, strict=True)]
    )
    moved = np.array([_transfers(profile, h, n, degree=degree) for h, n in zip(history, computed, strict=True)])
    mean = float(service.mean())
    utilisations = np.array(UTILISATIONS)
    distances = rounds.arrivals[:, None] * mean / utilisations[None, :]
    waited = np.zeros_like(distances)
    for k in range(1, len(service)):  # Lindley: what is left of the work found by the round before
        waited[k] = np.maximum(0.0, waited[k - 1] + service[k - 1] - distances[k])
    ttft = np.percentile(waited + (service + moved)[:, None], percentile, axis=0)
    return [
        ContextPoint(
            degree=degree, utilisation=float(u), rounds_per_s=batches_of(degree) * float(u) / mean, ttft_s=float(t)
        )
        for u, t in zip(utilisations, ttft, strict=True)
    ]


def _transfers(profile: CostProfile, history: float, computed: float, *, degree: Degree) -> float:
    """Return the longest time, over destinations, of reading the history and sending the result back."""
    there = [t for (source, to, _), t in profile.transfers.items() if source == degree and to in profile.degrees]
    back = [t for (source, to, _), t in profile.transfers.items() if to == degree and source in profile.degrees]
    return max((t.seconds(computed) for t in there), default=0.0) + max((t.seconds(history) for t in back), default=0.0)


def generation_curve(
    profile: CostProfile, rounds: RoundShape, *, degree: Degree, waiting_s: float
) -> list[GenerationPoint]:
    """Return tokens per second against ITL of one generation server, as far as its KV cache goes.

    ``waiting_s`` is the TTFT: a session's history stays in the cache while it waits, and between rounds.
    """

    def step(batch: float, context: float) -> float:
        return profile.t_dec(batch=batch, context=context, degree=degree)

    return _curve(profile, rounds, degree=degree, itl=step, waiting_s=waiting_s)


def aggregated_curve(profile: CostProfile, rounds: RoundShape, *, degree: Degree) -> list[GenerationPoint]:
    """Return tokens per second against ITL of one server that does both, as far as its KV cache goes.

    Each round's prefill rides along with the steps of its batch, which takes p seconds more than decoding alone. So
    does every round of a batch of n once per answer of o tokens, and the time between two tokens is T_dec + n p / o.
    Histories are in its own cache. Where the profile does not know chunks beside a batch there is no curve.
    """
    if not any(piece.per_chunk_token for piece in profile.degrees[degree].decode):
        return []
    every = max(1, len(rounds.history) // RIDING_ROUNDS)
    prompts = [*zip(rounds.history[::every], rounds.increment[::every], strict=True)]

    def itl(batch: float, context: float) -> float:
        step = profile.t_dec(batch=batch, context=context, degree=degree)
        with_prompt = [
            profile.t_step(batch=batch, context=context, chunk=n, chunk_history=h, degree=degree) for h, n in prompts
        ]
        return step + batch * (float(np.mean(with_prompt)) - step) / rounds.output_tokens

    return _curve(profile, rounds, degree=degree, itl=itl, waiting_s=0.0)


def _curve(
    profile: CostProfile,
    rounds: RoundShape,
    *,
    degree: Degree,
    itl: Callable[[float, float], float],
    waiting_s: float,
) -> list[GenerationPoint]:
    """Return the points of a server whose ``itl`` follows from the sequences of a batch and the tokens they hold."""
    capacity = profile.kv_capacity(degree)
    points = []
    for concurrency in _concurrencies():
        batch = max(1.0, concurrency / batches_of(degree))
        seconds = itl(batch, batch * rounds.decode_context)
        answering = rounds.output_tokens * seconds
        idle = (float(rounds.gap.mean()) * rounds.idle_context + waiting_s * float(rounds.history.mean())) / answering
        held = concurrency * (rounds.decode_context + idle)
        if held > capacity:
            break
        points.append(
            GenerationPoint(
                degree=degree,
                concurrency=concurrency,
                itl_s=seconds,
                tokens_per_s=concurrency / seconds,
                rounds_per_s=concurrency / answering,
                kv_share=held / capacity,
            )
        )
    return points


def _concurrencies() -> list[int]:
    """Return 1, 2, 3, 4, 6, 8, 12, 16, … up to the largest batch."""
    powers = [2**k for k in range(LARGEST_BATCH.bit_length())]
    between = [3 * 2**k for k in range(LARGEST_BATCH.bit_length())]
    return sorted(n for n in {*powers, *between} if n <= LARGEST_BATCH)
