"""TensorRT-LLM's prefill/decode protocol, ``disaggregated_params``: context_only first, then generation_only.

The context server answers with its first token, the prompt's ids and an opaque state; the generation server gets all
of them back, reads the KV, and does not compute the first token again. Under generation_first both legs are sent at
once and meet by ``disagg_request_id`` at the context server's ``ctx_info_endpoint``.
"""

import base64
import binascii
import itertools
from collections.abc import Mapping
from typing import Final

import orjson

from weft_core.authority import authority, split_authority
from weft_mock.engine import Engine
from weft_mock.errors import ApiError
from weft_mock.fields import token_ids
from weft_mock.meetings import Offer
from weft_mock.protocols.legs import EngineLeg, HoldingLeg, JoiningLeg
from weft_mock.protocols.refusals import one_answer, one_token, violation
from weft_mock.requests import Generation
from weft_mock.sequence import Sequence
from weft_mock.transfer import ReadFailedError

CONTEXT_FIRST: Final = 0
GENERATION_FIRST: Final = 1
_KNOWN = frozenset(
    {
        "request_type",
        "first_gen_tokens",
        "first_gen_log_probs",
        "first_gen_logits",
        "ctx_request_id",
        "encoded_opaque_state",
        "draft_tokens",
        "disagg_request_id",
        "ctx_dp_rank",
        "ctx_info_endpoint",
        "schedule_style",
        "conversation_id",
        "ctx_usage",
    }
)
_ROLE = {"context_only": "prefill", "generation_only": "decode"}
# Ids a context server makes up itself; those of a router are far larger.
_own_ids = itertools.count(1)


def read(engine: Engine, generation: Generation, _headers: Mapping[str, str]) -> tuple[Generation, EngineLeg]:
    """Return the leg that ``disaggregated_params`` make of a request; without them it is served here alone.

    Raises:
        ApiError: a field is missing, wrong, or not for this engine.
    """
    params = generation.body.get("disaggregated_params")
    if params is None:
        return generation, EngineLeg()
    if not isinstance(params, Mapping) or generation.api == "responses":
        raise violation(engine, "wrong_type", "disaggregated_params: an object is needed, in chat or completions")
    unknown = sorted(str(name) for name in params if name not in _KNOWN)
    if unknown:
        raise violation(engine, "unknown_field", f"disaggregated_params.{unknown[0]}: extra inputs are not permitted")
    kind = params.get("request_type")
    if not isinstance(kind, str) or kind not in _ROLE:
        raise violation(
            engine, "wrong_type", "disaggregated_params.request_type: context_only or generation_only is needed"
        )
    if engine.config.role not in ("both", _ROLE[kind]):
        raise violation(engine, "wrong_role", f"disaggregated_params.request_type: {kind} is not for this server")
    style = params.get("schedule_style")
    if style not in (None, CONTEXT_FIRST, GENERATION_FIRST) or isinstance(style, bool):
        raise violation(engine, "wrong_type", "disaggregated_params.schedule_style: 0 or 1 is needed")
    one_answer(engine, generation)
    if kind == "context_only":
        return _context(engine, generation, params)
    return _generation(engine, generation, params)


def _context(engine: Engine, generation: Generation, params: Mapping[str, object]) -> tuple[Generation, EngineLeg]:
    if generation.stream:
        raise violation(engine, "context_streamed", "stream: a context_only request does not stream", param="stream")
    given = [name for name in ("first_gen_tokens", "encoded_opaque_state") if params.get(name) is not None]
    if given:
        raise violation(engine, "context_with_state", f"disaggregated_params.{given[0]}: not in a context_only request")
    request_id = _whole(engine, params, "disagg_request_id")
    leg = _ContextLeg(
        engine,
        next(_own_ids) if request_id is None else request_id,
        wanted=generation.limits.max_tokens,
        params=params,
    )
    return one_token(generation), leg


def _generation(engine: Engine, generation: Generation, params: Mapping[str, object]) -> tuple[Generation, EngineLeg]:
    if token_ids(generation.body.get("prompt" if generation.api == "completions" else "prompt_token_ids")) == []:
        raise violation(
            engine, "prompt_not_replaced", "prompt: a generation_only request has the context server's prompt_token_ids"
        )
    request_id = _whole(engine, params, "ctx_request_id")
    if request_id is None:
        raise violation(engine, "incomplete", "disaggregated_params.ctx_request_id: missing")
    if params.get("schedule_style") == GENERATION_FIRST and params.get("encoded_opaque_state") is None:
        where = _endpoint(engine, params)
        return generation, _GenerationLeg(engine, where, request_id, expected=None)
    first = token_ids(params.get("first_gen_tokens"))
    if not first:
        raise violation(engine, "incomplete", "disaggregated_params.first_gen_tokens: a list of token ids is needed")
    where, held = _opaque(engine, params)
    if held != request_id:
        raise violation(
            engine, "wrong_request", "disaggregated_params.ctx_request_id: not the request of encoded_opaque_state"
        )
    return generation, _GenerationLeg(engine, where, request_id, expected=tuple(first))


class _ContextLeg(HoldingLeg):
    def __init__(self, engine: Engine, request_id: int, *, wanted: int, params: Mapping[str, object]) -> None:
        super().__init__(
            engine,
            f"ctx_request_id={request_id}",
            waits_for_reader=False,
            waits_for_read=False,
            # An answer that ends with its first token needs no generation server.
            keep_stopped=False,
        )
        self._request_id = request_id
        self._wanted = wanted
        self._params = params

    def dress(self, reply: dict[str, object], sequence: Sequence) -> None:
        """Add what the generation server needs."""
        engine = self._engine
        config = engine.config
        choices = reply["choices"]
        if not isinstance(choices, list):
            return
        choice = choices[0]
        if choice["finish_reason"] == "length" and self._wanted > 1:
            choice["finish_reason"] = "not_finished"
        state = {"host": config.side_channel_host, "port": engine.side_channel_port, "id": self._request_id}
        choice["disaggregated_params"] = {
            "request_type": "context_only",
            "first_gen_tokens": sequence.tokens[sequence.prompt_length :],
            "ctx_request_id": self._request_id,
            "encoded_opaque_state": base64.b64encode(orjson.dumps(state)).decode(),
            "draft_tokens": None,
            "disagg_request_id": self._params.get("disagg_request_id"),
            "ctx_dp_rank": 0,
            "ctx_info_endpoint": authority(config.side_channel_host, engine.side_channel_port),
            "schedule_style": self._params.get("schedule_style"),
            "ctx_usage": reply["usage"],
        }
        reply["prompt_token_ids"] = sequence.tokens[: sequence.prompt_length]


class _GenerationLeg(JoiningLeg):
    def __init__(
        self, engine: Engine, where: tuple[str, int], request_id: int, *, expected: tuple[int, ...] | None
    ) -> None:
        super().__init__(engine, where, f"ctx_request_id={request_id}")
        self._expected = expected
        if expected is not None:
            # A context server that has answered has its KV ready: there is nothing to wait for.
            self._patience = 0.0

    def refused(self, error: ReadFailedError) -> ApiError:
        """Refuse an id that is not held, or was used."""
        if error.reason == "unreachable":
            return super().refused(error)
        return ApiError(400, f"disaggregated_params.{self._key}: the context server holds no such request ({error})")

    def mistake(self, offer: Offer) -> str | None:
        """Compare the first tokens with those the context server made."""
        if self._expected is None or offer.first_tokens == self._expected:
            return None
        return "disaggregated_params.first_gen_tokens: not those of the context server"


def _whole(engine: Engine, params: Mapping[str, object], name: str) -> int | None:
    value = params.get(name)
    if value is None:
        return None
    if type(value) is not int or value < 0:
        raise violation(engine, "wrong_type", f"disaggregated_params.{name}: a whole number is needed")
    return value


def _endpoint(engine: Engine, params: Mapping[str, object]) -> tuple[str, int]:
    try:
        return split_authority(str(params.get("ctx_info_endpoint") or ""))
    except ValueError:
        raise violation(engine, "incomplete", "disaggregated_params.ctx_info_endpoint: host:port is needed") from None


def _opaque(engine: Engine, params: Mapping[str, object]) -> tuple[tuple[str, int], int]:
    try:
        state = orjson.loads(base64.b64decode(str(params.get("encoded_opaque_state") or ""), validate=True))
        return (str(state["host"]), int(state["port"])), int(state["id"])
    except (binascii.Error, ValueError, KeyError, TypeError) as error:
        raise violation(
            engine, "wrong_state", "disaggregated_params.encoded_opaque_state: not one of a context server"
        ) from error
