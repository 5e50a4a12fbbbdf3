"""A server whose times were measured on a live engine by ``weft profile sweep``.

A sweep has prompts of a few lengths and no histories, a workload has all lengths: times between measured lengths are
interpolated, those of longer ones extrapolated.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from weft_core.cost import CostProfile
from weft_core.parallelism import Degree, batches_of
from weft_planner.profiling.sweep_file import GenerationRow, ServingRow, Sweep
from weft_planner.rate_match.queueing import Prefills
from weft_planner.rate_match.rounds import RoundShape
from weft_planner.rate_match.servers import places, prefills_beside, transfers_of
from weft_planner.simulation.options import NO_LIMITS, StepLimits
from weft_planner.workload.distributions import Floats

LEAST_SHARE = 0.5
"""Of a measured step, what one of shorter contexts takes at least: most of a step is reading weights."""


NOISE = 0.1
"""Share by which two steps may contradict each other without a remark."""


class MeasuredServer:
    """The server of a sweep. KV transfers are in no sweep, nor is the KV capacity always: these are the profile's."""

    def __init__(self, sweep: Sweep, *, profile: CostProfile | None = None, decode: StepLimits = NO_LIMITS) -> None:
        """``decode`` limits concurrency; a ``profile`` without the degree is none."""
        self.degree: Degree = sweep.degree
        self._sweep = sweep
        self._profile = profile if profile is not None and sweep.degree in profile.degrees else None
        self._decode = decode
        self._most = places(decode, sweep.degree) or math.inf
        self._prompts, self._busy, self._alone = _context_times(sweep)
        self._steps = _by_context(sweep.generation)
        self._per_token = _seconds_per_context_token(sweep.generation)

    @property
    def kv_capacity(self) -> float:
        """Return the tokens that its KV cache holds by the engine, else by the profile; infinite if neither says."""
        if self._sweep.kv_capacity_tokens:
            return self._sweep.kv_capacity_tokens
        return math.inf if self._profile is None else self._profile.kv_capacity(self.degree)

    @property
    def concurrencies(self) -> list[int]:
        """Return those that were measured, and the places of the service's engines where these are fewer."""
        measured = {row.concurrency for row in self._sweep.generation}
        return self._limited(measured)

    @property
    def serving_concurrencies(self) -> list[int]:
        """Return how many decoded on average where clients were served; empty where that or a part was not measured."""
        if not (self._sweep.context and self._sweep.generation):
            return []
        most = max(row.concurrency for row in self._sweep.generation)
        measured = {max(1, round(row.tokens_per_second * row.itl)) for row in self._sweep.aggregated}
        return self._limited({n for n in measured if n <= most})

    def _limited(self, measured: set[int]) -> list[int]:
        within = {n for n in measured if n <= self._most}
        return sorted(within | {int(self._most)} if within != measured and within else within)

    def busy_seconds(self, history: Floats, increment: Floats) -> Floats:
        """Return how long each prompt keeps a batch, by the most prompts per second that the engine took.

        A prompt behind a history takes what it adds to a prompt of the whole length, and no less than one of its own.
        """
        return self._prefill(self._busy, history, increment)

    def prefill_seconds(self, history: Floats, increment: Floats) -> Floats:
        """Return each prompt's TTFT on an engine that does nothing else."""
        return self._prefill(self._alone, history, increment)

    def _prefill(self, seconds: Floats, history: Floats, increment: Floats) -> Floats:
        alone = _interpolated(self._prompts, seconds, increment)
        added = _interpolated(self._prompts, seconds, history + increment) - _interpolated(
            self._prompts, seconds, history
        )
        return np.where(history > 0, np.maximum(alone, added), alone)

    def transfer_seconds(self, history: Floats, increment: Floats) -> Floats:
        """Return the profile's T_kv both ways; 0 without one."""
        if self._profile is None:
            return np.zeros_like(history)
        return transfers_of(self._profile, self.degree, history, increment)

    def itl(self, concurrency: int, held: float) -> float:
        """Return the seconds of a step: as measured at the nearest context, and the same for each further token."""
        covering = {
            context: (counts, seconds)
            for context, (counts, seconds) in self._steps.items()
            if counts[0] <= concurrency <= counts[-1]
        } or self._steps
        context = min(covering, key=lambda one: abs(one - held))
        counts, seconds = covering[context]
        measured = float(np.interp(concurrency, counts, seconds))
        return max(LEAST_SHARE * measured, measured + self._per_token * concurrency * (held - context))

    def serving_itl(self, concurrency: int, rounds: RoundShape) -> float:
        """Return a step and what prefills add to it."""
        added = float(self._added(concurrency, rounds).mean()) / batches_of(self.degree)
        return self.itl(concurrency, rounds.decode_context) + concurrency * added / rounds.output_tokens

    def serving_prefills(self, concurrency: int, rounds: RoundShape) -> Prefills:
        """Return what they add to the steps of their batch, and until the answer these steps themselves."""
        added = self._added(concurrency, rounds)
        return prefills_beside(added, rounds.increment, self, self._decode, concurrency=concurrency, rounds=rounds)

    def _added(self, concurrency: int, rounds: RoundShape) -> Floats:
        """Return what prefills add to their batch's steps: as large a share of their own time as was measured."""
        found = sorted((row.tokens_per_second * row.itl, self._added_share(row)) for row in self._sweep.aggregated)
        share = float(np.interp(concurrency, [n for n, _ in found], [share for _, share in found]))
        return share * self.busy_seconds(rounds.history, rounds.increment)

    def _added_share(self, row: ServingRow) -> float:
        """Return how much longer a prompt made its batch's steps, as a share of the time that it takes by itself."""
        decoding = row.tokens_per_second * row.itl
        step = self.itl(max(1, round(decoding)), row.prompt_tokens + row.answer_tokens / 2)
        alone = float(self.busy_seconds(np.zeros(1), np.array([float(row.prompt_tokens)]))[0])
        return max(0.0, row.itl - step) * row.answer_tokens / decoding / (alone / batches_of(self.degree))

    def remarks(self, rounds: RoundShape) -> list[str]:
        """Return what of the curves was not measured on the engine."""
        found = []
        if self._sweep.context:
            longest, measured = float((rounds.history + rounds.increment).max()), int(self._prompts[-1])
            beyond = float(((rounds.history + rounds.increment) > measured).mean())
            if beyond > 0:
                found.append(
                    f"{beyond:.0%} of the prompts are longer than the {measured} tokens that were measured, up to "
                    f"{longest:.0f}: their times are extrapolated (weft profile sweep --prompts)"
                )
            if float(rounds.history.max()) > 0:
                found.append("a prompt behind a history counts as what it adds to one of the whole length")
            if self._profile is None:
                found.append("KV transfers are not counted, because no cost profile has this degree")
            else:
                found.append("KV transfers are those of the cost profile")
        if odd := _contradictions(self._sweep.generation):
            found.append(
                f"steps of {', '.join(odd)} were measured shorter than those of fewer sequences, which is noise: sweep "
                "again on a quiet machine, with more --steps"
            )
        if self._sweep.generation and len(self._steps) == 1:
            context = next(iter(self._steps))
            found.append(
                f"steps were measured with {context} tokens a sequence only, and hold {rounds.decode_context:.0f} here "
                "(weft profile sweep --contexts)"
            )
        if self._sweep.generation and not math.isfinite(self.kv_capacity):
            found.append("the engine's KV capacity is not known, so curves end where measurements do")
        return found


def _context_times(sweep: Sweep) -> tuple[Floats, Floats, Floats]:
    """Return the measured lengths, and for each the seconds of a batch and of a lone client; both grow with it."""
    lengths = sorted({row.prompt_tokens for row in sweep.context})
    busy, alone = list[float](), list[float]()
    for length in lengths:
        rows = [row for row in sweep.context if row.prompt_tokens == length]
        busy.append(batches_of(sweep.degree) / max(row.prompts_per_second for row in rows))
        alone.append(min(rows, key=lambda row: row.concurrency).ttft.p50)
    return np.array(lengths, dtype=float), np.maximum.accumulate(busy or [0.0]), np.maximum.accumulate(alone or [0.0])


def _interpolated(lengths: Floats, seconds: Floats, wanted: Floats) -> Floats:
    """Return times at other lengths; beyond the longest, on the line of the last two, or in proportion to one."""
    found: Floats = np.interp(wanted, lengths, seconds)
    if len(lengths) > 1:
        slope = float((seconds[-1] - seconds[-2]) / (lengths[-1] - lengths[-2]))
    else:
        slope = float(seconds[-1] / lengths[-1])
    found += slope * np.maximum(0.0, wanted - lengths[-1])
    return found


def _by_context(rows: Sequence[GenerationRow]) -> Mapping[int, tuple[list[int], list[float]]]:
    """Return concurrencies and their steps, by the tokens that each sequence held.

    More sequences never take less: where noise says so, a step counts as long as that of fewer.
    """
    found: dict[int, tuple[list[int], list[float]]] = {}
    for row in sorted(rows, key=lambda one: one.concurrency):
        counts, seconds = found.setdefault(row.context_tokens, ([], []))
        counts.append(row.concurrency)
        seconds.append(max([row.itl, *seconds[-1:]]))
    return found


def _contradictions(rows: Sequence[GenerationRow]) -> list[str]:
    """Return the rows that took clearly less than one of fewer sequences with as many tokens."""
    return [
        f"{row.context_tokens} x {row.concurrency}"
        for row in rows
        if any(
            other.context_tokens == row.context_tokens
            and other.concurrency < row.concurrency
            and row.itl < (1 - NOISE) * other.itl
            for other in rows
        )
    ]


def _seconds_per_context_token(rows: Sequence[GenerationRow]) -> float:
    """Return what a token more in a batch's context adds to a step: least squares over equal concurrencies."""
    pairs = [
        (one.concurrency * (other.context_tokens - one.context_tokens), other.itl - one.itl)
        for one, other in combinations(rows, 2)
        if one.concurrency == other.concurrency and one.context_tokens != other.context_tokens
    ]
    squares = sum(tokens**2 for tokens, _ in pairs)
    return max(0.0, sum(tokens * seconds for tokens, seconds in pairs) / squares) if squares else 0.0
