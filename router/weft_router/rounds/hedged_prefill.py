"""Prefill a round remotely; one of the top class that may be late is hedged on a second worker, or on this one."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Literal

from weft_router.engines.adapter import Adapter, NotPossibleError
from weft_router.errors import UnavailableError, UpstreamFailedError
from weft_router.openai.inference import UNUSUAL, Inference
from weft_router.rounds.decode_executor import DecodeExecutor
from weft_router.rounds.prefill_slicer import PrefillSlicer
from weft_router.rounds.remote_prefill import RemotePrefill
from weft_router.routing.hedging import HERE, race_prefills
from weft_router.routing.route_selector import RouteSelector
from weft_router.sessions.round import PrefilledKv, Round
from weft_router.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


class HedgedPrefill:
    """The remote prefills of one decode worker's rounds, and what is raced against them."""

    def __init__(
        self, *, adapter: Adapter, route_selector: RouteSelector, remote: RemotePrefill, executor: DecodeExecutor,
        slicer: PrefillSlicer, metrics: Metrics, orphaned: Callable[[PrefilledKv], None],
    ) -> None:  # fmt: skip
        """Prefill by ``remote``; ``orphaned`` releases a finished prefill whose KV will not be read."""
        self._adapter = adapter
        self._route_selector = route_selector
        self._remote = remote
        self._executor = executor
        self._slicer = slicer
        self._metrics = metrics
        self._orphaned = orphaned

    async def run(self, rnd: Round, worker: str) -> PrefilledKv | None:
        """Return the prefilled KV; None when the round must be prefilled locally, or was (``rnd.cached_here``).

        A history that is read with a handle is read by one worker only; the second place is this one, which caches it.

        Raises:
            ApiError, EngineAnsweredError, UpstreamFailedError, EngineDiedError: as ``RemotePrefill.run``.
        """
        decision, again = rnd.decision, rnd.prefix_match.handle is not None
        # An unusual request might crash its engine, so it is not sent to two. A session that moved is not cached here.
        if decision is None or rnd.inference.marks & UNUSUAL or rnd.prefix_match.away:
            return await self._remote.run(rnd, worker)
        second = self._route_selector.policy_of(rnd.class_).hedge(decision, only_local=again)
        if second is None or (second == HERE and not self._can_cache(rnd.inference)):
            return await self._remote.run(rnd, worker)
        won = await race_prefills(
            partial(self._start, rnd), worker, second, metrics=self._metrics, unread=self._orphaned
        )
        if isinstance(won, PrefilledKv):
            return won
        rnd.cached_here = won == HERE
        return None

    async def _start(self, rnd: Round, place: str) -> PrefilledKv | Literal["local"] | None:
        if place == HERE:
            return await self._cache(rnd)
        if rnd.prefix_match.handle is not None:
            return await self._remote.run(rnd, place)
        return await self._remote.once(rnd, place)

    def _can_cache(self, inference: Inference) -> bool:
        """Return whether a prompt can be put into the prefix cache of this worker's engine."""
        return self._adapter.can.slices and inference.kind != "responses" and not inference.media

    async def _cache(self, rnd: Round) -> Literal["local"] | None:
        """Put a round's prompt into the prefix cache of this worker's engine; None when it cannot be."""
        try:
            await self._executor.prefill(rnd, partial(self._slicer.prefill, rnd))
        except (NotPossibleError, UnavailableError, UpstreamFailedError) as error:
            log.info("local_hedge_failed", extra={"request_id": rnd.id, "error": str(error)})
            return None
        return HERE
