"""A scripted engine over real sockets: one token a byte, vLLM's prefill/decode objects, and failures on demand.

It counts the KV it holds for others: what it gave a handle for and nobody read or let go of. Its answers depend on
every prompt id, and a prompt that ends with the beginning of its own answer is gone on with, as a greedy model does.
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from weft_core.authority import http_url

Body = dict[str, Any]

DYING_S = 0.3
"""Into a prefill: what breaks at once may be a connection that was closed while idle, and is sent again."""
NO_SUCH_MODEL = "weft-release"
TOKEN_BYTES = 4096
TOKEN_S = 1e-6
"""What it says that the KV of a token took to read."""
MAX_GIVEN = 256
"""Most ids of an answer that a prompt may already hold."""


@dataclass
class Script:
    """How the engine behaves from now on."""

    status: int = 200
    health: int = 200
    length: int = 8
    ends: str = "stop"
    """The finish reason of answers in one piece."""
    poison: str = ""
    """Part of a body that ends the engine, as a query of death does: its port refuses from then on."""
    poison_at: int = 0
    """After so many tokens of a stream it does so; 0: as the request comes."""
    times: int | None = None
    """How many requests the failures below hit; None: all."""
    every: int = 1
    """Only one of so many is hit."""
    once: set[str] | None = None
    """Requests that were hit, shared by engines: none is hit a second time, wherever it goes on."""
    die_at: str = ""
    """before_headers, after_headers or after_body: where the answer to a prefill is cut off and its KV lost."""
    error_body: Body | None = None
    die_at_token: int | None = None
    hang: bool = False
    error_event: bool = False
    told_to_end: asyncio.Event | None = None
    """Once set, streams end with an error event, as those of an engine do that gets a SIGTERM."""
    refuse_handles: bool = False
    hang_reads: bool = False
    """Whether nothing that it is to read ever comes."""
    computes_instead: bool = False
    """Whether it computes what it was to read."""
    wrong_ids: bool = False
    no_params: bool = False
    no_usage: bool = False
    cut_short: bool = False
    plugin: bool = True
    gap_s: float = 0.0
    gate: asyncio.Event | None = None
    tool_call: bool = False
    close_reused: bool = False
    padding: int = 0
    delay_s: float = 0.0
    tokenizes: bool = False
    """Whether it answers /tokenize, as engines do whose prefills can be sliced."""


@dataclass
class FakeEngine:
    """One engine; ``seen`` holds every inference body it was sent."""

    name: str
    script: Script = field(default_factory=Script)
    seen: list[Body] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    strange: list[Body] = field(default_factory=list)
    """Bodies sent to endpoints that this engine does not have."""
    running: int = 0
    streamed: int = 0
    """Tokens written to streams."""
    aborted: int = 0
    host: str = "127.0.0.1"
    port: int = 0
    kv_usage: float = 0.0
    waiting: int = 0
    on_request: Callable[[Body], None] | None = None
    peers: dict[str, "FakeEngine"] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    """Tokens of KV by the request that made them, kept for a reader."""
    forgets: bool = False
    """Whether it keeps nothing of what it was sent, for runs of hours."""
    released: int = 0
    pulled: int = 0
    """Tokens of KV that it read from others."""
    transfers: int = 0
    died: int = 0
    ended: int = 0
    """How often it ended as a process does that crashes."""
    _endings: list[asyncio.Task[None]] = field(default_factory=list)
    _chances: int = 0
    _handles: int = 0
    _number: int = 0
    _runner: web.AppRunner | None = None
    _met: list[asyncio.Transport | None] = field(default_factory=list)

    @property
    def url(self) -> str:
        return http_url(self.host, self.port)

    async def start(self, port: int) -> None:
        app = web.Application(client_max_size=2**27)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/weft/plugin", self._plugin),
                web.post("/v1/chat/completions", self._infer),
                web.post("/v1/completions", self._infer),
                web.route("*", "/{rest:.*}", self._strange),
            ]
        )
        self.port = port
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, port).start()

    async def stop(self) -> None:
        """Die: connections break, and the KV is gone."""
        self.held.clear()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def perish(self) -> None:
        """End at once, as a process does that crashes."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        self.ended += 1
        self.held.clear()
        for site in runner.sites:
            server = getattr(site, "_server", None)
            if server is not None:
                server.close()
        for handler in runner.server.connections if runner.server is not None else ():
            if handler.transport is not None:
                handler.transport.abort()
        self._endings.append(asyncio.get_running_loop().create_task(runner.cleanup()))

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=self.script.health)

    async def _plugin(self, _: web.Request) -> web.Response:
        return web.json_response({"handles": True}, status=200 if self.script.plugin else 404)

    async def _metrics(self, _: web.Request) -> web.Response:
        text = f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {self.kv_usage}\n'
        text += f'vllm:num_requests_running{{engine="0"}} {float(self.running)}\n'
        text += f'vllm:num_requests_waiting{{engine="0"}} {float(self.waiting)}\n'
        text += 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0\n'
        text += f'vllm:nixl_bytes_transferred_sum{{engine="0"}} {self.pulled * TOKEN_BYTES}.0\n'
        text += f'vllm:nixl_xfer_time_seconds_sum{{engine="0"}} {self.pulled * TOKEN_S}\n'
        text += f'vllm:nixl_xfer_time_seconds_count{{engine="0"}} {self.transfers}.0\n'
        text += f'vllm:prompt_tokens_by_source_total{{engine="0",source="external_kv_transfer"}} {self.pulled}.0\n'
        text += 'vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 1000000.0\n'
        return web.Response(text=text)

    async def _strange(self, request: web.Request) -> web.Response:
        """Refuse what this engine does not serve, and remember what came."""
        raw = await request.read()
        if request.path == "/tokenize" and self.script.tokenizes:
            ids = prompt_ids(orjson.loads(raw))
            return web.json_response({"tokens": ids, "count": len(ids)})
        self.strange.append(orjson.loads(raw) if raw else {"path": request.path})
        return web.json_response({"error": {"message": "no such endpoint", "code": 404}}, status=404)

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        body: Body = orjson.loads(await request.read())
        if self.script.close_reused and request.transport in self._met:
            self._met.clear()
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if not self.forgets:
            self._met.append(request.transport)
        if body["model"] == NO_SUCH_MODEL:
            return self._let_go(body)
        self._number += 1
        if not self.forgets:
            self.seen.append(body)
            self.headers.append(dict(request.headers))
        if self.on_request is not None:
            self.on_request(body)
        if not self.script.poison_at and self._poisonous(body):
            if self.script.gate is not None:
                await self.script.gate.wait()
            self.perish()
            return web.Response()
        self.running += 1
        try:
            return await self._answer(request, body)
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.running -= 1

    def _let_go(self, body: Body) -> web.Response:
        """Refuse an unknown model; what the request points at is free then, as its reader will never come."""
        params = body["kv_transfer_params"]
        holder = self.peers.get(params["remote_engine_id"])
        if holder is not None and holder is not self and holder.held.pop(params["remote_request_id"], None) is not None:
            holder.released += 1
        return web.json_response({"error": {"message": "no such model", "code": 404}}, status=404)

    def _poisonous(self, body: Body) -> bool:
        return bool(self.script.poison) and self.script.poison in orjson.dumps(body).decode()

    def _dies(self, request: web.Request) -> bool:
        """Return whether this answer is cut off; count it."""
        script = self.script
        self._chances += 1
        if script.times == 0 or self._chances % script.every:
            return False
        if script.once is not None:
            name = request.headers.get("X-Request-Id", "").removesuffix("-resumed")
            if name in script.once:
                return False
            script.once.add(name)
        if script.times is not None:
            script.times -= 1
        self.died += 1
        return True

    async def _answer(self, request: web.Request, body: Body) -> web.StreamResponse:
        script = self.script
        assert request.transport is not None
        if script.gate is not None:
            await script.gate.wait()
        await asyncio.sleep(script.delay_s)
        if script.hang:
            await asyncio.sleep(3600)
        params = body.get("kv_transfer_params") or {}
        if script.status != 200:
            error = script.error_body or {"error": {"message": "scripted failure", "type": "x", "code": script.status}}
            return web.json_response(error, status=script.status)
        if script.die_at == "before_headers" and self._dies(request):
            await asyncio.sleep(DYING_S)
            request.transport.abort()
            return web.Response()
        reads = params.get("remote_block_ids") is not None
        if reads and script.hang_reads:
            await asyncio.sleep(3600)
        if reads and not self._read(params):
            return web.json_response({"error": {"message": "KV load failed", "code": 500}}, status=500)
        prompt = prompt_ids(body)
        if script.wrong_ids:
            prompt = [7, *prompt]
        output = self._output(body, prompt)
        cached = (params.get("remote_num_tokens") or 0) if reads else 0
        handle = self._handle(params, prompt, output)
        finished = _Finished(f"cmpl-{self.name}-{self._number}", body, prompt, output, cached, handle, script)
        if body.get("stream"):
            return await self._stream(request, finished)
        if script.die_at == "after_headers" and self._dies(request):
            out = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
            await out.prepare(request)
            await out.write(b'{"id":')
            self.held.pop((handle or {}).get("remote_request_id", ""), None)
            request.transport.abort()
            return out
        if script.die_at == "after_body" and self._dies(request):
            self.held.pop((handle or {}).get("remote_request_id", ""), None)
        if len(finished.output) > 1:
            await asyncio.sleep(script.gap_s * len(finished.output))
        return web.json_response(finished.whole())

    def _read(self, params: Body) -> bool:
        """Take KV from another engine that holds it; it can be read once."""
        holder = self.peers.get(params["remote_engine_id"])
        if self.script.refuse_handles or holder is self:
            return False
        found = holder is None or holder.held.pop(params["remote_request_id"], None) is not None
        if found and not self.script.computes_instead:
            self.transfers += 1
            self.pulled += params.get("remote_num_tokens") or 0
        return found

    def _output(self, body: Body, prompt: list[int]) -> list[int]:
        """Return the answer's ids, without what of it the prompt already has."""
        limit = body.get("max_tokens") or body.get("max_completion_tokens")
        most = limit or self.script.length
        ids = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
        given = ids is not None or isinstance(body.get("prompt"), list)
        for had in range(min(len(prompt), MAX_GIVEN), 0, -1) if given else ():
            start, end = prompt[:-had], prompt[-had:]
            if list(reply_text(start, had).encode()) == end:
                return list(reply_text(start, had + limit if limit else self.script.length).encode())[had:]
        return list(reply_text(prompt, most).encode())

    def _handle(self, params: Body, prompt: list[int], output: list[int]) -> Body | None:
        if not (params.get("do_remote_decode") or params.get("do_remote_prefill")) or self.script.no_params:
            return None
        exports = params.get("do_remote_decode") is True
        tokens = len(prompt) + (len(output) - 1 if len(output) > 1 else 0)
        self._handles += 1
        name = f"{self.name}-{self._handles}"
        self.held[name] = tokens
        return {
            "do_remote_prefill": exports,
            "do_remote_decode": not exports,
            "remote_block_ids": [list(range(1 + tokens // 16))],
            "remote_engine_id": self.name,
            "remote_request_id": name,
            "remote_host": self.host,
            "remote_port": 5600,
            "tp_size": 1,
            "remote_num_tokens": tokens,
            "remote_blocks_expiry_time": None,
            "remote_prefill_cached_tokens": params.get("remote_num_tokens") or 0,
        }

    async def _stream(self, request: web.Request, finished: "_Finished") -> web.StreamResponse:
        script = self.script
        plugin = {"X-Weft-Engine-Plugin": "1"} if script.plugin else {}
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream", **plugin})
        await out.prepare(request)
        if script.error_event:
            await out.write(b'data: {"error": {"message": "KV load failed", "code": 500}}\n\ndata: [DONE]\n\n')
            return out
        await out.write(finished.opening())
        for k in range(len(finished.output)):
            if k and k == script.poison_at and self._poisonous(finished.body):
                self.perish()
                return out
            if k == script.die_at_token and self._dies(request):
                assert request.transport is not None
                request.transport.abort()
                return out
            if script.cut_short and k == len(finished.output) - 1:
                return out
            if script.gap_s:
                await asyncio.sleep(script.gap_s)
            if script.told_to_end is not None and script.told_to_end.is_set():
                await out.write(b'data: {"error": {"message": "the engine is shutting down", "code": 500}}\n\n')
                return out
            if k == len(finished.output) - 1 and finished.handle is not None and script.plugin:
                await out.write(b": kv_transfer_params " + orjson.dumps(finished.handle) + b"\n\n")
            await out.write(finished.token(k))
            self.streamed += 1
            if script.padding:
                await out.write(b": " + b"x" * script.padding + b"\n\n")
        if script.die_at_token == len(finished.output) and self._dies(request):
            assert request.transport is not None
            request.transport.abort()
            return out
        if not script.no_usage and (finished.body.get("stream_options") or {}).get("include_usage"):
            await out.write(finished.usage_chunk())
        await out.write(b"data: [DONE]\n\n")
        return out


@dataclass
class _Finished:
    id: str
    body: Body
    prompt: list[int]
    output: list[int]
    cached: int
    handle: Body | None
    script: Script

    @property
    def chat(self) -> bool:
        return "messages" in self.body

    @property
    def ids(self) -> bool:
        return bool(self.body.get("return_token_ids"))

    def usage(self) -> Body:
        return {
            "prompt_tokens": len(self.prompt),
            "completion_tokens": len(self.output),
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def opening(self) -> bytes:
        if not self.chat:
            return b""
        extra: Body = {"prompt_token_ids": self.prompt} if self.ids else {}
        delta = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return _event({"id": self.id, "model": self.body["model"], "choices": [delta], **extra})

    def token(self, k: int) -> bytes:
        text = chr(self.output[k])
        last = "stop" if k == len(self.output) - 1 else None
        choice: Body = {"index": 0, "finish_reason": last}
        if self.chat and self.script.tool_call:
            call = {"index": 0, "function": {"arguments": text}}
            if k == 0:
                call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": text}}
            choice["delta"] = {"tool_calls": [call]}
        elif self.chat:
            choice["delta"] = {"content": text}
        else:
            choice["text"] = text
            if k == 0 and self.ids:
                choice["prompt_token_ids"] = self.prompt
        if self.ids:
            choice["token_ids"] = [self.output[k]]
        return _event({"id": self.id, "model": self.body["model"], "choices": [choice]})

    def usage_chunk(self) -> bytes:
        return _event({"id": self.id, "model": self.body["model"], "choices": [], "usage": self.usage()})

    def whole(self) -> Body:
        text = bytes(self.output).decode()
        choice: Body = {"index": 0, "finish_reason": self.script.ends}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        answer: Body = {"id": self.id, "model": self.body["model"], "choices": [choice], "usage": self.usage()}
        if self.ids:
            choice["token_ids"] = self.output
            answer["prompt_token_ids"] = self.prompt
        if self.handle is not None:
            answer["kv_transfer_params"] = self.handle
        return answer


def _event(chunk: Body) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def prompt_ids(body: Body) -> list[int]:
    """Return one id a byte of the rendered prompt; the assistant's words render as they were generated."""
    given = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
    if given is not None:
        return list(given)
    if "messages" not in body:
        prompt = body["prompt"]
        return list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
    parts = []
    for message in body["messages"]:
        calls = "".join(call["function"]["arguments"] for call in message.get("tool_calls") or ())
        parts.append(f"<{message['role']}>{message.get('content') or ''}{calls}")
    return list(("".join(parts) + "<assistant>").encode())


def reply_text(prompt: list[int], length: int = 8) -> str:
    """Return the engine's answer: hex digits that depend on every prompt id."""
    seed = hashlib.sha256(bytes(i % 256 for i in prompt)).hexdigest()
    text = seed
    while len(text) < length:
        seed = hashlib.sha256(seed.encode()).hexdigest()
        text += seed
    return text[:length]
