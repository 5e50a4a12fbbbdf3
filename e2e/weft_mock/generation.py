"""Serve one generation: submit its sequences, gather their tokens, stream them or answer at once."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

from aiohttp import web

from weft_mock.engine import Engine, Failure, Outbox
from weft_mock.kv_params import handle_json
from weft_mock.ledger import RequestRecord
from weft_mock.replies import DONE, StreamWriter, event, handle_comment, usage_json, whole_choice, whole_reply
from weft_mock.requests import ApiError, Generation
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

    def __init__(self, engine: Engine, generation: Generation, *, external_id: str) -> None:
        """Prepare the sequences; ``external_id`` is the caller's X-Request-Id, or one made up."""
        self._engine = engine
        self._generation = generation
        self.public_id = ("chatcmpl-" if generation.chat else "cmpl-") + external_id
        self._outbox = Outbox()
        self._choices = [
            Choice(
                index, self._sequence(prompt, external_id, variant=index % generation.n), StopScanner(generation.stop)
            )
            for index, prompt in enumerate(p for p in generation.prompts for _ in range(generation.n))
        ]
        self._of = {choice.sequence: choice for choice in self._choices}

    def _sequence(self, prompt: list[int], external_id: str, *, variant: int) -> EngineSequence:
        engine, kv = self._engine, self._generation.kv
        internal = f"{self.public_id}-{secrets.token_hex(4)}"
        importing = kv is not None and kv.form == "import"
        record = RequestRecord(
            request_id=external_id,
            engine_request_id=internal,
            form="local" if kv is None else "import" if importing else "export_with_history" if kv.remote else "export",
            prompt=len(prompt),
        )
        sequence = EngineSequence.of_prompt(
            prompt,
            request_id=internal,
            block_size=engine.config.block_size,
            record=record,
            limits=self._generation.limits,
            arrived=monotonic(),
            salt=self._generation.salt,
            variant=variant,
        )
        if kv is not None:
            sequence.source = kv.remote
            sequence.importing = importing
            # Only a bidirectional engine offers the KV of an imported and then decoded request for the next round.
            sequence.keep = ("decode" if engine.config.bidirectional else None) if importing else "prefill"
        return sequence

    def submit(self) -> None:
        """Hand the sequences to the engine."""
        for choice in self._choices:
            self._engine.submit(choice.sequence, self._outbox)

    def cancel(self) -> None:
        """Abort what still runs; nothing happens to what has ended."""
        for choice in self._choices:
            self._engine.cancel(choice.sequence)

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
        return news

    @staticmethod
    def _gather(item: Emission, tokens: dict[EngineSequence, list[int]], finishes: dict[EngineSequence, str]) -> None:
        tokens.setdefault(item.sequence, []).append(item.token)
        if item.finish is not None:
            finishes[item.sequence] = item.finish

    def _done(self) -> bool:
        return all(choice.finish is not None for choice in self._choices)

    def _usage(self, completion: int | None = None) -> dict[str, object]:
        first = self._choices[0].sequence
        cached = first.record.cached + first.record.read
        if first.importing and first.source is not None:
            # What the prefill engine did not have to compute: the decode engine's own reads are no cache hits.
            cached = first.source.cached_tokens
        made = sum(len(choice.ids) for choice in self._choices) if completion is None else completion
        return usage_json(prompt=sum(map(len, self._generation.prompts)), completion=made, cached=cached)

    def _handle(self) -> Mapping[str, object] | None:
        sequence = self._choices[0].sequence
        if sequence.handle is None or sequence.keep is None:
            return None
        return handle_json(sequence.handle, holder=sequence.keep)

    async def answer(self) -> web.Response:
        """Return the whole reply.

        Raises:
            ApiError: the engine gave up on a sequence.
        """
        while not self._done():
            await self._advance()
        generation = self._generation
        with_ids = generation.return_token_ids
        choices = [
            whole_choice(
                chat=generation.chat,
                index=choice.index,
                text=choice.text,
                finish=choice.finish or "length",
                stop_reason=choice.stop_reason,
                ids=choice.ids if with_ids else None,
                prompt_ids=generation.prompts[choice.index // generation.n] if not generation.chat else None,
            )
            for choice in self._choices
        ]
        body = whole_reply(
            chat=generation.chat,
            public_id=self.public_id,
            model=self._engine.config.names[0],
            choices=choices,
            usage=self._usage(),
            handle=self._handle(),
            prompt_ids=generation.prompts[0] if with_ids and generation.chat else None,
        )
        return web.Response(body=body, content_type="application/json")

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send the answers as server-sent events; an engine failure becomes an error event, as in vLLM."""
        plugin = self._engine.config.plugin and request.headers.get(HANDLE_HEADER) == "1"
        reply = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        if plugin:
            reply.headers[PLUGIN_HEADER] = PLUGIN_VERSION
        await reply.prepare(request)
        try:
            await self._events(reply, plugin=plugin)
        except ApiError as error:
            await reply.write(event(error.to_json()) + DONE)
        await reply.write_eof()
        return reply

    async def _events(self, reply: web.StreamResponse, *, plugin: bool) -> None:
        generation = self._generation
        writer = StreamWriter(
            chat=generation.chat,
            public_id=self.public_id,
            model=self._engine.config.names[0],
            return_token_ids=generation.return_token_ids,
        )
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
                piece = writer.piece(
                    choice.index,
                    text,
                    ids,
                    finish=choice.finish,
                    stop_reason=choice.stop_reason,
                    prompt_ids=prompt_ids,
                    usage=usage,
                )
                out.append(piece)
            if self._done():
                if generation.include_usage:
                    out.append(writer.usage(self._usage()))
                out.append(DONE)
            await reply.write(b"".join(out))

    def _comment(self, *, plugin: bool) -> bytes:
        handle = self._handle()
        if handle is None:
            return b""
        if not plugin:
            # Stock vLLM's streams do not carry it: the blocks wait for nobody until their time is up.
            self._engine.ledger.handles["undeliverable"] += 1
            return b""
        return handle_comment(handle)
