"""Answer HTTP: vLLM's endpoints for everybody on this port, the mock engine's own for loopback only."""

import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping

import orjson
from aiohttp import web

from weft_mock.engine import Engine
from weft_mock.faults import FaultError, faults_from_json
from weft_mock.generation import GenerationCall
from weft_mock.kv_params import KvProtocolError, remote_of_rejected
from weft_mock.requests import ApiError, check_model, read_generation
from weft_mock.tokenizer import ChatError, UnknownTokenError, chat_ids, completion_ids, decode

log = logging.getLogger(__name__)

VLLM_VERSION = "0.32.0"
"""The vLLM version whose wire format this engine speaks."""

# A prompt of 128k tokens with its ids is about 2 MB; larger bodies are mistakes.
_MAX_BODY_BYTES = 64 * 2**20
_LOOPBACK = frozenset({"127.0.0.1", "::1", None})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def api_app(engine: Engine) -> web.Application:
    """Return the engine's HTTP application."""
    app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_errors])
    api = _Api(engine)
    app.router.add_post("/v1/chat/completions", api.chat)
    app.router.add_post("/v1/completions", api.completions)
    app.router.add_get("/v1/models", api.models)
    app.router.add_post("/tokenize", api.tokenize)
    app.router.add_post("/detokenize", api.detokenize)
    for path in ("/health", "/ping"):
        app.router.add_get(path, api.health)
    app.router.add_get("/version", api.version)
    app.router.add_get("/load", api.load)
    app.router.add_get("/metrics", api.metrics)
    app.router.add_get("/mock/ledger", api.ledger)
    app.router.add_get("/mock/faults", api.read_faults)
    app.router.add_post("/mock/faults", api.set_faults)
    return app


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give every error vLLM's form."""
    try:
        return await handler(request)
    except ApiError as error:
        return _json(error.to_json(), status=error.status)
    except web.HTTPException as error:
        kind = "NotFoundError" if error.status == 404 else "BadRequestError"
        return _json(ApiError(error.status, error.reason, kind=kind).to_json(), status=error.status)


class _Api:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        engine = self._engine
        status = engine.faults.answered_with()
        if status is not None:
            kind = "ServiceUnavailableError" if status == 503 else "InternalServerError"
            raise ApiError(status, "a fault says so", kind=kind)
        body = await _object(request)
        try:
            generation = read_generation(body, engine.config, chat=chat)
        except ApiError:
            # As vLLM does since 0.2x: nobody else would tell the prefill engine that its blocks are not needed.
            remote = remote_of_rejected(body.get("kv_transfer_params"))
            if remote is not None:
                engine.release_unread(remote)
            raise
        except KvProtocolError as error:
            engine.ledger.kv_protocol_errors[error.reason] += 1
            engine.ledger.kv_consequences[error.consequence] += 1
            log.error("kv_protocol_error", extra={"reason": error.reason, "consequence": error.consequence})
            raise ApiError(500, f"{error} ({error.consequence})", kind="InternalServerError") from error
        external_id = request.headers.get("X-Request-Id") or secrets.token_hex(16)
        call = GenerationCall(engine, generation, external_id=external_id)
        call.submit()
        try:
            if generation.stream:
                return await call.stream(request)
            return await call.answer()
        finally:
            call.cancel()

    async def models(self, _request: web.Request) -> web.Response:
        config = self._engine.config
        entries: list[Mapping[str, object]] = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "vllm",
                "root": config.model,
                "parent": None,
                "max_model_len": config.context_limit,
                "permission": [],
            }
            for name in config.names
        ]
        return _json({"object": "list", "data": entries})

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await _object(request)
        check_model(body, self._engine.config)
        prompt, messages = body.get("prompt"), body.get("messages")
        if isinstance(prompt, str):
            ids = completion_ids(prompt)
        elif isinstance(messages, list) and all(isinstance(m, dict) for m in messages):
            try:
                ids = chat_ids(messages, tools=body.get("tools"))
            except ChatError as error:
                raise ApiError(400, str(error), param="messages") from error
        else:
            raise ApiError(400, "prompt or messages: one of them is needed", param="prompt")
        limit = self._engine.config.context_limit
        return _json({"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": None})

    async def detokenize(self, request: web.Request) -> web.Response:
        body = await _object(request)
        tokens = body.get("tokens")
        if not isinstance(tokens, list) or not all(type(t) is int and t >= 0 for t in tokens):
            raise ApiError(400, "tokens: a list of token ids is needed", param="tokens")
        try:
            return _json({"prompt": decode(tokens)})
        except UnknownTokenError as error:
            raise ApiError(400, f"tokens: {error}", param="tokens") from error

    async def health(self, _request: web.Request) -> web.Response:
        faults = self._engine.faults
        if not faults.lie_health:
            await self._engine.resumed()
            if faults.unhealthy or faults.status is not None:
                return web.Response(status=503)
        return web.Response()

    async def version(self, _request: web.Request) -> web.Response:
        return _json({"version": VLLM_VERSION, "engine": "weft-mock"})

    async def load(self, _request: web.Request) -> web.Response:
        scheduler = self._engine.scheduler
        return _json({"server_load": len(scheduler.running) + len(scheduler.waiting) + len(scheduler.fetching)})

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=self._engine.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def ledger(self, request: web.Request) -> web.Response:
        _loopback_only(request)
        engine = self._engine
        pool = engine.scheduler.pool
        blocks = {
            "total": pool.total,
            "free": pool.free,
            "used": pool.used,
            "cached": pool.cached,
            "pinned": engine.pins.blocks,
            "block_size": pool.block_size,
        }
        state = {
            "engine_id": engine.config.engine_id,
            "role": engine.config.role,
            "blocks": blocks,
            "pins": len(engine.pins),
            "running": len(engine.scheduler.running),
            "waiting": len(engine.scheduler.waiting),
            "reading": len(engine.scheduler.fetching),
        }
        return _json({**state, **engine.ledger.to_json()})

    async def read_faults(self, request: web.Request) -> web.Response:
        _loopback_only(request)
        faults = self._engine.faults
        return _json({name: getattr(faults, name) for name in type(faults).__dataclass_fields__})

    async def set_faults(self, request: web.Request) -> web.Response:
        _loopback_only(request)
        try:
            self._engine.set_faults(faults_from_json(await _object(request)))
        except FaultError as error:
            raise ApiError(400, str(error)) from error
        return await self.read_faults(request)


async def _object(request: web.Request) -> Mapping[str, object]:
    try:
        body = orjson.loads(await request.read())
    except ValueError as error:
        raise ApiError(400, f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the body: a JSON object is needed")
    return body


def _loopback_only(request: web.Request) -> None:
    if request.remote not in _LOOPBACK:
        raise ApiError(403, "only reachable on loopback", kind="ForbiddenError")


def _json(body: Mapping[str, object], *, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json")
