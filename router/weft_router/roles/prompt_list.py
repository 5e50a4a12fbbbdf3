"""Serve the prompts of one completion as rounds side by side, and write their answers as one."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import orjson

from weft_router.errors import ApiError, InvalidRequestError, engine_error
from weft_router.http.exchange import Exchange, PausableSource
from weft_router.http.sse import EventSplitter, payload
from weft_router.limits.admission import AdmissionPermit
from weft_router.openai.body import Json
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import Inference, check_request
from weft_router.openai.prompt_list import joined, name_prompt, total_usage
from weft_router.rounds.response_writer import ResponseWriter, WriterType

AT_ONCE: Final = 32
"""Rounds of one request that run side by side; the others follow as these end."""
_DONE: Final = b"[DONE]"

Serve = Callable[[Inference, WriterType], Awaitable[None]]
"""Has one round served, its answer written by what the second argument makes."""


def check_prompts(path: str, body: Json, prompts: list[object], allowed: RequestLimits) -> list[Inference]:
    """Return each prompt's request in checked form.

    Raises:
        ApiError: one of them cannot be served; ``param`` names it.
    """
    found: list[Inference] = []
    for place, prompt in enumerate(prompts):
        try:
            found.append(check_request(path, {**body, "prompt": prompt}, allowed))
        except InvalidRequestError as error:
            raise name_prompt(error, place) from error
    return found


class PromptList:
    """The answers to several prompts, on their way to one client."""

    def __init__(self, exchange: Exchange, requests: list[Inference], *, most_bytes: int) -> None:
        self._exchange = exchange
        self._requests = requests
        self._each = requests[0].n
        self._stream = requests[0].stream
        self._room = most_bytes
        self._answers: dict[int, bytes] = {}
        self._usages: list[Json] = []
        self._head: Json | None = None
        """What all events of a stream have in common, as the first one gave it."""
        self._began = False
        self._failure: ApiError | None = None
        """An engine's error in the middle of a stream."""
        self._sources: dict[int, PausableSource] = {}
        self._lines = ""

    async def serve(self, serve: Serve) -> None:
        """Have all rounds served; the first failure ends the others.

        Raises:
            ApiError: of one of them, while nothing was sent.
        """
        turn = asyncio.Semaphore(AT_ONCE)
        self._exchange.source = self
        rounds = [
            asyncio.create_task(self._one(turn, serve, request, place)) for place, request in enumerate(self._requests)
        ]
        try:
            await asyncio.wait(rounds, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for one in rounds:
                one.cancel()
        ended = await asyncio.gather(*rounds, return_exceptions=True)
        failure = next((one for one in ended if isinstance(one, Exception)), None)
        if failure is None:
            self._end()
        elif isinstance(failure, ApiError) and self._began:
            self._exchange.end(failure.event())
        else:
            raise failure

    def pause(self) -> None:
        """Have no answer go on while the client does not read."""
        for source in self._sources.values():
            source.pause()

    def resume(self) -> None:
        """Go on."""
        for source in self._sources.values():
            source.resume()

    async def _one(self, turn: asyncio.Semaphore, serve: Serve, request: Inference, place: int) -> None:
        async with turn:
            await serve(request, partial(PromptWriter, self, place))
        if self._failure is not None:
            raise self._failure

    # What the writers of single prompts say.

    def begin(self, lines: str) -> None:
        """Begin the stream with the first round that does."""
        if not self._began:
            self._began = True
            self._exchange.begin(200, content_type="text/event-stream; charset=utf-8", lines=lines)

    def keep(self, place: int, status: int, body: bytes, lines: str) -> None:
        """Keep a whole answer until all are there.

        Raises:
            ApiError: an engine refused a prompt, or the answers together are too long.
        """
        if status != 200:
            raise engine_error(status, body)
        self._room -= len(body)
        if self._room < 0:
            raise ApiError("the answers to all prompts are too long together; send fewer prompts", status=502)
        self._answers[place] = body
        self._lines = self._lines or lines

    def pass_on(self, place: int, data: bytes) -> None:
        """Send an event of one prompt's answer, its choices numbered among all."""
        if data == _DONE:
            return
        event: dict[str, Any] = orjson.loads(data)
        if "error" in event or self._failure is not None:
            self._failure = self._failure or engine_error(502, data)
            return
        if self._head is None:
            self._head = {name: event.get(name) for name in ("id", "object", "created", "model")}
        if event.get("usage") is not None:
            self._usages.append(event["usage"])
            if not event.get("choices"):
                return
            event["usage"] = None
        for choice in event.get("choices") or ():
            choice["index"] += place * self._each
        event.update(self._head)
        self._exchange.write(b"data: %b\n\n" % orjson.dumps(event))

    def set_source(self, place: int, source: PausableSource | None) -> None:
        """Set what delivers one prompt's answer."""
        if source is None:
            self._sources.pop(place, None)
        else:
            self._sources[place] = source

    def _end(self) -> None:
        exchange = self._exchange
        if not self._stream:
            whole = joined([self._answers[place] for place in sorted(self._answers)], self._each)
            exchange.reply(200, whole, lines=self._lines)
            return
        last = b""
        if self._requests[0].wants_usage:
            usage = {**(self._head or {}), "choices": [], "usage": total_usage(self._usages)}
            last = b"data: %b\n\n" % orjson.dumps(usage)
        exchange.end(last + b"data: [DONE]\n\n")


class PromptWriter(ResponseWriter):
    """Writes the answer to one of several prompts."""

    __slots__ = ("_admission", "_list", "_place", "_splitter")

    def __init__(
        self, answers: PromptList, place: int, exchange: Exchange, shown: str, admitted: AdmissionPermit | None = None
    ) -> None:
        super().__init__(exchange, shown, admitted)
        self._list = answers
        self._place = place
        self._admission = admitted
        self._splitter = EventSplitter()

    def whole(self, status: int, body: bytes, lines: str, *, content_type: str = "application/json") -> None:
        """Keep a whole answer; routes differ among prompts, so no header tells them."""
        del lines, content_type
        self._list.keep(self._place, status, body, self.shown)

    def begin(self, lines: str) -> None:
        """Begin to stream; routes differ among prompts, so no header tells them."""
        del lines
        self.headers_sent = True
        if self._admission is not None:
            self._admission.first_byte()
        self._list.begin(self.shown)

    def write(self, data: bytes) -> None:
        """Send whole events."""
        for event in self._splitter.feed(data):
            given = payload(event)
            if given is not None:
                self._list.pass_on(self._place, given)
            elif event.startswith(b":"):
                self.exchange.write(event)

    def end(self, data: bytes = b"") -> None:
        """End this prompt's answer, with its last events."""
        self.write(data)

    def set_source(self, source: PausableSource | None) -> None:
        """Set the source that is paused while the client does not read."""
        self._list.set_source(self._place, source)
