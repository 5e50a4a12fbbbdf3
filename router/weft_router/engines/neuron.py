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
    AdapterOptions,
    Call,
    Capabilities,
    EngineEndpoint,
    EngineRequest,
    NotPossibleError,
    PrefillResult,
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

    def __init__(self, traits: AdapterOptions) -> None:
        super().__init__(traits)
        self.can = Capabilities(order="concurrent", local=False, first_token=True, prefix_cache=False)

    def prefill(self, request: EngineRequest, /) -> Call:
        """Return the request for one token, streamed when the client wants a stream."""
        return self.call(request, _ONE_TOKEN, self._named(request, request.decode), without=_NOT_FIRST)

    def read_prefill(self, request: EngineRequest, _: bytes, /) -> PrefillResult:
        """Return nothing to hand over: the engines speak with each other."""
        return PrefillResult(None, Reply(request.inference.kind))

    def decode(self, request: EngineRequest, _: PrefillResult | None, /) -> Call:
        """Return the client's request."""
        return self.call(request, self.answer_fields(request), self._named(request, request.prefill))

    def local(self, _: EngineRequest, /) -> Call:
        """Refuse: a decode engine takes only what a prefill engine computed."""
        raise NotPossibleError("no-local-prefill")

    def sse_filter(
        self, request: EngineRequest, /, *, first: FirstToken | None = None, resumed: Reply | None = None
    ) -> EventFilter:
        """Return the filter of the decode leg, which drops its first token if the prefill's was shown by then."""
        inference = request.inference
        return StreamFilter(
            inference.kind,
            keep_usage=inference.wants_usage,
            keep_ids=inference.wants_ids,
            first=first or FirstToken(None, {}, array("I")),
            shown=lambda: request.shown,
            resumed=resumed,
            public_id=self.public_id(request),
        )

    def prefill_sse_filter(self, request: EngineRequest, /) -> EventFilter | None:
        """Return the filter that turns the prefill's stream into the client's first events; None for whole replies."""
        return (
            FirstTokenFilter(request.inference.kind, request.request_id)
            if same_first_token(request.inference)
            else None
        )

    def public_id(self, request: EngineRequest, /) -> str | None:
        """Return the router's id: the engines' name addresses."""
        return request.request_id

    def _named(self, request: EngineRequest, peer: EngineEndpoint | None) -> str:
        if peer is None:
            raise NotPossibleError("no-prefill-worker")
        same = UUID(bytes=hashlib.blake2b(request.request_id.encode(), digest_size=16).digest())
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
