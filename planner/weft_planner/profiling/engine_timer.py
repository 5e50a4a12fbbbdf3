"""Time one shape on a live engine: a prefill, a step, a mixed step or a KV transfer.

A *prefill* is the time to the first token of a prompt whose history is in the prefix cache. A *step* is the mean gap
between tokens of a batch that decodes together. A *mixed step* is the one gap of such a batch in which another prompt
was prefilled. A *transfer* is the time of a token on the reading engine, less that of the same prompt once its KV is
there; it is timed both ways (``engine_transfers.py``).
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from statistics import median

from weft_planner.profiling.engine_budget import EngineSpeed
from weft_planner.profiling.engine_client import EngineClient, EngineFacts, TokenArrivals
from weft_planner.profiling.engine_errors import EngineError, NotMeasurable
from weft_planner.profiling.engine_grid import prompt_length
from weft_planner.profiling.engine_mixed import AloneError, FullError, mixed_step
from weft_planner.profiling.engine_transfers import Transfers
from weft_planner.profiling.measurements import GridCell
from weft_planner.profiling.prompts import PromptGenerator

_ATTEMPTS = 3
_ALONE = 2
"""So many shapes whose prefill ran between two steps, and none within one, are taken for the engine's way."""


class EngineTimer:
    """Time shapes on one engine, and transfers from it to another."""

    def __init__(
        self, engine: EngineClient, facts: EngineFacts, *, steps: int, seed: int = 0, reader: EngineClient | None = None
    ) -> None:
        """``steps`` is how many decode steps a timing has, ``reader`` the decode engine that reads KV from this one.

        Prompts are random under the seed.
        """
        self._engine = engine
        self._facts = facts
        self._steps = steps
        self._texts = PromptGenerator(facts.token_ids, seed=seed)
        self._reader = reader
        self._transfers: Transfers | None = None
        self._both_ways = False
        self._read_before: float | None = None
        self._warm = False
        self._cached: dict[str, int] = {}
        self._alone = 0.0
        self._full = 0
        self.cache_unreported = False
        """Whether the engine does not say how much of a prompt it had cached: histories are then taken as cached."""

    async def warm_up(self) -> None:
        """Have the engine compile and open what it compiles and opens at first use, once."""
        if self._warm:
            return
        self._warm = True
        for length in (64, 1024):
            limit = self._facts.max_model_len or length + 2
            with suppress(NotMeasurable):
                await self._engine.first_token(self._texts.fresh(min(length, limit - 2)))
        beside = TokenArrivals()
        await self._engine.decode([self._texts.fresh(8) for _ in range(4)], max_tokens=8, into=beside)

    async def measure_speed(self) -> EngineSpeed:
        """Return about how fast the engine is, by its shortest of a few requests."""
        await self.warm_up()
        limit = self._facts.max_model_len or 1 << 20
        short, long = 32, min(1024, limit // 2)
        times = {
            n: [(await self._engine.first_token(self._texts.fresh(n))).seconds for _ in "ab"] for n in (short, long)
        }
        first, second = min(times[short]), min(times[long])
        arrivals = TokenArrivals()
        await self._engine.decode([self._texts.fresh(8)], max_tokens=9, into=arrivals)
        at = arrivals.times.get(0, [0.0])
        return EngineSpeed(first, max(0.0, second - first) / (long - short), (at[-1] - at[0]) / max(1, len(at) - 1))

    async def open_transfers(self, cells: Sequence[GridCell], *, timing_s: float) -> None:
        """Let the engines find one another before these transfers; one timing goes on for at most ``timing_s``."""
        if self._reader is None:
            return
        self._both_ways = any(cell.way == "back" for cell in cells)
        self._transfers = Transfers(self._engine, self._reader, self._texts, share_s=timing_s)
        await self._transfers.warm_up(back=self._both_ways, longest=max(cell.tokens for cell in cells))
        self._transfers.tokens_read.clear()
        self._read_before = await self._reader.bytes_read()

    async def kv_bytes_per_token(self) -> float | None:
        """Return the bytes that the reading engine read for each token of the transfers; None where it does not say."""
        if self._transfers is None or self._reader is None:
            return None
        counted = await self._reader.bytes_read()
        read = sum(-(-n // self._facts.block_size) * self._facts.block_size for n in self._transfers.tokens_read)
        if counted is None or self._read_before is None or not read:
            return None
        return (counted - self._read_before) / read

    def forget_cached(self) -> None:
        """Fill prefixes again before the next timing: what else the engine was sent may have evicted them."""
        self._cached.clear()

    async def time_cell(self, cell: GridCell) -> float:
        """Time a shape once, in seconds.

        Raises:
            NotMeasurable: the engine cannot show it, or noise hid it.
            EngineError: the engine failed.
        """
        if cell.function == "prefill":
            return await self._prefill(cell.history, cell.increment)
        if cell.function == "transfer":
            return await self._transfer(cell)
        return await (self._mixed(cell) if cell.chunk else self._step(cell))

    async def _prefill(self, history: int, increment: int) -> float:
        first = await self._engine.first_token(await self._after(history, increment))
        self.cache_unreported |= first.cached is None and history > 0
        if first.cached is not None and first.cached != history:
            self._cached.pop("history", None)  # it was thrown out: fill it again, once
            first = await self._engine.first_token(await self._after(history, increment))
            if first.cached == 0 < history:
                raise EngineError("the engine caches no prefixes; start it with prefix caching to measure histories")
            if first.cached != history:
                raise NotMeasurable(f"the engine had {first.cached} tokens of it cached; is its KV block size known?")
        return first.seconds

    async def _after(self, history: int, increment: int) -> list[int]:
        """Return a prompt of new tokens behind a history that is in the prefix cache."""
        if history:
            await self._fill(["history"], history)
        return self._texts.base("history", history) + self._texts.fresh(increment)

    async def _fill(self, names: Sequence[str], length: int) -> None:
        """Have the first tokens of texts cached; what was filled before is sent again only where nobody would tell.

        An engine that does not say what it had cached may have thrown it out: sending it once more costs a token.
        """
        wanted = [name for name in names if self.cache_unreported or self._cached.get(name, 0) < length]
        for name in wanted:
            await self._engine.prime([self._texts.base(name, length)])
            self._cached[name] = length

    async def _batch(self, cell: GridCell) -> list[list[int]]:
        """Return a batch of prompts of which everything but the last token is cached."""
        names = [f"sequence {i}" for i in range(cell.batch)]
        length = prompt_length(cell, self._steps)
        await self._fill(names, length)
        return [self._texts.base(name, length) for name in names]

    async def _step(self, cell: GridCell) -> float:
        arrivals, steps = TokenArrivals(), self._steps
        prompts = await self._batch(cell)
        # The first token comes from the prompt; some more let stragglers catch up.
        await self._engine.decode(prompts, max_tokens=steps + 1 + steps // 4, into=arrivals)
        if len(arrivals.times) < cell.batch or min(map(len, arrivals.times.values())) < 2:
            raise NotMeasurable("answers came in one piece; the engine does not stream token by token")
        begin = max(times[0] for times in arrivals.times.values())
        end = min(times[-1] for times in arrivals.times.values())
        together = [[at for at in times if begin <= at <= end] for times in arrivals.times.values()]
        gaps = [(times[-1] - times[0]) / (len(times) - 1) for times in together if len(times) > steps // 2]
        if len(gaps) < cell.batch:
            raise NotMeasurable(f"the engine does not decode {cell.batch} sequences together")
        per_event = arrivals.tokens / arrivals.events if arrivals.tokens else 1.0
        return median(gaps) / per_event

    async def _mixed(self, cell: GridCell) -> float:
        """Time a mixed step; on a machine that stutters it takes more than one attempt to tell it from its neighbours.

        Raises:
            NotMeasurable: no attempt showed one.
        """
        if 0 < self._full <= cell.batch:
            raise NotMeasurable(f"the engine takes no prefill beside a batch of {self._full}")
        if self._alone < _ALONE:
            for attempt in range(_ATTEMPTS):
                try:
                    seconds = await self._mixed_once(cell)
                except FullError:
                    self._full = cell.batch
                    raise
                except AloneError:
                    if attempt == _ATTEMPTS - 1:
                        self._alone += 1
                except NotMeasurable:
                    if attempt == _ATTEMPTS - 1:
                        raise
                else:
                    self._alone = -math.inf  # the engine has mixed steps, and noise hides some
                    return seconds
        if self._alone < _ALONE:
            raise NotMeasurable("its first token came between two steps; the engine prefills alone, or noise hid it")
        raise NotMeasurable("the engine prefills alone, decoding waits: it has no mixed steps")

    async def _mixed_once(self, cell: GridCell) -> float:
        prompts = await self._batch(cell)
        await self._fill(["history"], cell.history)
        beside = self._texts.base("history", cell.history) + self._texts.fresh(cell.chunk)
        return await mixed_step(self._engine, prompts, beside, limit=self._facts.max_model_len)

    async def _transfer(self, cell: GridCell) -> float:
        if self._transfers is None:
            raise NotMeasurable("there is no decode engine to read the KV")
        return await self._transfers.seconds(cell, back=self._both_ways)
