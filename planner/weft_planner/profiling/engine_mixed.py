"""Time a mixed step: the one gap between a batch's tokens in which another prompt was prefilled."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from statistics import median
from time import perf_counter

from weft_planner.profiling.engine_client import EngineClient, FirstToken, Prompt, TokenArrivals
from weft_planner.profiling.engine_errors import EngineError, NotMeasurable

_POLL_SECONDS = 0.002
_TOGETHER = 0.3
"""Tokens of one step come closer together than this share of the step."""
_MOST_TOKENS_BESIDE = 4000
"""A batch decodes at most this many tokens each while prefills are sent beside it."""
_WAITS_STEPS = 64
"""A prefill that was in none of so many steps waits for a place in the batch, which it would get at its end."""
_WAITS_S = 1.0
"""And for so long: steps may be faster than its way to the engine."""


class AloneError(NotMeasurable):
    """Report a prefill that ran between two steps and not within one."""


class FullError(NotMeasurable):
    """Report a batch that takes all places of the engine."""


async def mixed_step(engine: EngineClient, prompts: Sequence[Prompt], beside: Prompt, *, limit: int) -> float:
    """Return the seconds of the step of a batch in which ``beside`` was prefilled.

    ``limit`` is the longest sequence that the engine takes, in tokens; 0 where it does not say.

    Raises:
        AloneError: it was prefilled between two steps.
        FullError: the engine lets it wait until the batch has ended.
        NotMeasurable: the engine spread it over several steps, or noise hid the step.
        EngineError: the engine refused or failed.
    """
    longest = max(map(len, prompts))
    most = min(_MOST_TOKENS_BESIDE, limit - longest) if limit else _MOST_TOKENS_BESIDE
    arrivals = TokenArrivals()
    batch = asyncio.create_task(engine.decode(prompts, max_tokens=most, into=arrivals))
    try:
        await _until(batch, lambda: _count(arrivals) >= 3)
        sent = perf_counter()
        first = await _first_beside(engine, beside, arrivals, batch=len(prompts))
        seen = _count(arrivals)
        await _until(batch, lambda: _count(arrivals) >= seen + 2)
    finally:
        batch.cancel()  # closing the connection ends the batch
        with suppress(asyncio.CancelledError, EngineError):
            await batch
    return _gap(arrivals, sent=sent, first=first.at)


async def _first_beside(engine: EngineClient, prompt: Prompt, arrivals: TokenArrivals, *, batch: int) -> FirstToken:
    """Return the first token of a prompt that is sent beside a batch.

    Raises:
        FullError: the batch goes on without it; it would get its place when the batch has ended, minutes later.
    """
    begin = _count(arrivals)
    asked = asyncio.create_task(engine.first_token(prompt))
    try:
        while not (await asyncio.wait({asked}, timeout=_WAITS_S))[0]:
            if _count(arrivals) - begin > _WAITS_STEPS:
                raise FullError(f"the engine takes no prefill beside a batch of {batch}; all of its places are taken")
        return asked.result()
    finally:
        asked.cancel()
        with suppress(asyncio.CancelledError, EngineError):
            await asked


async def _until(batch: "asyncio.Task[None]", ready: Callable[[], bool]) -> None:
    """Wait for a number of steps, as long as the batch lives."""
    while not ready():
        if batch.done():
            await batch
            raise NotMeasurable("the batch ended before the prefill beside it")
        await asyncio.sleep(_POLL_SECONDS)


def _gap(arrivals: TokenArrivals, *, sent: float, first: float) -> float:
    """Return the step in which the prefill ran: the gap between tokens at whose end its own first token came."""
    ends = list(_step_ends(arrivals))
    gaps = [(b - a, a, b) for a, b in pairwise(ends)]
    before = [gap for gap, _, b in gaps if b <= sent]
    around = [(abs(b - first), gap) for gap, a, b in gaps if a >= sent - max(before, default=0.0) and b > sent]
    if not before or not around:
        raise NotMeasurable("the batch gave no steps around the prefill")
    usual = median(before)
    distance, gap = min(around)
    if distance > _TOGETHER * usual:
        raise AloneError("the first token came between two steps")
    inside = [max(0.0, g - usual) for g, _, b in gaps if sent < b <= first + _TOGETHER * usual]
    if sum(inside) > 1.5 * max(gap - usual, 0.0):
        raise NotMeasurable("the engine spread it over several steps; its token budget is smaller")
    return gap


def _count(arrivals: TokenArrivals) -> int:
    """Return how many tokens the first sequence has."""
    return len(arrivals.times.get(0, ()))


def _step_ends(arrivals: TokenArrivals) -> Iterator[float]:
    """Yield when each step ended: the median arrival of its tokens, so that one late event does not count."""
    rows = list(arrivals.times.values())
    first = rows[0]
    # Tokens of one step may come in several pieces: half a gap tells them from those of the step before.
    begin = max(times[0] for times in rows) - (first[-1] - first[0]) / max(len(first) - 1, 1) / 2
    together = [[at for at in times if at >= begin] for times in rows]
    for ends in zip(*together, strict=False):
        yield median(ends)
