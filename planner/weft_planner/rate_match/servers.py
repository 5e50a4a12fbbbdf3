"""What curves are drawn from: the times of one server of one degree, here by a cost profile and the engine's limits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from weft_core.cost import CostProfile
from weft_core.parallelism import Degree, batches_of
from weft_planner.phases.latency import prefill_seconds
from weft_planner.rate_match.queueing import Prefills
from weft_planner.rate_match.rounds import RoundShape
from weft_planner.simulation.options import NO_LIMITS, StepLimits
from weft_planner.workload.distributions import Floats

LARGEST_BATCH = 1024
"""Sequences decoded at once at most where nothing limits them, the largest default of common engines."""
SAMPLED_ROUNDS = 200
"""Rounds of which the prefills beside a batch are timed, at each concurrency."""


class Server(Protocol):
    """One server, as a context server, a generation server, or one that does both."""

    @property
    def degree(self) -> Degree:
        """Return how it splits the model."""
        ...

    @property
    def kv_capacity(self) -> float:
        """Return the tokens that its KV cache holds."""
        ...

    @property
    def concurrencies(self) -> Sequence[int]:
        """Return how many sequences it may decode at once, in order."""
        ...

    @property
    def serving_concurrencies(self) -> Sequence[int]:
        """Return the same where prefills run beside them; empty where nothing is known of that."""
        ...

    def busy_seconds(self, history: Floats, increment: Floats) -> Floats:
        """Return for how long each prefill keeps one of its batches."""
        ...

    def prefill_seconds(self, history: Floats, increment: Floats) -> Floats:
        """Return how long each prefill takes that has not to wait."""
        ...

    def transfer_seconds(self, history: Floats, increment: Floats) -> Floats:
        """Return how long it takes to read the histories and to send the results, to the worst destination."""
        ...

    def itl(self, concurrency: int, held: float) -> float:
        """Return the seconds of a step with so many sequences that hold so many tokens each."""
        ...

    def serving_itl(self, concurrency: int, rounds: RoundShape) -> float:
        """Return the mean seconds between two tokens where every answer's prefill ran beside the batch.

        Infinite where the steps have no token left for prefills.
        """
        ...

    def serving_prefills(self, concurrency: int, rounds: RoundShape) -> Prefills:
        """Return the prefills that run beside such a batch."""
        ...


@dataclass(frozen=True, slots=True)
class ProfiledServer:
    """A server whose times are those of a cost profile, within what the steps of its role may have."""

    profile: CostProfile
    degree: Degree
    prefill: StepLimits = NO_LIMITS
    decode: StepLimits = NO_LIMITS

    @property
    def kv_capacity(self) -> float:
        """Return the tokens that its KV cache holds."""
        return self.profile.kv_capacity(self.degree)

    @property
    def concurrencies(self) -> list[int]:
        """Return 1, 2, 3, 4, 6, 8, 12, 16, … up to the places of its batches."""
        most = places(self.decode, self.degree)
        largest = LARGEST_BATCH if most is None else most
        doublings = range(largest.bit_length())
        found = {n for k in doublings for n in (2**k, 3 * 2**k) if n <= largest}
        return sorted(found if most is None else found | {most})

    @property
    def serving_concurrencies(self) -> list[int]:
        """Return the same; none where the profile does not know chunks beside a batch."""
        known = any(piece.per_chunk_token for piece in self.profile.degrees[self.degree].decode)
        return self.concurrencies if known else []

    def busy_seconds(self, history: Floats, increment: Floats) -> Floats:
        """Return T_pre, of several steps where a prompt has more tokens than a step may have."""
        return prefill_seconds(
            self.profile, history=history, increment=increment, degree=self.degree, most=self.prefill.max_tokens
        )

    def prefill_seconds(self, history: Floats, increment: Floats) -> Floats:
        """Return the same: a batch does nothing else meanwhile."""
        return self.busy_seconds(history, increment)

    def transfer_seconds(self, history: Floats, increment: Floats) -> Floats:
        """Return T_kv both ways."""
        return transfers_of(self.profile, self.degree, history, increment)

    def itl(self, concurrency: int, held: float) -> float:
        """Return T_dec of one of its batches."""
        batch = fullest_batch(concurrency, self.degree)
        return self.profile.t_dec(batch=batch, context=batch * held, degree=self.degree)

    def serving_itl(self, concurrency: int, rounds: RoundShape) -> float:
        """Return T_dec and what prefills add: p seconds each, one per sequence in an answer's time, n p / o.

        Their chunks take the tokens of a step that the batch leaves.
        """
        batch = fullest_batch(concurrency, self.degree)
        if room_beside(batch, self.decode) < 1:
            return math.inf
        added = self._sampled(concurrency, rounds)[1]
        return self.itl(concurrency, rounds.decode_context) + batch * float(added.mean()) / rounds.output_tokens

    def serving_prefills(self, concurrency: int, rounds: RoundShape) -> Prefills:
        """Return what they add to the steps of their batch, and until the answer these steps themselves."""
        prompts, added = self._sampled(concurrency, rounds)
        count = len(rounds.increment)
        return prefills_beside(
            np.resize(added, count),
            np.resize(prompts, count),
            self,
            self.decode,
            concurrency=concurrency,
            rounds=rounds,
        )

    def _sampled(self, concurrency: int, rounds: RoundShape) -> tuple[Floats, Floats]:
        """Return the new tokens of some prompts, and how much longer each makes the steps of such a batch."""
        batch = fullest_batch(concurrency, self.degree)
        room = room_beside(batch, self.decode)
        every = max(1, len(rounds.history) // SAMPLED_ROUNDS)
        history, increment = rounds.history[::every], rounds.increment[::every]
        step = self.itl(concurrency, rounds.decode_context)
        added = [
            self._added(batch, batch * rounds.decode_context, h, n, room=room, step=step)
            for h, n in zip(history.tolist(), increment.tolist(), strict=True)
        ]
        return increment, np.array(added)

    def _added(
        self, batch: float, context: float, history: float, increment: float, *, room: float, step: float
    ) -> float:
        """Return how much longer the steps with a prefill's chunks take than as many without."""
        seconds, done = 0.0, 0.0
        while done < increment:
            chunk = min(room, increment - done)
            with_chunk = self.profile.t_step(
                batch=batch, context=context, chunk=chunk, chunk_history=history + done, degree=self.degree
            )
            seconds += with_chunk - step
            done += chunk
        return seconds


def places(limits: StepLimits, degree: Degree) -> int | None:
    """Return how many sequences all batches of a server may have; None without a limit."""
    of_batch = limits.sequences_of_batch(degree)
    return None if of_batch is None else of_batch * batches_of(degree)


def fullest_batch(concurrency: int, degree: Degree) -> int:
    """Return the sequences of a worker's fullest batch, for which the others wait: ranks take their steps together."""
    return math.ceil(concurrency / batches_of(degree))


def room_beside(batch: float, limits: StepLimits) -> float:
    """Return the tokens of a step that a batch leaves for prefills."""
    return math.inf if limits.max_tokens is None else limits.max_tokens - math.ceil(batch)


def prefills_beside(
    added: Floats, prompts: Floats, server: Server, limits: StepLimits, *, concurrency: int, rounds: RoundShape
) -> Prefills:
    """Return prefills of so many new tokens that add so many seconds to the steps of a batch.

    A prompt waits for the end of a step, and for those before it: for what they add to steps, and for the steps that
    their tokens fill. Its answer takes all steps that have a chunk of it.
    """
    batches = batches_of(server.degree)
    room = room_beside(fullest_batch(concurrency, server.degree), limits)
    step = server.itl(concurrency, rounds.decode_context)
    return Prefills(
        busy=added + step * prompts / room,
        answered=added + step * (np.maximum(1, np.ceil(prompts / room)) + 1),
        batches=batches,
    )


def transfers_of(profile: CostProfile, degree: Degree, history: Floats, increment: Floats) -> Floats:
    """Return the longest time, over destinations, of reading histories and sending the results back."""
    others = profile.degrees
    there = [t for (source, to, _), t in profile.transfers.items() if source == degree and to in others]
    back = [t for (source, to, _), t in profile.transfers.items() if to == degree and source in others]
    read = np.max([_moved(t.alpha, t.per_token, history) for t in back], axis=0) if back else 0.0
    sent = np.max([_moved(t.alpha, t.per_token, increment) for t in there], axis=0) if there else 0.0
    return np.zeros_like(history) + read + sent


def _moved(alpha: float, per_token: float, tokens: Floats) -> Floats:
    """Return T_kv of each; nothing is sent of nothing."""
    return np.where(tokens > 0, alpha + per_token * tokens, 0.0)
