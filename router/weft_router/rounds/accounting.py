"""Update sessions and metrics with the outcome of each round."""

import logging
from array import array
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

import orjson

from weft_core.slo import Slo
from weft_router.config import RouterConfig, Settings
from weft_router.engines.handles import KvHandle, accept
from weft_router.openai.body import Json
from weft_router.openai.inference import Inference
from weft_router.openai.prompt_history import PromptHistory, with_reply
from weft_router.openai.reply import Reply
from weft_router.openai.tokens import AnswerTokens, CharsPerToken
from weft_router.rounds.served_prompt import served_prompt
from weft_router.rounds.tier_savings import TierSavings
from weft_router.sessions.return_times import awaited_tool
from weft_router.sessions.round import PrefilledKv, Round
from weft_router.sessions.session import recompute_reason
from weft_router.sessions.session_table import SessionTable
from weft_router.telemetry.access_log import rounded
from weft_router.telemetry.instruments import BucketsByClass
from weft_router.telemetry.metrics import Metrics
from weft_router.telemetry.round_meter import RoundMeter, TokenClock
from weft_router.telemetry.sliding_window import SlidingWindow

if TYPE_CHECKING:
    from weft_router.kv_events.engine_cache import EngineCache

log = logging.getLogger(__name__)

_FINISHED = ("stop", "length", "tool_calls", "function_call")
_TEXTS = ("text", "input_text", "output_text")


def meter_of(config: RouterConfig, metrics: Metrics) -> RoundMeter:
    """Return the meter that compares rounds with the SLO of their class."""
    return RoundMeter(metrics, slos_of(config))


def slos_of(config: RouterConfig) -> dict[str, Slo]:
    """Return the SLO of every class."""
    slos = {name: one.slo for name, one in config.session_classes().items()}
    return {name: Slo(ttft_s=of.ttft, itl_s=of.itl, attainment=of.attainment) for name, of in slos.items()}


def used_tokens(rnd: Round, reply: Reply, tokens: int) -> tuple[int, int]:
    """Return the tokens of a round's prompt and answer: the engine's counts, else estimated and counted ones."""
    task = rnd.prefix_match.task
    return reply.prompt_tokens or task.history + task.increment, reply.completion_tokens or tokens


class Accounting:
    """The accounting of one decode worker."""

    def __init__(
        self, settings: Settings, *, sessions: SessionTable, itl: SlidingWindow, metrics: Metrics, meter: RoundMeter,
        ratio: CharsPerToken, answers: AnswerTokens, observed: Callable[[Round, float], None],
        learned: Callable[[Round, float], None], unusable: Callable[[KvHandle], None],
        count_intake: Callable[[int], None], kv_cache: "EngineCache | None" = None,
    ) -> None:  # fmt: skip
        """Create it with its callbacks.

        ``observed`` is called with each round's TTFT, ``learned`` with the mean gap of each round that has one,
        ``unusable`` with a handle to KV of another answer than the client got, and ``count_intake`` with the tokens of
        each round whose KV came into the engine's cache. ``kv_cache`` gets the prompts of finished rounds.
        """
        self._settings = settings
        self._engine = settings.config.engine
        self._bytes_per_token = settings.profile.kv_bytes_per_token
        self._sessions = sessions
        self._itl = itl
        self._handles = metrics.kv_handles
        self._delays = metrics.delay_seconds.labels()
        self._legs = BucketsByClass(metrics.leg_seconds, "decode")
        self._meter = meter
        self._ratio = ratio
        self._answers = answers
        self._observed = observed
        self._learned = learned
        self._unusable = unusable
        self._count_intake = count_intake
        self._kv_cache = kv_cache
        self._savings = TierSavings(settings, metrics)
        self._predictions = metrics.kv_predictions
        self.streams_export: bool | None = None
        """Whether the engine's streams carry handles. Stock vLLM's do not, so KV kept for them could not be read."""

    def answered(self, rnd: Round, sent: float) -> None:
        """Record the time from sending a leg to the first byte of the decode engine's response."""
        now = monotonic()
        self._legs.of(rnd.class_).mark(now - sent, rnd.trace, now)

    def delayed(self, seconds: float) -> None:
        """Record how long a local prefill was delayed for the sessions that decode beside it."""
        self._delays.observe(seconds)

    def first_token(self, rnd: Round, now: float, tokens: int) -> TokenClock | None:
        """Record a round's TTFT and return the clock of its tokens; None for a resumed stream, which had its first."""
        if rnd.resumed is not None:
            return None
        rnd.first_at = now
        seconds = now - rnd.started
        rnd.facts["ttft"] = rounded(seconds)
        self._observed(rnd, seconds)
        series = self._meter.of(rnd.phase, rnd.route, rnd.class_)
        return series.first_token(now, seconds, tokens=tokens, trace=rnd.trace, latency=rnd.latency, window=self._itl)

    def whole_answer(
        self, rnd: Round, reply: Reply, *, first_at: float, sent: float, predicted: bool
    ) -> TokenClock | None:
        """Record TTFT and gaps of an answer in one piece, sent for at ``sent``, that ends now.

        ``first_at`` is when its first token was made; where that is ``predicted``, it is corrected by the engine's
        counts. A single token is made when the answer ends. Where the answer ended before its first token was due, each
        token has an equal share of the time. Without a count nothing is recorded.
        """
        tokens = reply.completion_tokens
        if tokens <= 0:
            return None
        now = monotonic()
        if predicted:
            first_at = max(sent, first_at + self._excess_s(rnd, reply))
        if tokens == 1:
            first_at = now
        elif first_at >= now:
            first_at = sent + (now - sent) / tokens
        rnd.first_at, rnd.first_seen = first_at, tokens == 1
        seconds = first_at - rnd.started
        if rnd.first_seen:
            rnd.facts["ttft"] = rounded(seconds)
        series = self._meter.of(rnd.phase, rnd.route, rnd.class_)
        clock = series.first_token(first_at, seconds, trace=rnd.trace, latency=rnd.latency, window=self._itl)
        clock.whole(now, tokens)
        return clock

    def _excess_s(self, rnd: Round, reply: Reply) -> float:
        """Return by how many seconds a local prefill was longer than expected, by the engine's counts of tokens."""
        task, profile, degree = rnd.prefix_match.task, self._settings.profile, self._settings.degree
        cached = task.history if reply.cached_tokens is None else reply.cached_tokens
        if cached >= reply.prompt_tokens:
            return 0.0
        expected = profile.t_pre(history=task.history, increment=task.increment, degree=degree)
        return profile.t_pre(history=cached, increment=reply.prompt_tokens - cached, degree=degree) - expected

    def finish(
        self, rnd: Round, prefilled: PrefilledKv | None, reply: Reply, *, tokens: int, clock: TokenClock | None
    ) -> None:
        """Update the session after its round, and count the round's tokens and KV transfers."""
        prefix_match, inference = rnd.prefix_match, rnd.inference
        prompt_tokens, completion = used_tokens(rnd, reply, tokens)
        if _tells_ratio(inference):
            self._ratio.learn(inference.chars, reply.prompt_tokens)
        prompt_history, chars, held = rnd.prompt_history, inference.chars, prompt_tokens
        if reply.diverged:
            log.warning("first_token_diverged", extra={"request_id": rnd.id})
        elif inference.n == 1:
            prompt_history, chars = _seen(rnd, reply)
            held += max(0, completion - 1)  # the last token was not an input of a step, so it has no KV
        if self._kv_cache is not None:
            served = served_prompt(rnd, reply, prompt_history, prompt_tokens=prompt_tokens, held=held)
            if served is not None:
                self._kv_cache.served(served)
        self._sessions.finish(
            rnd.session,
            prompt_history=prompt_history,
            tokens=held,
            chars=chars,
            handle=self._handle(rnd, reply),
            prefilled=prefix_match.prefilled,
            class_=rnd.class_,
            tool=awaited_tool(reply.tool_calls),
            prefilled_by=prefilled.worker if prefilled is not None else "",
            prefilled_tokens=prompt_tokens,
        )
        self._count(rnd, prefilled, reply, prompt_tokens, completion, clock)
        if clock is not None and (mean := clock.mean(completion)) is not None:
            self._learned(rnd, mean)

    def _handle(self, rnd: Round, reply: Reply) -> KvHandle | None:
        if rnd.inference.stream and rnd.export and reply.finish_reason in _FINISHED:
            self.streams_export = self.streams_export or reply.handle is not None
        if reply.handle is None or not rnd.export:
            return None
        if reply.finish_reason not in _FINISHED:
            self._handles.labels("malformed").inc()
            return None
        handle = accept(
            reply.handle,
            ids=reply.ids,
            plain=reply.plain,
            received=monotonic(),
            lease_s=self._engine.lease_seconds,
            ttl_s=self._engine.handle_ttl_seconds,
        )
        if handle is not None and reply.diverged:
            self._handles.labels("history_changed").inc()
            self._unusable(handle)
            return None
        self._handles.labels("stored" if handle is not None else "malformed").inc()
        return handle

    def _prediction(self, expected: int, cached: int) -> str:
        """Return what to count a prediction of cached tokens as."""
        block = self._kv_cache.block_tokens if self._kv_cache is not None else 0
        if abs(expected - cached) <= block:
            return "within-block"
        return "low" if expected < cached else "high"

    def _count(
        self, rnd: Round, prefilled: PrefilledKv | None, reply: Reply, prompt_tokens: int, completion: int,
        clock: TokenClock | None,
    ) -> None:  # fmt: skip
        prefix_match, facts = rnd.prefix_match, rnd.facts
        history = min(prefix_match.task.history + prefix_match.forgone, prompt_tokens)
        held = min(prefix_match.task.history, prompt_tokens) if prefix_match.continues else 0
        self._meter.of(rnd.phase, rnd.route, rnd.class_).finished(
            index=prefix_match.index + 1, history=history, increment=prompt_tokens - history, decode=completion,
            gap_s=prefix_match.gap_s, clock=clock,
        )  # fmt: skip
        self._answers.learn(completion)
        self._count_intake(prompt_tokens - held + completion)
        facts["prompt_tokens"] = prompt_tokens
        facts["completion_tokens"] = completion
        facts["history"] = history
        cached = prefilled.cached_tokens if prefilled is not None else reply.cached_tokens
        moved = 0
        if prefilled is not None:
            moved = prompt_tokens - held
        if cached is None:
            self._meter.moved(to_decode=moved * self._bytes_per_token)
            return
        facts["cached_tokens"] = cached
        if prefilled is None:
            self._savings.count(prefix_match, cached)
            if rnd.expected_cached is not None and not rnd.cached_here:
                facts["expected_cached_tokens"] = rnd.expected_cached
                self._predictions.labels(self._prediction(rnd.expected_cached, cached)).inc()
        read = _read(rnd, prefilled, cached)
        kept = min(cached, history)
        was_read = min(read, kept)
        self._meter.moved(
            to_decode=moved * self._bytes_per_token, to_prefill=read * self._bytes_per_token,
            read=was_read, cached=kept - was_read, recomputed=history - kept,
            reason=recompute_reason(prefix_match, remote=prefilled is not None, read=was_read > 0),
        )  # fmt: skip
        if history:
            facts["history_read"] = was_read
            facts["history_cached"] = kept - was_read
            facts["history_recomputed"] = history - kept


def _tells_ratio(inference: Inference) -> bool:
    """Return whether the request's characters and the engine's token count are of the same text.

    They are not if the request names an earlier response, because only the increment was sent, or has media.
    """
    if inference.exact_tokens is not None or inference.chained:
        return False
    if inference.kind == "responses":
        return all(map(_is_text, inference.items))
    return not inference.media


def _is_text(item: Json) -> bool:
    parts = item.get("content") or item.get("output")
    return not isinstance(parts, list) or all(isinstance(part, dict) and part.get("type") in _TEXTS for part in parts)


def _seen(rnd: Round, reply: Reply) -> tuple[PromptHistory, int]:
    """Return the prompt history with the reply appended as the client got it, and its characters."""
    inference, chars = rnd.inference, rnd.inference.chars
    content: Json | str | list[int]
    if inference.kind == "text" and not isinstance(inference.prompt, str):
        content = list(reply.output_ids or array("I"))
    elif reply.kind == "chat" and not reply.tool_calls:
        content = "".join(reply.text)
    else:
        content = reply.content()
    for part in reply.text:
        chars += len(part)
    for call in reply.tool_calls.values():
        chars += len(orjson.dumps(call))
    return with_reply(rnd.prompt_history, inference, content), chars


def _read(rnd: Round, prefilled: PrefilledKv | None, cached: int) -> int:
    """Return how many tokens the prefill engine read from the decode worker.

    The engine reports its own cache hits and the read tokens as one figure, so the tokens that this session left in
    its cache earlier are subtracted.
    """
    if prefilled is None or not prefilled.read_tokens:
        return 0
    own = rnd.prefix_match.prefilled.get(prefilled.worker)
    return max(0, min(prefilled.read_tokens, cached) - (own.tokens if own is not None else 0))
