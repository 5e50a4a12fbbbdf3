"""Write an answer to a proxy: in place of the worker's answer while that passes through, else at once."""

import asyncio
from collections.abc import Callable
from typing import Final

from weft_router.picker.headers import removed_of_response
from weft_router.picker.messages import (
    Abort,
    BodyReply,
    Fields,
    HeadersReply,
    ImmediateReply,
    Mutation,
    Reply,
    TrailersReply,
    pieces,
)

END_S: Final = 5.0
"""How long the end of an answer waits for the end of the worker's answer that it replaces."""


class AnswerWriter:
    """The answer to one request.

    While the proxy has the headers of a worker's answer to go on, the answer replaces that one, piece by piece. At any
    other time it is collected and sent as an immediate reply.
    """

    def __init__(self, emit: Callable[[Reply], None], *, most: int) -> None:
        """``most`` is the longest answer that is collected."""
        self._emit = emit
        self._most = most
        self._worker_fields: Fields | None = None
        """The headers of the worker's answer, once the proxy has shown them."""
        self._replaceable = False
        """Whether the worker's answer has a body, which can be replaced."""
        self._worker_ended = False
        self._worker_trailers = False
        self._direct = False
        """Whether the answer goes out in pieces."""
        self._head: tuple[int, Fields] | None = None
        self._collected = bytearray()
        self._ended = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    # The worker's answer, as the proxy shows it.

    def response_head(self, fields: Fields, *, end: bool) -> None:
        """Take its headers."""
        self._worker_fields = fields
        self._replaceable = not end
        self._worker_ended = end

    def response_end(self, *, trailers: bool) -> None:
        """Take its end."""
        self._worker_ended = True
        self._worker_trailers = trailers
        if self._ended and self._direct:
            self._end()

    # The router's answer.

    def answer_head(self, status: int, fields: Fields) -> None:
        """Take status and headers."""
        if self._worker_fields is None or not self._replaceable:
            self._head = status, fields
            return
        self._direct = True
        given = ((":status", str(status)), *fields)
        self._emit(HeadersReply("response", Mutation(given, removed_of_response(self._worker_fields, given))))

    def answer_data(self, data: bytes) -> None:
        """Take a piece of the body."""
        if self._closed:
            return
        if self._direct:
            for piece in pieces(data):
                self._emit(BodyReply("response", piece))
            return
        self._collected += data
        if len(self._collected) > self._most:
            self.answer_aborted()

    def answer_end(self) -> None:
        """Take the end."""
        if self._closed:
            return
        self._ended = True
        if not self._direct:
            status, fields = self._head or (500, ())
            self._close(ImmediateReply(status, fields, bytes(self._collected)))
        elif self._worker_ended:
            self._end()
        else:
            self._timer = asyncio.get_running_loop().call_later(END_S, self.answer_aborted)

    def answer_aborted(self) -> None:
        """Handle an answer that cannot be ended properly, or that nobody reads."""
        if not self._closed:
            self._close(Abort("the answer could not be completed"))

    def _end(self) -> None:
        self._close(TrailersReply("response") if self._worker_trailers else BodyReply("response", b"", end=True))

    def _close(self, last: Reply) -> None:
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._emit(last)
