"""What a proxy and its external processor tell each other about one HTTP request, apart from how gRPC writes it."""

from dataclasses import dataclass
from typing import Final, Literal

Side = Literal["request", "response"]
BodyMode = Literal["none", "streamed", "buffered", "buffered-partial", "full-duplex", "grpc"]
Fields = tuple[tuple[str, str], ...]
"""Names and values of headers, in their order."""

PIECE: Final = 64 * 2**10
"""The longest piece of a body that is sent to the proxy in one message."""


@dataclass(frozen=True, slots=True)
class Modes:
    """How the proxy is configured to send bodies; one that does not say so is taken to follow the picker protocol."""

    request: BodyMode = "full-duplex"
    response: BodyMode = "full-duplex"

    def obstacle(self) -> str | None:
        """Return why a picker cannot serve a proxy with these modes; None if it can."""
        if self.request not in ("full-duplex", "buffered"):
            return f"request_body_mode is {self.request}; set FULL_DUPLEX_STREAMED or BUFFERED"
        if self.response != "full-duplex":
            return f"response_body_mode is {self.response}; set FULL_DUPLEX_STREAMED, and response_trailer_mode SEND"
        return None


@dataclass(frozen=True, slots=True)
class HeadersPart:
    """Headers that the proxy sent; with ``end`` there is no body."""

    side: Side
    fields: Fields
    end: bool = False


@dataclass(frozen=True, slots=True)
class BodyPart:
    """A piece of a body that the proxy sent; ``end``: the last one, and no trailers follow."""

    side: Side
    data: bytes
    end: bool = False


@dataclass(frozen=True, slots=True)
class TrailersPart:
    """Trailers that the proxy sent after the body."""

    side: Side


@dataclass(frozen=True, slots=True)
class Received:
    """One message of the proxy; ``modes`` come with the first one, ``subset`` limits the endpoints to choose from."""

    part: HeadersPart | BodyPart | TrailersPart
    modes: Modes | None = None
    subset: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Mutation:
    """Headers to set and to remove; ``endpoint`` is where the request is to go."""

    fields: Fields = ()
    removed: tuple[str, ...] = ()
    endpoint: str = ""


NO_MUTATION: Final = Mutation()


@dataclass(frozen=True, slots=True)
class HeadersReply:
    """Have headers go on, changed."""

    side: Side
    mutation: Mutation = NO_MUTATION


@dataclass(frozen=True, slots=True)
class BodyReply:
    """Have a piece of a full-duplex body go on."""

    side: Side
    data: bytes
    end: bool = False


@dataclass(frozen=True, slots=True)
class WholeBodyReply:
    """Have a buffered request go on with another body and changed headers."""

    data: bytes
    mutation: Mutation


@dataclass(frozen=True, slots=True)
class TrailersReply:
    """Have trailers go on."""

    side: Side


@dataclass(frozen=True, slots=True)
class ImmediateReply:
    """Have the proxy answer at once."""

    status: int
    fields: Fields
    body: bytes


@dataclass(frozen=True, slots=True)
class Abort:
    """End the stream with an error: an answer cannot be ended properly after its start."""

    reason: str


Reply = HeadersReply | BodyReply | WholeBodyReply | TrailersReply | ImmediateReply | Abort


def pieces(data: bytes) -> list[bytes]:
    """Return a body in pieces that are short enough for one message each."""
    return [data[at : at + PIECE] for at in range(0, len(data), PIECE)]
