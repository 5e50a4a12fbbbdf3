"""Speak to a plain OpenAI server: no disaggregation, every round is prefilled where it is decoded."""

from collections.abc import Mapping
from typing import cast

from weft_router.engines.adapter import (
    REQUEST_ID,
    AdapterOptions,
    Call,
    Capabilities,
    EngineRequest,
    NotPossibleError,
    PrefillResult,
)
from weft_router.engines.load import VLLM, Gauges
from weft_router.http.header_lines import checked
from weft_router.openai.body import Json
from weft_router.openai.event_filter import EventFilter
from weft_router.openai.inference import NOTHING, Inference
from weft_router.openai.reply import FirstToken, Reply
from weft_router.openai.responses_filter import ResponsesFilter
from weft_router.openai.stream_filter import StreamFilter
from weft_router.openai.token_ids import TokenIds

OUTPUT_FIELDS = {
    "chat": ("max_completion_tokens", "max_tokens"),
    "text": ("max_tokens",),
    "responses": ("max_output_tokens",),
}
"""Where each API says how long an answer may be; the first is the one to write."""
_USAGE = {"include_usage": True}


class OpenAi:
    """The adapter of plain servers, and what the others have in common with it."""

    can: Capabilities
    salted = False
    """Whether the engine keeps cached prefixes apart by ``cache_salt``."""
    wishes: str
    """The header lines of what every leg asks for."""
    gauges: Gauges
    plugin_page: str | None = None

    def __init__(self, traits: AdapterOptions) -> None:
        self.traits = traits
        self.wishes = ""
        self.gauges = VLLM
        self.can = Capabilities(order="decode-only", local=True, responses=traits.responses)

    def prefill(self, _: EngineRequest, /) -> Call:
        """Refuse: there is no such leg."""
        raise NotPossibleError("no-disaggregation")

    def read_prefill(self, _: EngineRequest, __: bytes, /) -> PrefillResult:
        """Refuse: there is no such leg."""
        raise NotPossibleError("no-disaggregation")

    def decode(self, request: EngineRequest, _: PrefillResult | None, /) -> Call:
        """Return the only leg there is."""
        return self.local(request)

    def local(self, request: EngineRequest, /) -> Call:
        """Return the client's request."""
        return self.call(request, self.answer_fields(request))

    def slice(self, _: EngineRequest, __: TokenIds, ___: int, /) -> Call:
        """Refuse: nothing says that slices would share a cache."""
        raise NotPossibleError("no-slices")

    def resume(self, _: EngineRequest, __: Reply, /) -> Call:
        """Refuse: without token ids nothing goes on exactly."""
        raise NotPossibleError("no-ids")

    def release(self, _: Json, /) -> Call | None:
        """Return None: nothing is ever held."""
        return None

    def tokenize(self, _: EngineRequest, /) -> Call | None:
        """Return None: OpenAI has no such endpoint."""
        return None

    def read_ids(self, _: bytes, /) -> TokenIds | None:
        """Return None: nothing was requested."""
        return None

    def sse_filter(
        self, request: EngineRequest, /, *, first: FirstToken | None = None, resumed: Reply | None = None
    ) -> EventFilter:
        """Return the filter of a stream."""
        inference = request.inference
        if inference.kind == "responses":
            return ResponsesFilter()
        return StreamFilter(
            inference.kind,
            keep_usage=inference.wants_usage,
            keep_ids=inference.wants_ids,
            first=first,
            resumed=resumed,
            public_id=self.public_id(request),
        )

    def prefill_sse_filter(self, _: EngineRequest, /) -> EventFilter | None:
        """Return None: no prefill leg streams."""
        return None

    def first_event(self, request: EngineRequest, first: FirstToken, /) -> bytes:
        """Return the events of the prefill's token as the engine would write them."""
        return first.events(request.inference.kind, with_ids=request.inference.wants_ids)

    def public_id(self, _: EngineRequest, /) -> str | None:
        """Return the id that replies get in place of the engine's; None to leave it."""
        return None

    def lines(self, request: EngineRequest) -> str:
        """Return the header lines of a leg; all legs of a round have the same id."""
        if not request.lines:
            request.lines = f"{REQUEST_ID}: {checked(request.request_id)}\r\n{self.wishes}"
        return request.lines

    def call(
        self,
        request: EngineRequest,
        fields: Mapping[str, object],
        lines: str = "",
        *,
        without: frozenset[str] = NOTHING,
    ) -> Call:
        """Return a leg on the client's path: the client's request with ``fields`` set and ``without`` removed."""
        inference = request.inference
        return Call(inference.path, inference.encoded(fields, without=without), lines or self.lines(request))

    def answer_fields(self, request: EngineRequest) -> Json:
        """Return the fields that the router adds to a leg that answers the client, for what it needs to know.

        A field that the client gave is here only where it changes.
        """
        fields: Json = {}
        self.ask_for_answer(request, fields)
        return fields

    def ask_for_answer(self, request: EngineRequest, fields: Json) -> None:
        """Put these fields among others, or into the body of a leg."""
        inference = request.inference
        if inference.stream and inference.kind != "responses":
            given = cast(Json | None, inference.body.get("stream_options"))
            fields["stream_options"] = {**given, "include_usage": True} if given else _USAGE
        if request.cap is not None:
            cap_output(inference, fields, request.cap)
        if request.salt is not None and self.salted:
            fields["cache_salt"] = request.salt


def cap_output(inference: Inference, fields: Json, most: int) -> None:
    """Bound how long the answer may be, in the field that the client used."""
    names, body = OUTPUT_FIELDS[inference.kind], inference.body
    name = next((name for name in names if body.get(name) is not None), names[0])
    given = body.get(name)
    fields[name] = min(given, most) if isinstance(given, int) else most
    least = body.get("min_tokens")
    if isinstance(least, int) and least > most:
        fields["min_tokens"] = most
