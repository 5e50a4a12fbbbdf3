"""Time single requests to an OpenAI-compatible engine; prompts are token ids, so that lengths are exact.

Streams are not parsed event by event: a large batch gives ten thousand events a second, and a client that is busy
parsing measures itself. Each piece that arrives is stamped, and its events are counted by their choice's index.
"""

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Self

import httpx

from weft_planner.profiling.engine_errors import EngineError, TooSlow
from weft_planner.profiling.kv_format import cache_dtype, moved_bytes

__all__ = [
    "CompleteAnswer",
    "EngineClient",
    "EngineError",
    "EngineFacts",
    "FirstToken",
    "TokenArrivals",
]

_CONNECT_SECONDS = 5.0
_INDEX = re.compile(rb'"index"\s*:\s*(\d+)')
_BLOCK_SIZE = re.compile(r'^vllm:cache_config_info\{[^}]*block_size="(\d+)"', re.MULTILINE)
_BLOCKS = re.compile(r'^vllm:cache_config_info\{[^}]*num_gpu_blocks="(\d+)"', re.MULTILINE)
_SAMPLE = (
    "the quick brown fox jumps over a lazy dog while seven bright stars light long roads between old towns and "
    "green hills where people trade bread salt cloth tools books and stories under open skies every single morning"
)
_DEFAULT_BLOCK = 16
_NOBODY = "weft-no-such-model"

Json = Mapping[str, object]
Prompt = Sequence[int]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine says of itself; 0 and empty where it does not."""

    model: str
    version: str
    max_model_len: int
    block_size: int
    kv_capacity_tokens: int
    token_ids: tuple[int, ...]
    kv_format: str = ""
    server: str = ""
    """The engine's name in Weft's spelling: vllm, sglang, tensorrt-llm; whatever the list of models says."""

    @property
    def engine(self) -> str:
        """Return the engine's name with its version."""
        return f"{self.server or 'vllm'} {self.version}".strip()


@dataclass(frozen=True, slots=True)
class CompleteAnswer:
    """A whole answer of one token: seconds until all of it was there, and the KV that the engine keeps of it."""

    seconds: float
    handle: Json | None


@dataclass(frozen=True, slots=True)
class FirstToken:
    """When the first token of an answer came: seconds after the request was sent, and the clock's time.

    ``cached`` is how many prompt tokens the engine says it had cached; None when it does not say.
    """

    seconds: float
    at: float
    prompt_tokens: int
    cached: int | None


@dataclass(slots=True)
class TokenArrivals:
    """The arrivals of a batch's tokens: per choice the times of its events, and how many tokens an event carried."""

    times: dict[int, list[float]] = field(default_factory=dict)
    tokens: int = 0
    ended: bool = False

    @property
    def events(self) -> int:
        """Return how many events came in all."""
        return sum(map(len, self.times.values()))


class EngineClient:
    """Talk to one engine."""

    def __init__(
        self, url: str, *, model: str = "", timeout_s: float = 120.0, headers: Mapping[str, str] | None = None
    ):
        """Prepare; ``model`` is asked for when empty, ``timeout_s`` bounds every wait for an answer."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=16)
        timeout = httpx.Timeout(timeout_s, connect=_CONNECT_SECONDS)
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/").removesuffix("/v1"),
            timeout=timeout,
            limits=limits,
            headers=headers,
            trust_env=False,
        )
        self.url = url
        self.model = model
        self._timeout_s = timeout_s

    def wait_at_most(self, seconds: float) -> None:
        """Bound every later wait for an answer, where it is longer as it is."""
        if seconds < self._timeout_s:
            self._timeout_s = seconds
            self._http.timeout = httpx.Timeout(seconds, connect=_CONNECT_SECONDS)

    async def __aenter__(self) -> Self:
        """Open nothing: connections open when needed."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def facts(self) -> EngineFacts:
        """Ask what serves here.

        Raises:
            EngineError: there is no answer, the model is not served, or prompts as token ids are not taken.
        """
        listed = await self._json("GET", "/v1/models")
        entries = listed.get("data")
        models = [m for m in entries if isinstance(m, Mapping)] if isinstance(entries, list) else []
        names = [str(m.get("id")) for m in models]
        if not names:
            raise EngineError(f"{self.url}: lists no model; is this an OpenAI-compatible engine?")
        if self.model and self.model not in names:
            raise EngineError(f"{self.url}: serves {', '.join(names)} and not {self.model!r}; name one of them")
        self.model = self.model or names[0]
        entry = models[names.index(self.model)]
        limit, owner = entry.get("max_model_len"), entry.get("owned_by")
        server = owner.replace("_", "-") if isinstance(owner, str) else ""
        version = (await self._optional("GET", "/version")).get("version")
        info: Json = {}
        if server == "sglang":
            info = await self._optional("GET", "/server_info") or await self._optional("GET", "/get_server_info")
        held = info.get("max_total_num_tokens")
        page = await self._text("/metrics")
        block = _BLOCK_SIZE.search(page)
        blocks = sum(map(int, _BLOCKS.findall(page)))  # a line for each data-parallel rank
        block_size = int(block.group(1)) if block else 0
        facts = EngineFacts(
            model=self.model,
            version=str(version or info.get("version") or ""),
            max_model_len=limit if isinstance(limit, int) else 0,
            block_size=block_size or _DEFAULT_BLOCK,
            kv_capacity_tokens=block_size * blocks or (held if isinstance(held, int) else 0),
            token_ids=await self._token_ids(),
            kv_format=cache_dtype(page),
            server=server,
        )
        counted = await self.first_token(list(facts.token_ids[:3]))
        if counted.prompt_tokens not in (0, 3):
            raise EngineError(
                f"{self.url}: counts {counted.prompt_tokens} tokens in a prompt of 3 token ids; "
                "lengths would not be exact, so this engine cannot be profiled"
            )
        return facts

    async def _token_ids(self) -> tuple[int, ...]:
        """Return ids of plain words, from the engine's own tokenizer where it offers it."""
        reply = await self._optional("POST", "/tokenize", {"model": self.model, "prompt": _SAMPLE})
        ids = reply.get("tokens")
        if isinstance(ids, list) and all(isinstance(i, int) for i in ids):
            plain = sorted(set(ids[1:]))  # the first may open the text
            if len(plain) >= 8:
                return tuple(plain)
        return tuple(range(1000, 1400))  # plain words in every vocabulary of a size in use

    def body(self, prompt: object, *, max_tokens: int, stream: bool = True) -> dict[str, object]:
        """Return the request for exactly ``max_tokens`` tokens of each answer."""
        body: dict[str, object] = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": stream,
        }
        if self.model:
            body["model"] = self.model
        if stream:
            body["stream_options"] = {"include_usage": True}
        return body

    async def first_token(self, prompt: Prompt, *, kv: Json | None = None) -> FirstToken:
        """Send a prompt for one token and time it.

        Raises:
            EngineError: the engine refused or failed.
        """
        body = self.body(list(prompt), max_tokens=1)
        if kv is not None:
            body["kv_transfer_params"] = kv
        began, first, usage = perf_counter(), 0.0, b""
        async with self._stream(body) as pieces:
            async for piece in pieces:
                if not first and b'"choices"' in piece:
                    first = perf_counter()
                usage += piece
        if not first:
            raise EngineError(f"{self.url}: the stream ended without a token: {usage[:300].decode(errors='replace')}")
        prompt_tokens, cached, _ = _usage(usage)
        return FirstToken(first - began, first, prompt_tokens, cached)

    async def prime(self, prompts: Sequence[Prompt]) -> None:
        """Have prompts prefilled, so that their prefixes are cached.

        Raises:
            EngineError: the engine refused or failed.
        """
        await self._json("POST", "/v1/completions", self.body([list(p) for p in prompts], max_tokens=1, stream=False))

    async def answer(self, prompt: Prompt, *, kv: Json | None = None) -> CompleteAnswer:
        """Send a prompt for one token, in one piece: only such answers name the KV that an engine keeps.

        Raises:
            EngineError: the engine refused or failed.
        """
        body = self.body(list(prompt), max_tokens=1, stream=False)
        if kv is not None:
            body["kv_transfer_params"] = kv
        began = perf_counter()
        reply = await self._json("POST", "/v1/completions", body)
        seconds = perf_counter() - began
        handle = reply.get("kv_transfer_params")
        return CompleteAnswer(seconds, handle if isinstance(handle, Mapping) else None)

    async def release(self, handle: Json) -> None:
        """Have this engine tell another one to release KV that is not read: a refused request does so (vLLM's P/D).

        What does not get through is freed when its time is up.
        """
        body = self.body([1], max_tokens=1, stream=False)
        pointer = {**handle, "do_remote_prefill": True, "do_remote_decode": False}
        await self._optional("POST", "/v1/completions", {**body, "model": _NOBODY, "kv_transfer_params": pointer})

    async def bytes_read(self) -> float | None:
        """Return how many bytes of KV the engine has read from others, by its own count; None where it does not say."""
        return moved_bytes(await self._text("/metrics"))

    async def export(self, prompt: Prompt, *, salt: str = "") -> Json:
        """Prefill a prompt on a prefill engine and return the handle of its KV (vLLM's P/D protocol).

        With a ``salt`` the engine's cache takes it for another one than the same prompt without.

        Raises:
            EngineError: the engine refused, or keeps no KV for others.
        """
        body = self.body(list(prompt), max_tokens=1, stream=False)
        body["kv_transfer_params"] = {
            "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
            "remote_block_ids": None, "remote_host": None, "remote_port": None,
        }  # fmt: skip
        if salt:
            body["cache_salt"] = salt
        reply = await self._json("POST", "/v1/completions", body)
        handle = reply.get("kv_transfer_params")
        if not isinstance(handle, Mapping):
            raise EngineError(f"{self.url}: gives no kv_transfer_params; start it with a KV connector as a producer")
        return handle

    async def decode(self, prompts: Sequence[Prompt], *, max_tokens: int, into: TokenArrivals) -> None:
        """Decode a batch in one streamed request; arrivals go into ``into`` as they come.

        Raises:
            EngineError: the engine refused or failed.
        """
        tail = b""
        async with self._stream(self.body([list(p) for p in prompts], max_tokens=max_tokens)) as pieces:
            async for piece in pieces:
                now = perf_counter()
                # An event may be cut between two pieces: what follows the last end of an event waits for the rest.
                whole, _, tail = (tail + piece).rpartition(b"\n")
                for index in _INDEX.findall(whole):
                    into.times.setdefault(int(index), []).append(now)
                if b'"usage":{' in whole or b'"usage": {' in whole:
                    _, _, into.tokens = _usage(whole)
        into.ended = True

    @asynccontextmanager
    async def _stream(self, body: Json) -> AsyncIterator[AsyncIterator[bytes]]:
        try:
            async with self._http.stream("POST", "/v1/completions", json=body) as reply:
                if reply.status_code != 200:
                    raise EngineError(_refusal(self.url, reply.status_code, await reply.aread()))
                yield self._checked(reply.aiter_raw())
        except httpx.HTTPError as error:
            raise self._unanswered(error) from error

    async def _checked(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            if piece.startswith(b'data: {"error"'):
                raise EngineError(f"{self.url}: failed in a stream: {piece[:300].decode(errors='replace')}")
            yield piece

    async def _json(self, method: str, path: str, body: Json | None = None) -> Json:
        try:
            reply = await self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise self._unanswered(error) from error
        if reply.status_code != 200:
            raise EngineError(_refusal(self.url + path, reply.status_code, reply.content))
        try:
            found = reply.json()
        except ValueError as error:
            raise EngineError(f"{self.url}{path}: answered no JSON; is this an OpenAI-compatible engine?") from error
        return found if isinstance(found, dict) else {}

    def _unanswered(self, error: httpx.HTTPError) -> EngineError:
        if isinstance(error, httpx.ReadTimeout):
            return TooSlow(f"{self.url}: no answer within {self._timeout_s:g} s")
        return EngineError(f"{self.url}: {type(error).__name__} ({error}); is it up and reachable?")

    async def _optional(self, method: str, path: str, body: Json | None = None) -> Json:
        """Return a reply that other engines than vLLM do not give; empty without it."""
        try:
            return await self._json(method, path, body)
        except EngineError:
            return {}

    async def _text(self, path: str) -> str:
        try:
            reply = await self._http.get(path)
        except httpx.HTTPError:
            return ""
        return reply.text if reply.status_code == 200 else ""


def _refusal(url: str, status: int, body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        reason = error["message"] if isinstance(error, dict) else error
    except (ValueError, KeyError, TypeError):
        reason = body[:300].decode(errors="replace")
    key = "; give the engine's API key by --api-key-env" if status in (401, 403) else ""
    return f"{url}: answered {status}: {reason}{key}"


def _usage(stream: bytes) -> tuple[int, int | None, int]:
    """Return (prompt tokens, cached tokens, completion tokens) of a stream's usage; 0 and None where it lacks them."""
    at = max(stream.rfind(b'"usage":{'), stream.rfind(b'"usage": {'))
    if at < 0:
        return 0, None, 0
    text = stream[stream.index(b"{", at) :].decode(errors="replace")
    try:
        usage, _ = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return 0, None, 0
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return (
        prompt if isinstance(prompt, int) else 0,
        cached if isinstance(cached, int) else None,
        completion if isinstance(completion, int) else 0,
    )
