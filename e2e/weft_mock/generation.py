"""Serve one generation: submit its sequences, gather their tokens, stream them or answer at once."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

import orjson
from aiohttp import web

from weft_mock.engine import Engine
from weft_mock.errors import ApiError
from weft_mock.ledger import RequestRecord
from weft_mock.outbox import Failure, Outbox
from weft_mock.protocols.dialects import DIALECTS
from weft_mock.protocols.legs import EngineLeg
from weft_mock.replies import Piece, StreamWriter, handle_comment, usage_json, whole_choice, whole_reply
from weft_mock.requests import Generation
from weft_mock.responses import ResponseWriter
from weft_mock.sabotage import CutError, Sabotage
from weft_mock.sequence import Emission
from weft_mock.sequence import Sequence as EngineSequence
from weft_mock.stop_text import StopScanner
from weft_mock.tokenizer import END_OF_TURN, decode

HANDLE_HEADER = "X-Weft-KV-Handle"
PLUGIN_HEADER = "X-Weft-Engine-Plugin"
PLUGIN_VERSION = "1"


@dataclass(slots=True)
class Choice:
    """One answer as far as it was made."""

    index: int
    sequence: EngineSequence
    stops: StopScanner
    text: str = ""
    ids: list[int] = field(default_factory=list)
    finish: str | None = None
    stop_reason: str | int | None = None

    def take(self, tokens: Sequence[int], finish: str | None) -> str:
        """Add tokens; return the text that may be sent."""
        self.ids += tokens
        text, stop = self.stops.feed(decode(tokens), last=finish is not None)
        self.text += text
        if stop is not None:
            self.finish, self.stop_reason = "stop", stop
        elif finish is not None:
            self.finish = finish
            last = tokens[-1]
            self.stop_reason = last if finish == "stop" and last != END_OF_TURN else None
        return text


class GenerationCall:
    """One HTTP request from its parsed body to its last byte."""

    def __init__(self, engine: Engine, generation: Generation, leg: EngineLeg, *, request: web.Request) -> None:
        """Prepare the sequences."""
        self._engine = engine
        self._generation = generation
        self._leg = leg
        self._request = request
        self._dialect = DIALECTS[engine.config.protocol]
        self._sabotage = Sabotage(engine, request, engine.faults.of_reply())
        caller = request.headers.get("X-Request-Id") or secrets.token_hex(16)
        named = caller if self._dialect.named_by_caller else secrets.token_hex(16)
        self.public_id = ("chatcmpl-" if generation.api == "chat" else "cmpl-") + named
        self._outbox = Outbox()
        self._choices = [
            Choice(index, self._sequence(prompt, caller, variant=index % generation.n), StopScanner(generation.stop))
            for index, prompt in enumerate(p for p in generation.prompts for _ in range(generation.n))
        ]
        self._of = {choice.sequence: choice for choice in self._choices}

    @property
    def _model(self) -> str:
        return self._engine.config.reply_name(self._generation.body.get("model"))

    def _sequence(self, prompt: list[int], caller: str, *, variant: int) -> EngineSequence:
        internal = f"{self.public_id}-{secrets.token_hex(4)}"
        record = RequestRecord(request_id=caller, engine_request_id=internal, form=self._leg.form, prompt=len(prompt))
        body, adapters = self._generation.body, self._engine.config.adapters
        sequence = EngineSequence.of_prompt(
            prompt,
            request_id=internal,
            block_size=self._engine.config.block_size,
            record=record,
            limits=self._generation.limits,
            arrived=monotonic(),
            salt=self._generation.salt,
            variant=variant,
            sampled=self._generation.sampled,
            priority=self._generation.priority,
            rank=self._generation.rank,
        )
        sequence.adapter = str(body["model"]) if body.get("model") in adapters else ""
        sequence.cache_salt = str(body.get("cache_salt") or "")
        return sequence

    async def begin(self) -> None:
        """Hand the sequences to the engine, once the other leg is as far as this one needs it.

        Raises:
            ApiError: the other leg failed.
        """
        for choice in self._choices:
            await self._leg.begin(choice.sequence)
        for choice in self._choices:
            self._engine.submit(choice.sequence, self._outbox)

    def cancel(self) -> None:
        """Abort what still runs; nothing happens to what has ended."""
        for choice in self._choices:
            self._engine.cancel(choice.sequence)
            self._leg.drop(choice.sequence)

    async def _advance(self) -> list[tuple[Choice, str, list[int]]]:
        """Wait for tokens; return per choice the new text and ids, merged when the reader was slow.

        Raises:
            ApiError: the engine gave up on a sequence.
        """
        tokens: dict[EngineSequence, list[int]] = {}
        finishes: dict[EngineSequence, str] = {}
        for item in await self._outbox.take():
            if isinstance(item, Failure):
                raise ApiError(500, item.message, kind="InternalServerError")
            self._gather(item, tokens, finishes)
        news: list[tuple[Choice, str, list[int]]] = []
        for sequence, new in tokens.items():
            choice = self._of[sequence]
            if choice.finish is None:
                news.append((choice, choice.take(new, finishes.get(sequence)), new))
                if isinstance(choice.stop_reason, str):
                    self._engine.end_early(sequence)
        if self._done():
            for choice in self._choices:
                await self._leg.end(choice.sequence)
        return news

    @staticmethod
    def _gather(item: Emission, tokens: dict[EngineSequence, list[int]], finishes: dict[EngineSequence, str]) -> None:
        tokens.setdefault(item.sequence, []).append(item.token)
        if item.finish is not None:
            finishes[item.sequence] = item.finish

    def _done(self) -> bool:
        return all(choice.finish is not None for choice in self._choices)

    def _made(self) -> int:
        return sum(len(choice.ids) for choice in self._choices)

    def _usage(self, completion: int | None = None) -> dict[str, object]:
        first = self._choices[0].sequence
        cached: int | None = first.record.known
        if first.importing and first.source is not None:
            # What the prefill engine did not have to compute: the decode engine's own reads are no cache hits.
            cached = first.source.cached_tokens
        if not self._dialect.cache_report:
            cached = None
        made = self._made() if completion is None else completion
        return usage_json(prompt=sum(map(len, self._generation.prompts)), completion=made, cached=cached)

    async def answer(self) -> web.StreamResponse:
        """Send the whole reply.

        Raises:
            ApiError: the engine gave up on a sequence.
        """
        try:
            while not self._done():
                await self._advance()
                await self._sabotage.after(self._made())
            body = orjson.dumps(self._whole())
            if not self._sabotage.armed:
                return web.Response(body=body, content_type="application/json")
            return await self._sabotaged(body)
        except CutError:
            return web.Response()

    async def _sabotaged(self, body: bytes) -> web.StreamResponse:
        await self._sabotage.at("before_headers")
        reply = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(body))})
        await reply.prepare(self._request)
        await self._sabotage.at("after_headers")
        part = self._sabotage.half(body)
        if part is not None:
            await reply.write(part)
            await self._sabotage.at("half")
        await reply.write(body)
        await reply.write_eof()
        await self._sabotage.at("after_body")
        return reply

    def _whole(self) -> dict[str, object]:
        generation, first = self._generation, self._choices[0]
        handle = self._leg.handle(first.sequence)
        if generation.api == "responses":
            return self._response_writer().whole(
                first.text, finish=first.finish or "length", usage=self._usage(), handle=handle
            )
        chat, with_ids = generation.api == "chat", generation.return_token_ids
        choices = [
            whole_choice(
                chat=chat,
                index=choice.index,
                text=choice.text,
                finish=choice.finish or "length",
                stop_reason=choice.stop_reason,
                ids=choice.ids if with_ids else None,
                prompt_ids=generation.prompts[choice.index // generation.n] if not chat else None,
                dialect=self._dialect,
            )
            for choice in self._choices
        ]
        reply = whole_reply(
            chat=chat,
            public_id=self.public_id,
            model=self._model,
            choices=choices,
            usage=self._usage(),
            handle=handle,
            prompt_ids=generation.prompts[0] if with_ids and chat else None,
            dialect=self._dialect,
        )
        self._leg.dress(reply, first.sequence)
        return reply

    def _response_writer(self) -> ResponseWriter:
        return ResponseWriter(self._generation, model=self._model, handles=self._dialect.handles)

    def _writer(self) -> StreamWriter | ResponseWriter:
        generation = self._generation
        if generation.api == "responses":
            return self._response_writer()
        return StreamWriter(
            chat=generation.api == "chat",
            public_id=self.public_id,
            model=self._model,
            return_token_ids=generation.return_token_ids,
            include_usage=generation.include_usage,
            dialect=self._dialect,
        )

    async def stream(self) -> web.StreamResponse:
        """Send the answers as server-sent events; an engine failure becomes an error event, as in vLLM."""
        plugin = self._engine.config.plugin and self._request.headers.get(HANDLE_HEADER) == "1"
        plugin = plugin and self._dialect.handles
        reply = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        if plugin:
            reply.headers[PLUGIN_HEADER] = PLUGIN_VERSION
        writer = self._writer()
        try:
            await self._sabotage.at("before_headers")
            await reply.prepare(self._request)
            await self._sabotage.at("after_headers")
            try:
                await self._events(reply, writer, plugin=plugin)
            except ApiError as error:
                await reply.write(writer.failure(error))
            await reply.write_eof()
            await self._sabotage.at("after_body")
        except CutError:
            return reply
        return reply

    async def _events(self, reply: web.StreamResponse, writer: StreamWriter | ResponseWriter, *, plugin: bool) -> None:
        generation = self._generation
        head = writer.head()
        if head:
            await reply.write(head)
        opened: set[int] = set()
        while not self._done():
            out: list[bytes] = []
            for choice, text, ids in await self._advance():
                prompt_ids: list[int] | None = None
                if choice.index not in opened:
                    opened.add(choice.index)
                    prompt_ids = generation.prompts[choice.index // generation.n]
                    out.append(writer.opening(choice.index, prompt_ids))
                if choice.finish is not None:
                    out.append(self._comment(plugin=plugin))
                elif not text and not generation.return_token_ids:
                    continue
                usage = self._usage(len(choice.ids)) if generation.usage_in_chunks else None
                piece = Piece(choice.index, text, ids, choice.finish, choice.stop_reason, prompt_ids, usage)
                out.append(writer.piece(piece))
            if self._done():
                out.append(writer.closing(self._usage(), self._leg.handle(self._choices[0].sequence)))
            data = b"".join(out)
            part = self._sabotage.half(data)
            if part is not None:
                await reply.write(part)
                await self._sabotage.at("half")
            await reply.write(data)
            await self._sabotage.after(self._made())

    def _comment(self, *, plugin: bool) -> bytes:
        handle = self._leg.handle(self._choices[0].sequence)
        if handle is None:
            return b""
        if not plugin:
            # Stock vLLM's streams do not carry it: the blocks wait for nobody until their time is up.
            if self._generation.api != "responses":
                self._engine.ledger.handles["undeliverable"] += 1
            return b""
        return handle_comment(handle)
