"""Speak to a plain OpenAI server: no disaggregation, every round is prefilled where it is decoded."""

from collections.abc import Mapping
from typing import cast

from weft_router.engines.adapter import (
    REQUEST_ID,
    Abilities,
    Ask,
    Call,
    NotPossibleError,
    PrefillResult,
    SseFilter,
    Traits,
)
from weft_router.engines.load import VLLM, Gauges
from weft_router.http.header_lines import checked
from weft_router.openai.body import Json
from weft_router.openai.ids import Ids
from weft_router.openai.inference import NOTHING, Inference
from weft_router.openai.reply import FirstToken, Reply
from weft_router.openai.responses_filter import ResponsesFilter
from weft_router.openai.stream_filter import StreamFilter

OUTPUT_FIELDS = {
    "chat": ("max_completion_tokens", "max_tokens"),
    "text": ("max_tokens",),
    "responses": ("max_output_tokens",),
}
"""Where each API says how long an answer may be; the first is the one to write."""
_USAGE = {"include_usage": True}


class OpenAi:
    """The adapter of plain servers, and what the others have in common with it."""

    can: Abilities
    salted = False
    """Whether the engine keeps cached prefixes apart by ``cache_salt``."""
    wishes: str
    """The header lines of what every leg asks for."""
    gauges: Gauges
    plugin_page: str | None = None

    def __init__(self, traits: Traits) -> None:
        self.traits = traits
        self.wishes = ""
        self.gauges = VLLM
        self.can = Abilities(order="decode-only", local=True, responses=traits.responses)

    def prefill(self, _: Ask, /) -> Call:
        """Refuse: there is no such leg."""
        raise NotPossibleError("no-disaggregation")

    def read_prefill(self, _: Ask, __: bytes, /) -> PrefillResult:
        """Refuse: there is no such leg."""
        raise NotPossibleError("no-disaggregation")

    def decode(self, ask: Ask, _: PrefillResult | None, /) -> Call:
        """Return the only leg there is."""
        return self.local(ask)

    def local(self, ask: Ask, /) -> Call:
        """Return the client's request."""
        return self.call(ask, self.answer_fields(ask))

    def slice(self, _: Ask, __: Ids, ___: int, /) -> Call:
        """Refuse: nothing says that slices would share a cache."""
        raise NotPossibleError("no-slices")

    def resume(self, _: Ask, __: Reply, /) -> Call:
        """Refuse: without token ids nothing goes on exactly."""
        raise NotPossibleError("no-ids")

    def release(self, _: Json, /) -> Call | None:
        """Return None: nothing is ever held."""
        return None

    def tokenize(self, _: Ask, /) -> Call | None:
        """Return None: OpenAI has no such endpoint."""
        return None

    def read_ids(self, _: bytes, /) -> Ids | None:
        """Return None: nobody asked."""
        return None

    def tap(self, ask: Ask, /, *, first: FirstToken | None = None, resumed: Reply | None = None) -> SseFilter:
        """Return the filter of a stream."""
        inference = ask.inference
        if inference.kind == "responses":
            return ResponsesFilter()
        return StreamFilter(
            inference.kind,
            keep_usage=inference.wants_usage,
            keep_ids=inference.wants_ids,
            first=first,
            resumed=resumed,
            public_id=self.public_id(ask),
        )

    def prefill_tap(self, _: Ask, /) -> SseFilter | None:
        """Return None: no prefill leg streams."""
        return None

    def first_event(self, ask: Ask, first: FirstToken, /) -> bytes:
        """Return the events of the prefill's token as the engine would write them."""
        return first.events(ask.inference.kind, with_ids=ask.inference.wants_ids)

    def public_id(self, _: Ask, /) -> str | None:
        """Return the id that replies get in place of the engine's; None to leave it."""
        return None

    def lines(self, ask: Ask) -> str:
        """Return the header lines of what every leg says about itself: the same id for all legs of a round."""
        if not ask.lines:
            ask.lines = f"{REQUEST_ID}: {checked(ask.request_id)}\r\n{self.wishes}"
        return ask.lines

    def call(
        self, ask: Ask, fields: Mapping[str, object], lines: str = "", *, without: frozenset[str] = NOTHING
    ) -> Call:
        """Return a leg on the client's path: the client's request with these fields, and not those of ``without``."""
        inference = ask.inference
        return Call(inference.path, inference.encoded(fields, without=without), lines or self.lines(ask))

    def answer_fields(self, ask: Ask) -> Json:
        """Return what a leg that answers the client asks for beside what the client did: what the router has to know.

        A field that the client gave is here only where it changes.
        """
        fields: Json = {}
        self.ask_for_answer(ask, fields)
        return fields

    def ask_for_answer(self, ask: Ask, fields: Json) -> None:
        """Put these fields among others, or into the body of a leg."""
        inference = ask.inference
        if inference.stream and inference.kind != "responses":
            given = cast(Json | None, inference.body.get("stream_options"))
            fields["stream_options"] = {**given, "include_usage": True} if given else _USAGE
        if ask.cap is not None:
            cap_output(inference, fields, ask.cap)
        if ask.salt is not None and self.salted:
            fields["cache_salt"] = ask.salt


def cap_output(inference: Inference, fields: Json, most: int) -> None:
    """Bound how long the answer may be, in the field that the client used."""
    names, body = OUTPUT_FIELDS[inference.kind], inference.body
    name = next((name for name in names if body.get(name) is not None), names[0])
    given = body.get(name)
    fields[name] = min(given, most) if isinstance(given, int) else most
    least = body.get("min_tokens")
    if isinstance(least, int) and least > most:
        fields["min_tokens"] = most
