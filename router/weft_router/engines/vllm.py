"""Speak vLLM's prefill/decode protocol (0.32, NixlConnector, pull, bidirectional).

Prefill leg: the client's request, one token, not streamed, asking for the KV to stay. Decode leg: the client's
request with the object the prefill engine gave back, unchanged. Local leg: may ask the engine to keep the KV.
"""

from array import array
from typing import Final

import orjson

from weft_router.engines.adapter import (
    REQUEST_ID,
    AdapterOptions,
    Call,
    Capabilities,
    EngineRequest,
    NotPossibleError,
    PrefillResult,
)
from weft_router.engines.openai import OUTPUT_FIELDS, OpenAi
from weft_router.engines.resume import resume_obstacle, same_first_token
from weft_router.engines.vllm_prefill import cached_tokens, read_prefilled, transfer_params
from weft_router.errors import UpstreamFailedError
from weft_router.http.header_lines import header_lines
from weft_router.openai.body import Json
from weft_router.openai.inference import ANSWER_FIELDS, ANSWERING, Inference, Kind
from weft_router.openai.reply import FirstToken, Reply, ids_of, read_answer, read_counts
from weft_router.openai.token_ids import TokenIds

HANDLE_HEADER: Final = "X-Weft-KV-Handle"
PLUGIN_HEADER: Final = "X-Weft-Engine-Plugin"
"""Sent with a stream by engines whose plug-in adds the handle to it."""

NO_SUCH_MODEL = "weft-release"
"""A model name that no service has: an engine that refuses it releases the KV of the request's handle."""

KEEP: Final[Json] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What asks an engine to keep the KV of what it computes for a reader."""
_KEEP: Final = orjson.dumps(KEEP)
_KEPT: Final = orjson.Fragment(_KEEP)
_dumps: Final = orjson.dumps
_TWICE: Final = frozenset({"max_completion_tokens", "n"})
"""Fields that a prefill leg repeats only when the client gave them."""
_LIMITS: Final = ANSWER_FIELDS | {"stream", "max_tokens"}
_SAYS: Final[dict[Kind, frozenset[str]]] = {
    "chat": _LIMITS,
    "text": _LIMITS,
    "responses": ANSWER_FIELDS | {"stream"},
}
"""A client's fields that a round's legs say otherwise, or one of them alone; every other stands alike in both."""
_ROUTERS: Final = frozenset({"kv_transfer_params", "cache_salt", "request_id"})
"""Fields that legs have from the router alone."""
_SALTS: Final = 4096
"""Tenants whose usual prefills are kept, some 300 bytes each."""
_RENDERED = (
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "add_generation_prompt",
    "mm_processor_kwargs",
)


class Vllm(OpenAi):
    """The adapter of vLLM, and of the mock engine that speaks as it does."""

    salted = True
    plugin_page: str | None = "/weft/plugin"

    def __init__(self, traits: AdapterOptions) -> None:
        super().__init__(traits)
        self._usual: dict[str, bytes] = {}
        """What plain prefills begin with, by their salt."""
        self.wishes = f"{HANDLE_HEADER}: 1\r\n"  # a handle in streams, too
        self.can = Capabilities(
            order="prefill-then-decode",
            local=True,
            bidirectional=traits.bidirectional,
            slices=True,
            ids=True,
            resume=traits.resume != "off",
            first_token=traits.show_first,
            responses=traits.responses,
            tokenize=True,
        )

    def prefill(self, request: EngineRequest, /) -> Call:
        """Return the request for one token whose KV stays; with a handle it reads the history from there."""
        inference, handle = request.inference, request.handle
        executor = bool(inference.marks & ANSWERING)
        responses = inference.kind == "responses"
        # A stream that breaks after its first token was shown goes on from ids.
        ids = not responses and (request.want_ids or (self.can.resume and self._sure(inference)))
        if handle is None and not (executor or responses or ids):
            return self._leg(request, self._usual_prefill(request.salt))
        own: Json = {"stream": False}
        if responses:
            own["max_output_tokens"] = 1
            own["store"] = False
        else:
            own["max_tokens"] = 1
            if executor:
                own |= dict.fromkeys(_TWICE.intersection(inference.body), 1)
            if ids:
                own["return_token_ids"] = True
        if request.salt is not None:
            own["cache_salt"] = request.salt
        return self._leg(request, _begun(_KEEP if handle is None else _dumps(handle.params), own))

    def _usual_prefill(self, salt: str | None) -> bytes:
        """Return what a plain prefill leg begins with: it is the same for all of a tenant's."""
        known = self._usual.get(salt or "")
        if known is None:
            own: Json = {"stream": False, "max_tokens": 1}
            if salt is not None:
                own["cache_salt"] = salt
            if len(self._usual) >= _SALTS:
                self._usual.clear()
            known = self._usual[salt or ""] = _begun(_KEEP, own)
        return known

    def read_prefill(self, request: EngineRequest, raw: bytes, /) -> PrefillResult:
        """Read the parameters for the decode leg, the exact counts, and the first token where it may be shown."""
        kind, shows = request.inference.kind, self.can.first_token
        if not shows and request.handle is None and kind != "responses":
            found = read_prefilled(kind, raw)
            if found is not None:
                return found
        try:
            answer, reply = (read_answer if shows else read_counts)(kind, raw)
        except ValueError as error:
            raise UpstreamFailedError("engine-error", "the reply is not JSON") from error
        params = transfer_params(reply.handle)
        if params is None:
            raise UpstreamFailedError("no-kv", "the engine gave no transfer parameters")
        first = self._first(request, answer, reply) if shows else None
        return PrefillResult(params, reply, first=first, cached_tokens=cached_tokens(params))

    def decode(self, request: EngineRequest, result: PrefillResult | None, /) -> Call:
        """Return the client's request with what the prefill engine gave back."""
        if result is None or (result.written is None and result.params is None):
            raise NotPossibleError("no-kv")
        inference = request.inference
        says = _SAYS[inference.kind]
        own: Json = {}
        for name, value in inference.body.items():
            if name in says:
                own[name] = value
        self.ask_for_answer(request, own)
        call = self._leg(request, _begun(_dumps(result.params) if result.written is None else result.written, own))
        request.written = b""  # a stream need not keep its prompt
        return call

    def _leg(self, request: EngineRequest, begun: bytes) -> Call:
        """Return a leg with this beginning; the fields that both legs share are encoded once, by the first."""
        inference = request.inference
        if not request.written:
            says = _SAYS[inference.kind]
            alike: Json = {}
            for name, value in inference.body.items():
                if name not in says and name not in _ROUTERS:
                    alike[name] = value
            request.written = _dumps(alike)[1:]
        return Call(inference.path, begun, self.lines(request), request.written)

    def local(self, request: EngineRequest, /) -> Call:
        """Return the client's request; with ``ask.export`` the engine keeps the KV for the next round.

        The flag pair matters: an object with neither flag set would pin blocks for good.
        """
        fields = self.answer_fields(request)
        if request.export:
            fields["kv_transfer_params"] = _KEPT
        return self.call(request, fields)

    def slice(self, request: EngineRequest, ids: TokenIds, tokens: int, /) -> Call:
        """Return a request with the first token ids as prompt, for one output token that is discarded."""
        body: Json = {
            "model": request.inference.body["model"],
            "prompt": ids[:tokens].tolist(),
            "max_tokens": 1,
            "stream": False,
        }
        if request.salt is not None:
            body["cache_salt"] = request.salt
        return Call(
            "/v1/completions", orjson.dumps(body), header_lines({REQUEST_ID: f"{request.request_id}-slice-{tokens}"})
        )

    def resume(self, request: EngineRequest, reply: Reply, /) -> Call:
        """Return the request that goes on after the ids whose text the client has."""
        inference = request.inference
        reason = resume_obstacle(inference, reply)
        if reason is not None or reply.prompt_ids is None or reply.output_ids is None:
            raise NotPossibleError(reason or "no-ids")
        fields = self.answer_fields(request)
        fields["return_token_ids"] = True
        asked = {**inference.body, **fields}
        for name in OUTPUT_FIELDS[inference.kind]:
            most = asked.get(name)
            if isinstance(most, int):
                fields[name] = most - reply.shown
        least = asked.get("min_tokens")
        if isinstance(least, int):
            fields["min_tokens"] = max(0, least - reply.shown)
        ids = [*reply.prompt_ids, *reply.output_ids[: reply.shown]]
        lines = header_lines({REQUEST_ID: f"{request.request_id}-resumed"})
        if inference.kind == "chat":
            fields["kv_transfer_params"] = {"prompt_token_ids": ids}
            return self.call(request, fields, lines)
        body = {**inference.body, **fields, "prompt": ids}
        return Call(inference.path, orjson.dumps(body), lines)

    def release(self, params: Json, /) -> Call | None:
        """Return a request that the engine refuses before reading anything, which releases the blocks of its handle."""
        pointer = {**params, "do_remote_prefill": True, "do_remote_decode": False}
        if transfer_params(pointer) is None:
            return None
        body = {"model": NO_SUCH_MODEL, "prompt": [1], "max_tokens": 1, "kv_transfer_params": pointer}
        return Call("/v1/completions", orjson.dumps(body), "")

    def tokenize(self, request: EngineRequest, /) -> Call | None:
        """Return the request for the prompt's exact ids, rendered as the engine will render it."""
        inference = request.inference
        body: Json = {"model": inference.body["model"]}
        if inference.kind == "responses":
            return None
        if inference.kind == "text":
            if not isinstance(inference.prompt, str):
                return None
            body["prompt"] = inference.prompt
        else:
            body["messages"] = inference.messages
            body |= {name: inference.body[name] for name in _RENDERED if name in inference.body}
        return Call("/tokenize", orjson.dumps(body), self.lines(request))

    def read_ids(self, raw: bytes, /) -> TokenIds | None:
        """Return the ids of ``/tokenize``'s answer; None when it has none."""
        try:
            answer: object = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return None
        tokens = answer.get("tokens") if isinstance(answer, dict) else None
        return ids_of(tokens) if isinstance(tokens, list) else None

    def ask_for_answer(self, request: EngineRequest, fields: Json) -> None:
        """Add what only vLLM knows: token ids on request, and a response's id."""
        super().ask_for_answer(request, fields)
        if request.inference.kind == "responses":
            if request.response_id is not None:
                fields["request_id"] = request.response_id
        elif request.want_ids:
            fields["return_token_ids"] = True

    def _first(self, request: EngineRequest, answer: Json, reply: Reply) -> FirstToken | None:
        """Return the prefill's token where the decode engine will surely find the same one."""
        text = "".join(reply.text)
        if not text or not reply.plain or reply.finish_reason != "length" or not self._sure(request.inference):
            return None
        return FirstToken(text, answer, array("I", reply.output_ids or ()), reply.prompt_ids)

    def _sure(self, inference: Inference) -> bool:
        return self.can.first_token and same_first_token(inference)


def _begun(params: bytes, own: Json) -> bytes:
    """Return the beginning of a leg's body: its KV parameters and its own fields."""
    if not own:
        return b'{"kv_transfer_params":%b,' % params
    said = _dumps(own)
    return b'{"kv_transfer_params":%b,%b,' % (params, said[1:-1])
