"""Run a local prefill in slices on a stock engine; the policy sizes each for the current batch.

Every slice is a request with token ids as prompt and one output token, which is discarded. The engine's prefix cache
joins the slices, and the client's request comes last. One prefill is sliced at a time: two slices in one step would
lengthen the step by both. When the client disconnects, no further slice is sent.
"""

import logging
from collections.abc import Callable
from time import monotonic

from weft_core.policies.snapshot import DecodeWorkerView
from weft_router.config import RouterConfig
from weft_router.engines.adapter import Adapter, Call, NotPossibleError
from weft_router.engines.watch import Engine
from weft_router.errors import UpstreamFailedError
from weft_router.http.upstream_request import BufferedResponse, UpstreamRequest
from weft_router.openai.inference import NOTHING
from weft_router.openai.token_ids import TokenIds
from weft_router.routing.policy import RoutingPolicy
from weft_router.sessions.round import Round
from weft_router.telemetry.instruments import Buckets
from weft_router.workers.prefill_queue import QueueSlot

log = logging.getLogger(__name__)

View = Callable[[float], DecodeWorkerView]


class PrefillSlicer:
    """Sends the slices of one decode worker's local prefills."""

    def __init__(self, config: RouterConfig, *, adapter: Adapter, engine: Engine, view: View, tokens: Buckets) -> None:
        self._timeouts = config.timeouts
        self._limit = config.limits.max_reply_bytes
        self._adapter = adapter
        self._engine = engine
        self._view = view
        self._tokens = tokens

    async def warm(self, rnd: Round, slot: QueueSlot, policy: RoutingPolicy) -> None:
        """Prefill all of a prompt but its last slice into the engine's prefix cache.

        After a refused slice no further one is sent: the client's request reports the error, or just takes longer.

        Raises:
            UpstreamFailedError: the engine cannot be reached.
            EngineDiedError: the engine died while it computed a slice.
        """
        task = rnd.prefix_match.task
        # No tokenize request if, by the estimate, everything fits into one slice.
        fits = policy.next_slice(at=task.history, remaining=task.increment, decode=self._view(monotonic())) is None
        ids = None if fits else await self._ids(rnd)
        await slot.wait_for_engine()
        if ids is None:
            return
        at, end = min(task.history, len(ids)), len(ids)
        while (n := policy.next_slice(at=at, remaining=end - at, decode=self._view(monotonic()))) is not None:
            answer = await self._send(self._adapter.slice(rnd.engine_request, ids, at + n), rnd)
            if answer.status != 200:
                log.warning("slice_refused", extra={"request_id": rnd.id, "status": answer.status})
                return
            at += n
            slot.advance(n)
            self._tokens.observe(n)

    async def prefill(self, rnd: Round, slot: QueueSlot) -> None:
        """Prefill a prompt whole into the engine's prefix cache, but for its last token.

        Raises:
            UpstreamFailedError: the engine cannot be reached, refused, or cannot say the prompt's token ids.
            EngineDiedError: the engine died meanwhile.
        """
        ids = await self._ids(rnd)
        await slot.wait_for_engine()
        if ids is None or len(ids) < 2:
            raise UpstreamFailedError("no-ids")
        answer = await self._send(self._adapter.slice(rnd.engine_request, ids, len(ids) - 1), rnd)
        if answer.status != 200:
            raise UpstreamFailedError("engine-error", f"status {answer.status}")

    async def _ids(self, rnd: Round) -> TokenIds | None:
        """Return the prompt's token ids: the client's own, or the engine's; None if the engine cannot tokenize."""
        engine_request = rnd.engine_request
        given = engine_request.inference.prompt
        if engine_request.inference.kind == "text" and not isinstance(given, str):
            return TokenIds("I", given)
        try:
            call = self._adapter.tokenize(engine_request)
        except NotPossibleError:
            return None
        if call is None:
            return None
        answer = await self._send(call, rnd)
        return self._adapter.read_ids(answer.body) if answer.status == 200 else None

    async def _send(self, call: Call, rnd: Round) -> BufferedResponse:
        leg = UpstreamRequest(first_s=self._timeouts.first_byte)
        deaths = self._engine.deaths
        self._engine.sent(leg, 0.0)
        deaths.enter(leg, tenant=rnd.scheduling.tenant, fields=NOTHING, streams=True, deaths=rnd.deaths)
        try:
            answer = await self._engine.pool.call(
                leg,
                self._engine.origin,
                call.path,
                call.body,
                lines=call.lines + self._engine.lines_of(rnd.session),
                limit=self._limit,
                resend=True,
            )
        except UpstreamFailedError as error:
            if error.reason == "connect":
                self._engine.lost()
            death = deaths.failed(leg, error.reason)
            if death is not None:
                await death.examine()
            raise
        else:
            self._engine.over(leg, got_on=True)
            return answer
        finally:
            self._engine.over(leg, got_on=False)
            deaths.leave(leg)
