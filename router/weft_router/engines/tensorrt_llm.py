"""Speak TensorRT-LLM's disaggregated protocol: a context server, then a generation server that goes on from its token.

The first token is not computed again: the context server's reply carries it, and the prompt's ids, which the generation
server gets instead of text. A context server that already finished the answer needs no generation server.
"""

from typing import cast

import orjson

from weft_router.engines.adapter import (
    AdapterOptions,
    Call,
    Capabilities,
    EngineRequest,
    NotPossibleError,
    PrefillResult,
    room_of,
)
from weft_router.engines.load import TENSORRT_LLM
from weft_router.engines.openai import OpenAi
from weft_router.errors import UpstreamFailedError
from weft_router.openai.body import Json
from weft_router.openai.reply import Reply, drop_ids, head_of, read_answer, to_event

_CONTEXT_FIRST = 0
"""The schedule style. The other one sends both legs at once, for which the router would have to tokenize first."""
_STREAMED = frozenset({"stream_options"})
_GOES_ON = ("length", "not_finished")
"""What a context server says of an answer that its one token does not end."""


class TensorRtLlm(OpenAi):
    """The adapter of ``trtllm-serve``."""

    salted = True

    def __init__(self, traits: AdapterOptions) -> None:
        super().__init__(traits)
        self.gauges = TENSORRT_LLM
        self.can = Capabilities(order="prefill-then-decode", local=True)

    def prefill(self, request: EngineRequest, /) -> Call:
        """Return the request for the context phase."""
        fields = self.answer_fields(request)
        fields.pop("stream_options", None)
        fields["stream"] = False
        fields["disaggregated_params"] = {
            "request_type": "context_only",
            "disagg_request_id": room_of(request),
            "schedule_style": _CONTEXT_FIRST,
        }
        return self.call(request, fields, without=_STREAMED)

    def read_prefill(self, request: EngineRequest, raw: bytes, /) -> PrefillResult:
        """Read the context's parameters and ids, or the whole answer when it is already at its end."""
        kind = request.inference.kind
        try:
            answer, reply = read_answer(kind, raw)
        except ValueError as error:
            raise UpstreamFailedError("engine-error", "the reply is not JSON") from error
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        params = choice.pop("disaggregated_params", None)
        if reply.finish_reason is not None and reply.finish_reason not in _GOES_ON:
            return PrefillResult(None, reply, finished=_finished(request, answer, reply))
        if not isinstance(params, dict) or (kind != "responses" and reply.prompt_ids is None):
            raise UpstreamFailedError("no-kv", "the context server gave no parameters or no prompt ids")
        found = cast(Json, params)
        if answer.get("usage") is not None:
            found["ctx_usage"] = answer["usage"]
        return PrefillResult(found, reply)

    def decode(self, request: EngineRequest, result: PrefillResult | None, /) -> Call:
        """Return the request for the generation phase."""
        fields = self.answer_fields(request)
        if result is None or result.params is None or result.reply.prompt_ids is None:
            raise NotPossibleError("no-kv")
        params: Json = {
            "request_type": "generation_only",
            "schedule_style": _CONTEXT_FIRST,
            "disagg_request_id": room_of(request),
        }
        fields["disaggregated_params"] = {**result.params, **params}
        ids = result.reply.prompt_ids.tolist()
        if request.inference.kind == "text":
            body = {**request.inference.body, **fields, "prompt": ids}
            return Call(request.inference.path, orjson.dumps(body), self.lines(request))
        fields["prompt_token_ids"] = ids
        return self.call(request, fields)


def _finished(request: EngineRequest, answer: Json, reply: Reply) -> bytes:
    """Return the client's whole answer, or its events."""
    if not request.inference.wants_ids:
        drop_ids(answer)
    if not request.inference.stream:
        return orjson.dumps(answer)
    chat = request.inference.kind == "chat"
    head: Json = {**head_of(answer), "object": "chat.completion.chunk" if chat else "text_completion"}
    text = "".join(reply.text)
    part: Json = {"delta": {"role": "assistant", "content": text}} if chat else {"text": text}
    if reply.tool_calls:
        calls = [{"index": i, **call} for i, call in sorted(reply.tool_calls.items())]
        cast(Json, part["delta"])["tool_calls"] = calls
    choice: Json = {"index": 0, **part, "logprobs": None, "finish_reason": reply.finish_reason}
    events = to_event({**head, "choices": [choice]})
    if request.inference.wants_usage and answer.get("usage") is not None:
        events += to_event({**head, "choices": [], "usage": answer["usage"]})
    return events + b"data: [DONE]\n\n"
