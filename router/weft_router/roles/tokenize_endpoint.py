"""Let a decode worker's engine count a prompt's tokens: within the caller's bounds, one worker after the other."""

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import cast

import orjson

from weft_core.heartbeat import WorkerRecord
from weft_router.anthropic.request import chat_of
from weft_router.config import RouterConfig
from weft_router.errors import ApiError, InvalidRequestError, UpstreamFailedError, engine_error
from weft_router.http.exchange import Exchange
from weft_router.limits.admission import AdmissionPermit
from weft_router.openai.answers import adapter_missing, not_ready
from weft_router.openai.body import Json, sanitise
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import MOST_CHARS_PER_TOKEN, TOKENIZED, check_model, check_tokenized
from weft_router.roles.body_reader import read_body
from weft_router.state.registry import Registry

PATH = "/tokenize"


class TokenizeEndpoint:
    """The endpoint ``/tokenize`` of a front."""

    def __init__(
        self, config: RouterConfig, *, registry: Registry,
        ask: Callable[[WorkerRecord, str, bytes], Awaitable[tuple[int, bytes]]],
        admit: Callable[[Exchange, Json], AdmissionPermit],
    ) -> None:  # fmt: skip
        self._model = config.model
        self._allowed = RequestLimits(config.model, config.limits, config.requests, adapters=config.adapters)
        self._registry = registry
        self._ask = ask
        self._admit = admit
        self._asked = 0

    def reload(self, config: RouterConfig) -> None:
        """Apply another configuration's adapters."""
        self._allowed = RequestLimits(config.model, config.limits, config.requests, adapters=config.adapters)

    async def serve(self, exchange: Exchange) -> None:
        """Answer with what an engine says.

        Raises:
            ApiError: nobody can count, the caller may not ask now, or the text cannot fit into the context.
        """
        status, reply = await self._count(exchange, lambda body: body)
        exchange.reply(status, reply)

    async def serve_messages(self, exchange: Exchange) -> None:
        """Answer with the tokens of a request in the form of Anthropic's Messages API.

        Raises:
            ApiError: as of ``serve``; or the request cannot be read.
        """
        status, reply = await self._count(exchange, _tokenized)
        if status != 200:
            exchange.reply(status, engine_error(status, reply).message_body())
            return
        exchange.reply(200, orjson.dumps({"input_tokens": orjson.loads(reply)["count"]}))

    async def _count(self, exchange: Exchange, form: Callable[[Json], Json]) -> tuple[int, bytes]:
        """Return an engine's answer to a request, brought into the engine's form."""
        ready = self._registry.ready("decode")
        if not ready:
            raise not_ready("decode worker")
        if len(exchange.body) > MOST_CHARS_PER_TOKEN * self._model.max_model_len:
            raise InvalidRequestError(
                f"the text cannot fit into the model's context of {self._model.max_model_len} tokens; send less",
                code="context_length_exceeded",
            )
        body = form(await read_body(exchange, self._allowed.max_nodes))
        admitted = self._admit(exchange, body)
        try:
            sanitise(body)
            check_model(body, self._allowed)
            check_tokenized(body, self._allowed)
            version = self._allowed.adapters.get(cast(str, body["model"]), "")
            ready = [record for record in ready if record.has_adapter(version)]
            if not ready:
                raise adapter_missing(cast(str, body["model"]))
            self._asked += 1
            return await self._ask(ready[self._asked % len(ready)], PATH, orjson.dumps(body))
        except UpstreamFailedError as error:
            raise ApiError(
                f"the engine did not count the tokens ({error.reason}); try again", status=502, kind="server_error"
            ) from error
        finally:
            admitted.done(monotonic())


def _tokenized(body: Json) -> Json:
    """Return what decides a prompt's tokens, of a request for a message."""
    chat = chat_of({**body, "max_tokens": 1})
    return {name: value for name, value in chat.items() if name in TOKENIZED}
