"""Sweep a live engine: closed loops of clients for TTFT and serving, batches that decode together for generation."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from time import monotonic, perf_counter

import numpy as np

from weft_core.parallelism import Degree
from weft_planner.profiling.engine_client import EngineClient, EngineError, EngineFacts, TokenArrivals
from weft_planner.profiling.engine_errors import NotMeasurable
from weft_planner.profiling.engine_timer import EngineTimer
from weft_planner.profiling.measurements import GridCell
from weft_planner.profiling.prompts import PromptGenerator
from weft_planner.profiling.sweep_file import ContextRow, GenerationRow, Latency, ServingRow, Sweep
from weft_planner.profiling.sweep_points import SweepGrid, SweepPoint, listed, plan_points

FEWEST_ROUNDS = 2
"""Requests of each client: the first ones all begin at once, what follows is the steady state."""


@dataclass(frozen=True, slots=True)
class SweepTarget:
    """The engine to sweep, and what to call it; empty: as it says."""

    url: str
    degree: Degree
    served: str = ""
    model: str = ""
    gpu: str = ""
    engine: str = ""
    headers: Mapping[str, str] | None = None
    timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """The bounds of a sweep, and how often things are repeated; ``seed`` 0: a random one."""

    seconds: float = 300.0
    requests: int = 10_000
    rounds: int = 3
    steps: int = 32
    seed: int = 0


async def sweep_engine(
    target: SweepTarget,
    grid: SweepGrid,
    settings: SweepSettings,
    *,
    now: Callable[[], str],
    save: Callable[[Sweep], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Sweep:
    """Measure every point that the time and the requests allow; ``save`` gets every state.

    Curve by curve, what costs least first. What is left of the time is shared evenly by the points that are left.

    Raises:
        EngineError: the engine cannot be reached, does not serve the model, refuses the key, or fails.
    """
    began = monotonic()
    headers, timeout = target.headers, min(target.timeout_s, settings.seconds)
    async with EngineClient(target.url, model=target.served, timeout_s=timeout, headers=headers) as engine:
        facts = await engine.facts()
        seed = settings.seed or secrets.randbits(32)
        planned = plan_points(grid, facts, steps=settings.steps)
        if not planned.points:
            raise EngineError(f"{target.url}: holds no point of the grid: {'; '.join(planned.left_out[:3])}")
        state = Sweep(
            model=target.model or facts.model,
            engine=target.engine or facts.engine,
            gpu=target.gpu,
            degree=target.degree,
            kv_capacity_tokens=facts.kv_capacity_tokens,
            measured_at=now(),
            duration=0.0,
            requests=0,
            seed=seed,
            notes=planned.left_out,
        )
        run = _Run(engine, facts, target.degree, grid, settings, began=began, seed=seed, state=state)
        await run.timer.warm_up()
        for done, point in enumerate(planned.points):
            progress(done, len(planned.points))
            await run.measure(point, left=len(planned.points) - done)
            save(run.finished())
        progress(len(planned.points), len(planned.points))
        return run.finished()


@dataclass(slots=True)
class _Answers:
    """What clients saw: seconds to each first token but the client's first, and when every answer was complete."""

    first: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    cached: int = 0
    lengths: set[int] = field(default_factory=set)

    def ttft(self) -> Latency:
        """Return the percentiles, of the steady state where there is one."""
        p50, p95 = np.percentile(self.later or self.first, (50, 95))
        return Latency(p50=float(p50), p95=float(p95))

    def rate(self, began: float) -> float:
        """Return answers per second; an engine that is never idle needs no more clients for it."""
        return len(self.ends) / (max(self.ends) - began)


class _Run:
    """The state of a sweep under way."""

    def __init__(
        self,
        engine: EngineClient,
        facts: EngineFacts,
        degree: Degree,
        grid: SweepGrid,
        settings: SweepSettings,
        *,
        began: float,
        seed: int,
        state: Sweep,
    ) -> None:
        self.timer = EngineTimer(engine, facts, steps=settings.steps, seed=seed)
        self._engine = engine
        self._degree = degree
        self._grid = grid
        self._settings = settings
        self._began = began
        self._texts = PromptGenerator(facts.token_ids, seed=seed + 1)
        self._state = state
        self._sent = 0
        self._notes: dict[str, list[SweepPoint]] = {}
        self._refused: list[SweepPoint] = []

    def finished(self) -> Sweep:
        """Return what was measured so far."""
        notes = (*self._state.notes, *(listed(reason, points) for reason, points in self._notes.items()))
        duration = round(monotonic() - self._began, 1)
        return self._state.model_copy(update={"notes": notes, "duration": duration, "requests": self._sent})

    async def measure(self, point: SweepPoint, *, left: int) -> None:
        """Measure a point within its share of the time, or note why not."""
        if any(
            point.curve == one.curve and point.concurrency >= one.concurrency and point.tokens >= one.tokens
            for one in self._refused
        ):
            self._note("the engine does not run so many at a time", point)
            return
        each = 1 if point.curve == "generation" else FEWEST_ROUNDS
        time_left = self._settings.seconds - (monotonic() - self._began)
        if time_left <= 0 or self._sent + each * point.concurrency > self._settings.requests:
            self._note(f"the {'time' if time_left <= 0 else 'number of requests'} ended before", point)
            return
        measured = {"context": self._context, "generation": self._generation, "aggregated": self._serving}
        try:
            async with asyncio.timeout(time_left):
                await measured[point.curve](point, monotonic() + time_left / left)
        except TimeoutError:
            self._note("the time ended before", point)
        except NotMeasurable as error:
            self._note(str(error), point)
            self._refused.append(point)

    def _note(self, reason: str, point: SweepPoint) -> None:
        self._notes.setdefault(reason, []).append(point)

    def _add(self, **rows: object) -> None:
        self._state = self._state.model_copy(
            update={name: (*getattr(self._state, name), row) for name, row in rows.items()}
        )

    async def _context(self, point: SweepPoint, until: float) -> None:
        answers = _Answers()
        began = perf_counter()

        async def ask(first: bool) -> None:
            reply = await self._engine.first_token(self._texts.fresh(point.tokens))
            (answers.first if first else answers.later).append(reply.seconds)
            answers.ends.append(perf_counter())
            answers.cached += reply.cached or 0
            answers.lengths.add(reply.prompt_tokens)

        await self._loop(point.concurrency, until, ask)
        if answers.lengths - {0, point.tokens}:  # 0: the engine does not say
            raise NotMeasurable(f"the engine counts {max(answers.lengths)} tokens in a prompt of {point.tokens}")
        if answers.cached:
            self._note("prompt tokens were cached although they are random", point)
        self._add(
            context=ContextRow(
                prompt_tokens=point.tokens,
                concurrency=point.concurrency,
                requests=len(answers.ends),
                prompts_per_second=answers.rate(began),
                ttft=answers.ttft(),
            )
        )

    async def _generation(self, point: SweepPoint, until: float) -> None:
        """Time steps of a batch whose prompts are cached; the median of several timings."""
        cell = GridCell("step", self._degree, batch=point.concurrency, context=point.concurrency * point.tokens)
        timings = list[float]()
        while len(timings) < self._settings.rounds and (not timings or monotonic() < until):
            if timings and self._sent + point.concurrency > self._settings.requests:
                break
            self._sent += point.concurrency
            try:
                timings.append(await self.timer.time_cell(cell))
            except NotMeasurable:
                self.timer.forget_cached()
                self._sent += point.concurrency
                timings.append(await self.timer.time_cell(cell))
        self._add(
            generation=GenerationRow(context_tokens=point.tokens, concurrency=point.concurrency, itl=median(timings))
        )

    async def _serving(self, point: SweepPoint, until: float) -> None:
        answers, streams = _Answers(), list[tuple[float, TokenArrivals]]()

        async def ask(first: bool) -> None:
            arrivals, sent = TokenArrivals(), perf_counter()
            streams.append((sent, arrivals))
            await self._engine.decode(
                [self._texts.fresh(point.tokens)], max_tokens=self._grid.answer_tokens, into=arrivals
            )
            times = arrivals.times.get(0)
            if not times or len(times) < 2:
                raise NotMeasurable("answers came in one piece; the engine does not stream token by token")
            (answers.first if first else answers.later).append(times[0] - sent)
            answers.ends.append(times[-1])

        await self._loop(point.concurrency, until, ask)
        whole = [arrivals for _, arrivals in streams if arrivals.ended]
        self._add(
            aggregated=ServingRow(
                prompt_tokens=point.tokens,
                answer_tokens=self._grid.answer_tokens,
                concurrency=point.concurrency,
                requests=len(whole),
                tokens_per_second=_steady_rate([arrivals for _, arrivals in streams], point.concurrency),
                itl=fmean((one.times[0][-1] - one.times[0][0]) / max(1, _tokens(one) - 1) for one in whole),
                ttft=answers.ttft(),
            )
        )

    async def _loop(self, clients: int, until: float, ask: Callable[[bool], Awaitable[None]]) -> None:
        """Run clients that ask again and again: twice at least, then while there is time and requests are left."""

        async def client() -> None:
            for round_ in range(max(FEWEST_ROUNDS, self._settings.rounds)):
                if round_ >= FEWEST_ROUNDS and (monotonic() > until or self._sent >= self._settings.requests):
                    return
                self._sent += 1
                await ask(round_ == 0)

        tasks = [asyncio.create_task(client()) for _ in range(clients)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _tokens(arrivals: TokenArrivals) -> int:
    return arrivals.tokens or arrivals.events


def _steady_rate(streams: Sequence[TokenArrivals], clients: int) -> float:
    """Return output tokens per second while every client had its first token and none had its last.

    Where that time is no longer than a few tokens, of the whole time.
    """
    whole = [one for one in streams if one.ended]
    times = sorted((at, _tokens(one) / one.events) for one in whole for at in one.times[0])
    begin = max(one.times[0][0] for one in whole[:clients])
    end = sorted(one.times[0][-1] for one in whole)[-clients]
    within = [tokens for at, tokens in times if begin < at <= end]
    if len(within) > 4 * clients:
        return sum(within) / (end - begin)
    return sum(tokens for _, tokens in times) / (times[-1][0] - times[0][0])
