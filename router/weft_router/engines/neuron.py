"""Speak the protocol of AWS Neuron's vLLM fork: both legs at once, and the prefill's token goes to the client at once.

Each leg's id names the other engine's address. The prefill engine streams its one token, which the client gets with
the public id and without a finish reason; the decode engine shows that token again, once for each answer, and that
is dropped. Whole replies come from the decode engine alone.
"""

import hashlib
from array import array
from typing import cast
from uuid import UUID

from weft_router.engines.adapter import (
    REQUEST_ID,
    Abilities,
    Ask,
    Call,
    EngineEndpoint,
    NotPossibleError,
    PrefillResult,
    SseFilter,
    Traits,
)
from weft_router.engines.openai import OpenAi
from weft_router.engines.resume import same_first_token
from weft_router.http.header_lines import header_lines
from weft_router.http.sse import payload
from weft_router.openai.body import Json
from weft_router.openai.event_filter import EventFilter, object_of
from weft_router.openai.inference import Kind
from weft_router.openai.reply import FirstToken, Reply, head_of, to_event
from weft_router.openai.stream_filter import StreamFilter

_ONE_TOKEN = {"max_tokens": 1}
_NOT_FIRST = frozenset({"stream_options", "min_tokens", "max_completion_tokens"})


class Neuron(OpenAi):
    """The adapter of the Neuron fork."""

    def __init__(self, traits: Traits) -> None:
        super().__init__(traits)
        self.can = Abilities(order="together", local=False, first_token=True)

    def prefill(self, ask: Ask, /) -> Call:
        """Return the request for one token, streamed when the client wants a stream."""
        return self.call(ask, _ONE_TOKEN, self._named(ask, ask.decode), without=_NOT_FIRST)

    def read_prefill(self, ask: Ask, _: bytes, /) -> PrefillResult:
        """Return nothing to hand over: the engines speak with each other."""
        return PrefillResult(None, Reply(ask.inference.kind))

    def decode(self, ask: Ask, _: PrefillResult | None, /) -> Call:
        """Return the client's request."""
        return self.call(ask, self.answer_fields(ask), self._named(ask, ask.prefill))

    def local(self, _: Ask, /) -> Call:
        """Refuse: a decode engine takes only what a prefill engine computed."""
        raise NotPossibleError("no-local-prefill")

    def tap(self, ask: Ask, /, *, first: FirstToken | None = None, resumed: Reply | None = None) -> SseFilter:
        """Return the filter of the decode leg, which drops its first token if the prefill's was shown by then."""
        inference = ask.inference
        return StreamFilter(
            inference.kind,
            keep_usage=inference.wants_usage,
            keep_ids=inference.wants_ids,
            first=first or FirstToken(None, {}, array("I")),
            shown=lambda: ask.shown,
            resumed=resumed,
            public_id=self.public_id(ask),
        )

    def prefill_tap(self, ask: Ask, /) -> SseFilter | None:
        """Return the filter that turns the prefill's stream into the client's first events; None for whole replies."""
        return FirstTokenFilter(ask.inference.kind, ask.request_id) if same_first_token(ask.inference) else None

    def public_id(self, ask: Ask, /) -> str | None:
        """Return the router's id: the engines' name addresses."""
        return ask.request_id

    def _named(self, ask: Ask, peer: EngineEndpoint | None) -> str:
        if peer is None:
            raise NotPossibleError("no-prefill-worker")
        same = UUID(bytes=hashlib.blake2b(ask.request_id.encode(), digest_size=16).digest())
        return header_lines({REQUEST_ID: f"cmpl-{same}_{peer.address}"})


class FirstTokenFilter(EventFilter):
    """The prefill leg's stream: its token goes on, its end does not."""

    def __init__(self, kind: Kind, public_id: str) -> None:
        super().__init__(Reply(kind))
        self._public_id = public_id

    def feed(self, data: bytes) -> bytes:
        """Add bytes from the engine; return what goes on to the client now."""
        return b"".join(self._take(event) for event in self._splitter.feed(data))

    def _take(self, event: bytes) -> bytes:
        data = payload(event)
        if data is None:
            return b""
        if data == b"[DONE]":
            self.done = True
            return b""
        chunk = object_of(data)
        return self._show(chunk) if chunk is not None else b""

    def _show(self, chunk: Json) -> bytes:
        if "error" in chunk:
            self._reply.error = True
            return b""
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            return b""
        if self._reply.head is None:
            self._reply.head = {**head_of(chunk), "id": self._public_id}
        chunk["id"] = self._public_id
        chunk.pop("usage", None)
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            part: object = choice.get("delta") if self._reply.kind == "chat" else choice
            before = len(self._reply.text)
            if isinstance(part, dict):
                self._reply.take_part(cast(Json, part))
            self.tokens += len(self._reply.text) - before
            choice["finish_reason"] = None
        return to_event(chunk)
