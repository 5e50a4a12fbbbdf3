"""Let the decode engine answer a round, and remember what that means for the session's next one."""

import logging
import math
from array import array
from time import monotonic

import orjson

from weft_router.api.reply import Reply
from weft_router.api.tokens import CharsPerToken
from weft_router.api.transcript import Transcript, with_reply
from weft_router.config import Settings
from weft_router.engines.adapter import Adapter, Handed
from weft_router.engines.handles import KvHandle, accept
from weft_router.engines.vllm import PLUGIN_HEADER
from weft_router.engines.watch import Engine
from weft_router.errors import SHUTTING_DOWN, EngineAnsweredError, LegFailedError
from weft_router.rounds.outlet import Outlet
from weft_router.rounds.passing import Passing, shown
from weft_router.rounds.prefill_queue import PrefillQueue
from weft_router.rounds.round import Prefilled, Round
from weft_router.rounds.sessions import Sessions
from weft_router.signals.metrics import Metrics
from weft_router.signals.pace import Pace
from weft_router.signals.window import Window
from weft_router.wire.leg import Leg

log = logging.getLogger(__name__)

NOT_THE_ENGINE = frozenset({SHUTTING_DOWN, "worker lost", "reply-too-large", "closed"})
_FINISHED = ("stop", "length", "tool_calls", "function_call")


class Answering:
    """The engine leg of a decode sidecar."""

    def __init__(
        self,
        settings: Settings,
        *,
        adapter: Adapter,
        engine: Engine,
        queue: PrefillQueue,
        sessions: Sessions,
        itl: Window,
        metrics: Metrics,
    ) -> None:
        self.settings = settings
        self.config = settings.config
        self._adapter = adapter
        self._engine = engine
        self._queue = queue
        self._sessions = sessions
        self._itl = itl
        self.metrics = metrics
        self.ratio = CharsPerToken()
        self.decoding: dict[int, Pace] = {}
        """The paces of the rounds that are decoding now."""
        self.answer_tokens = math.nan
        """A moving mean over the answers so far."""
        self._streams_export: bool | None = None
        """Whether the engine's streams carry handles: stock vLLM's do not, and what they pin nobody could use."""

    async def run(self, outlet: Outlet, rnd: Round, prefilled: Prefilled | None) -> None:
        """Answer a round from KV that was prefilled elsewhere, or prefill it here.

        Raises:
            LegFailedError: the engine failed before its first token; nothing was sent.
            StreamBrokenError: it failed after that.
            EngineAnsweredError: the engine found the request itself wrong.
        """
        inference = rnd.inference
        handed = prefilled.handed if prefilled is not None else None
        if handed is not None and handed.finished is not None:
            self._finished(outlet, rnd, prefilled, handed)
            return
        if rnd.resumed is not None:
            rnd.route, rnd.prefill_worker = "local", ""
            call = self._adapter.resume(rnd.ask, rnd.resumed)
        elif prefilled is not None:
            rnd.route, rnd.prefill_worker = "remote", prefilled.worker
            call = self._adapter.decode(rnd.ask, handed)
        else:
            rnd.route, rnd.prefill_worker = "local", ""
            rnd.ask.export = rnd.export and not (inference.stream and self._streams_export is False)
            call = self._adapter.local(rnd.ask)
        # KV that waits for this leg lives on a lease, so it does not queue behind local prefills.
        slot = await self._queue.acquire(rnd.id, rnd.outlook.task) if prefilled is None else None
        timeouts = self.config.timeouts
        if inference.stream:
            leg = Leg(first_s=timeouts.first_byte, idle_s=timeouts.idle, total_s=timeouts.total)
            tap = self._adapter.tap(rnd.ask, first=handed.first if handed else None, resumed=rnd.resumed)
            passing = Passing(self, outlet, rnd, prefilled, slot, leg, tap)
            outlet.fed_by(leg)
        else:
            leg = Leg(first_s=timeouts.total)
            passing = Passing(self, outlet, rnd, prefilled, slot, leg, None)
            passing.expect_first(slot.until_first() if slot is not None else 0.0)
        try:
            if handed is not None and handed.first is not None and inference.stream:
                passing.show(self._adapter.first_event(rnd.ask, handed.first))
            await self._engine.pool.run(
                leg, self._engine.origin, call.path, call.body, passing, headers=call.headers,
                resend=prefilled is None,
            )  # fmt: skip
            refusal = passing.refusal()
            if refusal is not None:
                if 400 <= passing.status < 500 and passing.status not in (408, 429):
                    raise EngineAnsweredError(passing.status, refusal)
                raise LegFailedError("engine-error", f"status {passing.status}")
            if PLUGIN_HEADER in passing.headers:
                self._streams_export = True
            passing.finish()
            self._engine.served()
        except LegFailedError as error:
            self._blame(error.reason, fresh=prefilled is None, begun=outlet.begun)
            if outlet.begun:
                raise passing.broken(error.reason) from error
            raise
        finally:
            outlet.fed_by(None)
            passing.close()

    def _finished(self, outlet: Outlet, rnd: Round, prefilled: Prefilled | None, handed: Handed) -> None:
        """Give the client an answer that ended with its prefill's token."""
        data = handed.finished or b""
        rnd.route, rnd.prefill_worker = "remote", prefilled.worker if prefilled is not None else ""
        self.first_token(rnd, monotonic())
        self.finish(rnd, prefilled, handed.reply, tokens=1)
        if rnd.inference.stream:
            outlet.begin(shown(rnd, self.settings.worker))
            outlet.write(data)
            outlet.end()
        else:
            outlet.whole(200, data, shown(rnd, self.settings.worker))

    def _blame(self, reason: str, *, fresh: bool, begun: bool) -> None:
        """Count a failed leg against the engine, unless the other side may be at fault: KV that could not be read."""
        if reason == "connect":
            self._engine.lost()
        elif not begun and reason not in NOT_THE_ENGINE and (fresh or reason == "timeout"):
            self._engine.failed()

    @property
    def batch(self) -> int:
        """Return how many rounds are decoding now."""
        return len(self.decoding)

    def gap(self, rnd: Round, seconds: float, tokens: int) -> None:
        """Record that ``tokens`` tokens of a round took ``seconds`` after the one before."""
        rnd.pace.add(seconds, tokens, itl_slo=self.config.slo.itl)
        self._itl.add(monotonic(), seconds, tokens)
        for _ in range(min(tokens, 64)):
            self.metrics.itl.observe(seconds / tokens)

    def first_token(self, rnd: Round, now: float) -> None:
        """Record a round's TTFT; a stream that goes on had its first token elsewhere."""
        if rnd.resumed is not None:
            return
        rnd.first_at = now
        seconds = now - rnd.started
        self.metrics.ttft.labels(rnd.phase, rnd.route).observe(seconds)
        self.metrics.slo.labels("ttft", "good" if seconds <= self.config.slo.ttft else "bad").inc()
        rnd.facts["ttft"] = round(seconds, 4)

    def finish(self, rnd: Round, prefilled: Prefilled | None, reply: Reply, *, tokens: int) -> None:
        """Remember what the session now is, and count what the round took."""
        task = rnd.outlook.task
        prompt_tokens = reply.prompt_tokens or task.history + task.increment
        completion = reply.completion_tokens or tokens
        if rnd.inference.exact_tokens is None:
            self.ratio.learn(rnd.inference.chars, reply.prompt_tokens)
        transcript, chars = rnd.transcript, rnd.inference.chars
        if rnd.inference.n == 1:
            transcript, chars = self._seen(rnd, reply)
        handle = self._handle(rnd, reply)
        known = dict(rnd.outlook.prefilled)
        if prefilled is not None:
            known[prefilled.worker] = prompt_tokens
        self._sessions.finish(
            rnd.session,
            transcript=transcript,
            tokens=prompt_tokens + max(0, completion - 1),  # the last token was never fed back, so it has no KV
            chars=chars,
            handle=handle,
            prefilled=known,
        )
        self._count(rnd, prefilled, reply, prompt_tokens, completion)

    def _seen(self, rnd: Round, reply: Reply) -> tuple[Transcript, int]:
        content: object = reply.content()
        if not isinstance(rnd.inference.prompt, str) and rnd.inference.kind == "text":
            content = list(reply.output_ids or array("I"))
        if isinstance(content, dict | str | list):
            transcript = with_reply(rnd.transcript, rnd.inference, content)
        else:
            transcript = rnd.transcript
        size = sum(len(part) for part in reply.text)
        size += sum(len(orjson.dumps(call)) for call in reply.tool_calls.values())
        return transcript, rnd.inference.chars + size

    def _handle(self, rnd: Round, reply: Reply) -> KvHandle | None:
        if rnd.inference.stream and rnd.export and reply.finish_reason in _FINISHED:
            self._streams_export = self._streams_export or reply.handle is not None
        if reply.handle is None or not rnd.export:
            return None
        if reply.finish_reason not in _FINISHED:
            self.metrics.kv_handles.labels("malformed").inc()
            return None
        engine = self.config.engine
        handle = accept(
            reply.handle,
            ids=reply.ids,
            plain=reply.plain,
            received=monotonic(),
            lease_s=engine.lease_seconds,
            ttl_s=engine.handle_ttl_seconds,
        )
        self.metrics.kv_handles.labels("stored" if handle is not None else "malformed").inc()
        return handle

    def _count(
        self, rnd: Round, prefilled: Prefilled | None, reply: Reply, prompt_tokens: int, completion: int
    ) -> None:
        metrics, task = self.metrics, rnd.outlook.task
        metrics.rounds.labels(rnd.phase).inc()
        history = min(task.history, prompt_tokens)
        metrics.increment_tokens.labels(rnd.phase).observe(prompt_tokens - history)
        metrics.decode_tokens.observe(completion)
        known = self.answer_tokens == self.answer_tokens
        self.answer_tokens = 0.95 * self.answer_tokens + 0.05 * completion if known else float(completion)
        rnd.facts.update(prompt_tokens=prompt_tokens, completion_tokens=completion, history=history)
        if completion > 1 and rnd.first_at is not None:
            itl = (monotonic() - rnd.first_at) / (completion - 1)
            metrics.slo.labels("itl", "good" if itl <= self.config.slo.itl else "bad").inc()
        per_token = self.settings.profile.kv_bytes_per_token
        cached = prefilled.cached_tokens if prefilled is not None else reply.cached_tokens
        if prefilled is not None:
            held = history if rnd.outlook.continues else 0
            metrics.kv_bytes.labels("prefill_to_decode").inc((prompt_tokens - held) * per_token)
        if cached is None:
            return
        rnd.facts["cached_tokens"] = cached
        read = _read(rnd, prefilled, cached)
        metrics.kv_bytes.labels("decode_to_prefill").inc(read * per_token)
        if history:
            kept = min(cached, history)
            counts = {"read": min(read, kept), "cached": kept - min(read, kept), "recomputed": history - kept}
            for kind, count in counts.items():
                metrics.history.labels(kind).inc(count)
                rnd.facts[f"history_{kind}"] = count


def _read(rnd: Round, prefilled: Prefilled | None, cached: int) -> int:
    """Return how many tokens came over from the decode worker.

    The prefill engine reports its own cache and what it read as one figure; what this session left
    in its cache earlier is taken off.
    """
    if prefilled is None or not prefilled.read_tokens:
        return 0
    own = rnd.outlook.prefilled.get(prefilled.worker, 0)
    return max(0, min(prefilled.read_tokens, cached) - own)
