"""Answer HTTP: the engine's endpoints for everybody on this port, the mock engine's own for loopback only."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from aiohttp import web

from weft_core.authority import authority
from weft_core.parallelism import parallelism_of
from weft_mock.adapters import add_adapters
from weft_mock.debug import add_debug
from weft_mock.engine import Engine
from weft_mock.errors import ApiError
from weft_mock.fields import read_flag
from weft_mock.generation import PLUGIN_VERSION, GenerationCall
from weft_mock.holder import add_meetings
from weft_mock.http_bodies import json_reply, read_object
from weft_mock.kv_params import KvProtocolError, remote_of_rejected
from weft_mock.prompts import Api, message_ids
from weft_mock.protocols.dialects import DIALECTS
from weft_mock.protocols.legs import EngineLeg, LeakingLeg
from weft_mock.protocols.reading import read_leg
from weft_mock.requests import Generation, check_model, read_generation
from weft_mock.tokenizer import UnknownTokenError, completion_ids, decode, encode

log = logging.getLogger(__name__)

# A prompt of 128k tokens with its ids is about 2 MB; larger bodies are mistakes.
_MAX_BODY_BYTES = 64 * 2**20
_ENGINE = web.AppKey("engine", Engine)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def api_app(engine: Engine) -> web.Application:
    """Return the engine's HTTP application."""
    protocol = engine.config.protocol
    api = _Api(engine)
    app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_errors, _record])
    app[_ENGINE] = engine
    app.router.add_post("/v1/chat/completions", api.chat)
    app.router.add_post("/v1/completions", api.completions)
    if protocol != "neuron":
        app.router.add_post("/v1/responses", api.responses)
    app.router.add_get("/v1/models", api.models)
    if protocol != "openai":
        app.router.add_post("/tokenize", api.tokenize)
        app.router.add_post("/detokenize", api.detokenize)
        app.router.add_get("/version", api.version)
    for path in ("/health", "/ping", "/health_generate"):
        app.router.add_get(path, api.health)
    app.router.add_get("/load", api.load)
    if protocol == "vllm":
        add_adapters(app, engine)
    if engine.config.plugin and protocol == "vllm":
        app.router.add_get("/weft/plugin", api.plugin)
    if protocol == "tensorrt-llm":
        app.router.add_get("/metrics", api.iteration_stats)
        app.router.add_get("/prometheus/metrics", api.metrics)
    else:
        app.router.add_get("/metrics", api.metrics)
    if protocol in ("sglang", "tensorrt-llm"):
        for path in ("/server_info", "/get_server_info"):
            app.router.add_get(path, api.server_info)
    if protocol == "neuron":
        # The ids of this protocol name the peer's API address.
        add_meetings(app, engine)
    add_debug(app, engine)
    return app


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give every error the engine's form."""
    flat = DIALECTS[request.app[_ENGINE].config.protocol].flat_errors
    try:
        return await handler(request)
    except ApiError as error:
        return json_reply(error.to_json(flat=flat), status=error.status)
    except web.HTTPException as raised:
        kind = "NotFoundError" if raised.status == 404 else "BadRequestError"
        refusal = ApiError(raised.status, raised.reason, kind=kind)
        return json_reply(refusal.to_json(flat=flat), status=raised.status)


@web.middleware
async def _record(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Keep what was sent."""
    if request.method == "POST" and not request.path.startswith("/mock/"):
        request.app[_ENGINE].recording.add("POST", request.path_qs, request.headers.items(), await request.read())
    return await handler(request)


class _Api:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._dialect = DIALECTS[engine.config.protocol]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "chat")

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "completions")

    async def responses(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "responses")

    async def _generate(self, request: web.Request, api: Api) -> web.StreamResponse:
        engine = self._engine
        status = engine.faults.answered_with()
        if status is not None:
            kind = "ServiceUnavailableError" if status == 503 else "InternalServerError"
            raise ApiError(status, "a fault says so", kind=kind)
        body = await read_object(request)
        try:
            generation, leg = read_leg(
                engine, read_generation(body, engine.config, api=api, headers=request.headers), request.headers
            )
        except ApiError:
            # As vLLM does since 0.2x: nobody else would tell the prefill engine that its blocks are not needed.
            remote = remote_of_rejected(body.get("kv_transfer_params")) if engine.config.protocol == "vllm" else None
            if remote is not None:
                engine.release_unread(remote)
            raise
        except KvProtocolError as error:
            generation, leg = await self._hurt(error, body, api)
        call = GenerationCall(engine, generation, leg, request=request)
        try:
            await call.begin()
            if generation.stream:
                return await call.stream()
            return await call.answer()
        finally:
            call.cancel()

    async def _hurt(self, error: KvProtocolError, body: Mapping[str, object], api: Api) -> tuple[Generation, EngineLeg]:
        """Count wrong transfer parameters and refuse them, or, if trusting, do what stock vLLM does with them."""
        engine = self._engine
        engine.ledger.kv_protocol_errors[error.reason] += 1
        engine.ledger.kv_consequences[error.consequence] += 1
        log.error("kv_protocol_error", extra={"reason": error.reason, "consequence": error.consequence})
        if not engine.config.trusting:
            raise ApiError(500, f"{error} ({error.consequence})", kind="InternalServerError") from error
        if error.consequence == "would_crash":
            engine.die()
            raise ApiError(500, "EngineCore encountered an issue.", kind="InternalServerError") from error
        rest = {name: value for name, value in body.items() if name != "kv_transfer_params"}
        leg = LeakingLeg() if error.consequence == "would_leak" else EngineLeg()
        return replace(read_generation(rest, engine.config, api=api), body=body), leg

    async def models(self, _request: web.Request) -> web.Response:
        config = self._engine.config
        entries: list[Mapping[str, object]] = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": self._dialect.owned_by,
                "root": config.adapters.get(name, config.model),
                "parent": config.names[0] if name in config.adapters else None,
                "max_model_len": config.context_limit,
                "permission": [],
            }
            for name in (*config.names, *config.adapters)
        ]
        return json_reply({"object": "list", "data": entries})

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await read_object(request)
        check_model(body, self._engine.config)
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            ids = completion_ids(prompt) if read_flag(body, "add_special_tokens", default=True) else encode(prompt)
        elif isinstance(body.get("messages"), list):
            ids = message_ids(body["messages"], body)
        else:
            raise ApiError(400, "prompt or messages: one of them is needed", param="prompt")
        texts = [decode([i]) for i in ids] if read_flag(body, "return_token_strs") else None
        limit = self._engine.config.context_limit
        return json_reply({"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": texts})

    async def detokenize(self, request: web.Request) -> web.Response:
        body = await read_object(request)
        tokens = body.get("tokens")
        if not isinstance(tokens, list) or not all(type(t) is int and t >= 0 for t in tokens):
            raise ApiError(400, "tokens: a list of token ids is needed", param="tokens")
        try:
            return json_reply({"prompt": decode(tokens)})
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
        return json_reply({"version": self._dialect.version, "engine": "weft-mock"})

    async def plugin(self, _request: web.Request) -> web.Response:
        page = {"plugin": PLUGIN_VERSION, "vllm": self._dialect.version, "handles": True, "proof": False}
        return json_reply(page)

    async def load(self, _request: web.Request) -> web.Response:
        scheduler = self._engine.scheduler
        return json_reply({"server_load": len(scheduler.running) + scheduler.queued + len(scheduler.fetching)})

    async def server_info(self, _request: web.Request) -> web.Response:
        engine = self._engine
        config = engine.config
        endpoint = authority(config.side_channel_host, engine.side_channel_port)
        if config.protocol == "tensorrt-llm":
            return json_reply({"disaggregated_params": {"ctx_dp_rank": 0, "ctx_info_endpoint": [endpoint]}})
        return json_reply(
            {
                "model_path": config.model,
                "served_model_name": config.names[0],
                "disaggregation_mode": {"both": "null"}.get(config.role, config.role),
                "disaggregation_bootstrap_port": engine.side_channel_port,
                "tp_size": parallelism_of(config.degree).tp,
                "context_length": config.context_limit,
                "max_total_num_tokens": config.capacity_tokens,
            }
        )

    async def iteration_stats(self, _request: web.Request) -> web.Response:
        scheduler = self._engine.scheduler
        pool = scheduler.pool
        cache = {
            "maxNumBlocks": pool.total,
            "freeNumBlocks": pool.free,
            "usedNumBlocks": pool.used,
            "tokensPerBlock": pool.block_size,
        }
        latest = {
            "numActiveRequests": len(scheduler.running),
            "numQueuedRequests": scheduler.queued + len(scheduler.fetching),
            "kvCacheStats": cache,
        }
        return json_reply([latest])

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=self._engine.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )
