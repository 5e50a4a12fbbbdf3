"""What a decode sidecar tells its coordinator, and nobody else, with an answer: that it broke off, how long it was.

In a stream it is a comment, the last of its events; with an answer in one piece a header.
"""

from typing import Final

from weft_router.rounds.response_writer import ResponseWriter

MARK: Final = b": weft-"
BROKEN: Final = b"broken "
"""The engine was lost mid-stream; what follows says how."""
TOKENS: Final = b"tokens "
"""How many tokens prompt and answer had."""
TOKENS_HEADER: Final = "x-weft-tokens"
_LINE_BREAK: Final = 10


class SidecarResponseWriter(ResponseWriter):
    """The coordinator's side of a round."""

    __slots__ = ()

    def whole(self, status: int, body: bytes, lines: str, *, content_type: str = "application/json") -> None:
        """Answer in one piece."""
        prompt, answer = self.used
        if prompt:
            lines += f"{TOKENS_HEADER}: {prompt} {answer}\r\n"
        super().whole(status, body, lines, content_type=content_type)

    def end(self, data: bytes = b"") -> None:
        """End the stream, with its last events."""
        prompt, answer = self.used
        super().end(b"%b: weft-tokens %d %d\n\n" % (data, prompt, answer) if prompt else data)

    def broken(self, reason: str) -> None:
        """End the stream, which lost its engine."""
        super().end(b": weft-broken %b\n\n" % reason.encode())


def split_comment(events: bytes) -> tuple[bytes, bytes]:
    """Return whole events without the sidecar's own comment at their end, and what that says, if there is one."""
    kept, mark, said = events.rpartition(MARK)
    if not mark or (kept and kept[-1] != _LINE_BREAK):
        return events, b""  # a line break comes before every comment; this is text of the answer
    return kept, said


def read_usage(said: bytes) -> tuple[int, int]:
    """Return the tokens of prompt and answer that a sidecar told; zeros for what cannot be read."""
    try:
        prompt, answer = said.split()
        return int(prompt), int(answer)
    except ValueError:
        return 0, 0
