"""What the router asks of an engine's adapter: the bodies and headers of every leg, and how the answers are read.

An adapter is pure: it makes requests as bytes and reads replies as bytes; it opens no socket and keeps no state but the
form of replies. One module per engine implements it, ``catalogue`` chooses. Whatever an adapter writes about transfers,
bootstrap servers or ids comes from the registry and from other engines, never from a client.
"""

import hashlib
from dataclasses import dataclass
from typing import Final, Literal, Protocol
from urllib.parse import urlsplit

from weft_core.authority import authority
from weft_router.engines.handles import KvHandle
from weft_router.engines.load import Gauges
from weft_router.openai.body import Json
from weft_router.openai.event_filter import EventFilter
from weft_router.openai.inference import Inference
from weft_router.openai.reply import FirstToken, Reply
from weft_router.openai.token_ids import TokenIds

REQUEST_ID: Final = "X-Request-Id"

Order = Literal["prefill-then-decode", "concurrent", "decode-only"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do; the router plans nothing else with it."""

    order: Order
    local: bool
    """The decode engine can prefill by itself."""
    bidirectional: bool = False
    """A decode reply can carry a handle by which a prefill engine reads the history."""
    slices: bool = False
    """A local prefill can be cut into id prompts that the prefix cache joins."""
    ids: bool = False
    """Replies carry token ids when asked."""
    resume: bool = False
    """A broken stream can go on elsewhere from token ids."""
    first_token: bool = False
    """The prefill's token can be shown before the decode leg's first."""
    responses: bool = False
    """The engine has the Responses API."""
    tokenize: bool = False
    """The engine gives a prompt's exact token ids."""
    prefix_cache: bool = True
    """A prefill engine computes only what its prefix cache lacks."""


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """What a service says about its engines."""

    bidirectional: bool = True
    bootstrap_port: int = 8998
    show_first: bool = False
    """Show the prefill's token at once where the decode engine will surely find the same one."""
    resume: Literal["exact", "sampled", "off"] = "sampled"
    """Which broken streams go on: only greedy ones, sampled ones too (marked), or none."""
    responses: bool = True
    slice_block: int = 16
    """Tokens of a KV block: slices are multiples of it, so that the prefix cache joins them."""


@dataclass(frozen=True, slots=True)
class EngineEndpoint:
    """An engine as the registry knows it."""

    host: str
    port: int
    bootstrap_port: int = 0

    @property
    def address(self) -> str:
        """Return host and port as engines write them."""
        return authority(self.host, self.port)


@dataclass(slots=True, eq=False)
class EngineRequest:
    """One round's request to its engines. ``room`` is a number that both legs share, 0 to make one from the id."""

    inference: Inference
    request_id: str
    salt: str | None = None
    want_ids: bool = False
    export: bool = False
    handle: KvHandle | None = None
    prefill: EngineEndpoint | None = None
    decode: EngineEndpoint | None = None
    room: int = 0
    cap: int | None = None
    """Most tokens of the answer, whatever the client asked for."""
    response_id: str | None = None
    """The id that a response gets."""
    shown: bool = False
    """Whether the client has the prefill's token already, where both legs are sent together."""
    lines: str = ""
    """The header lines that its legs have in common; empty until one is written."""
    written: bytes = b""
    """The end of both legs' bodies, once a prefill leg wrote it."""


@dataclass(slots=True, eq=False)
class Call:
    """One request to an engine, ready to be sent."""

    path: str
    body: bytes
    lines: str
    """Its headers, as header_lines writes them."""
    tail: bytes = b""
    """The end of the body, which several legs share: it is written once, and copied for none where it is long."""

    @property
    def whole(self) -> bytes:
        """Return the body in one piece."""
        return self.body + self.tail if self.tail else self.body


class PrefillResult:
    """What a prefill leg gave: parameters for the decode leg, or the whole answer when there is nothing to decode."""

    __slots__ = ("cached_tokens", "finished", "first", "params", "reply", "written")

    def __init__(
        self, params: Json | None, reply: Reply, *, first: FirstToken | None = None, finished: bytes | None = None,
        written: bytes | None = None, cached_tokens: int | None = None,
    ) -> None:  # fmt: skip
        self.params = params
        self.reply = reply
        self.first = first
        self.finished = finished
        """The client's answer, whole or as events; no decode leg is needed then."""
        self.written = written
        """The parameters as the engine wrote them, where they are known to be one JSON object."""
        self.cached_tokens = cached_tokens
        """How much of the prompt the prefill engine had or read, where the parameters tell."""

    def let_go(self) -> None:
        """Keep no parameters: the decode engine has read the KV that they point at."""
        self.params = self.written = self.reply.handle = None


class NotPossibleError(Exception):
    """Report that an engine has no such leg; ``reason`` is a short word for metrics and logs."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Adapter(Protocol):
    """How one kind of engine is spoken to."""

    can: Capabilities
    traits: AdapterOptions
    gauges: Gauges
    plugin_page: str | None
    """Where such an engine tells of Weft's plug-in, which puts KV handles into streams; None for one without."""

    def prefill(self, request: EngineRequest, /) -> Call:
        """Return the prefill leg; with ``ask.handle`` it reads the history instead of computing it."""

    def read_prefill(self, request: EngineRequest, raw: bytes, /) -> PrefillResult:
        """Read a prefill leg's reply.

        Raises:
            UpstreamFailedError: it holds nothing a decode engine could go on from.
        """

    def decode(self, request: EngineRequest, result: PrefillResult | None, /) -> Call:
        """Return the decode leg; ``result`` is None where both legs are sent together."""

    def local(self, request: EngineRequest, /) -> Call:
        """Return the leg of a round that the decode engine prefills itself.

        Raises:
            NotPossibleError: this engine cannot.
        """

    def slice(self, request: EngineRequest, ids: TokenIds, tokens: int, /) -> Call:
        """Return the request that puts the prompt's first ``tokens`` ids into the decode engine's prefix cache.

        Raises:
            NotPossibleError: this engine cannot.
        """

    def resume(self, request: EngineRequest, reply: Reply, /) -> Call:
        """Return the leg that goes on with a stream which broke after ``reply``.

        Raises:
            NotPossibleError: it would not be the same answer.
        """

    def release(self, params: Json, /) -> Call | None:
        """Return the request that releases KV that will not be read; None when the engine has none.

        It goes to an engine of the other role than the one that holds the KV; its answer is a 404.
        """

    def tokenize(self, request: EngineRequest, /) -> Call | None:
        """Return the request for the prompt's token ids; None when the engine has no such endpoint."""

    def read_ids(self, raw: bytes, /) -> TokenIds | None:
        """Return the token ids in the answer to that."""

    def sse_filter(
        self, request: EngineRequest, /, *, first: FirstToken | None = None, resumed: Reply | None = None
    ) -> EventFilter:
        """Return the filter of a streamed decode leg; ``resumed`` is the reply that it goes on with."""

    def prefill_sse_filter(self, request: EngineRequest, /) -> EventFilter | None:
        """Return the filter of a prefill leg that streams to the client; None where none does."""

    def public_id(self, request: EngineRequest, /) -> str | None:
        """Return the id that replies get in place of the engine's; None to leave it."""

    def first_event(self, request: EngineRequest, first: FirstToken, /) -> bytes:
        """Return the events that show the prefill's token to the client."""


def room_of(request: EngineRequest) -> int:
    """Return the number that both legs share, of 63 bits and never below 2**42: small ones are engines' own.

    With several ranks on the prefill side, engines pick the rank by the number's remainder.
    """
    if request.room:
        return request.room
    digest = hashlib.blake2b(request.request_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1 | 1 << 42


def endpoint_of(url: str, *, engine_port: int, bootstrap_port: int) -> EngineEndpoint:
    """Return an engine's address as the registry knows it: the engine's own port on its worker's host."""
    return EngineEndpoint(urlsplit(url).hostname or "", engine_port, bootstrap_port=bootstrap_port)


def port_of(url: str) -> int:
    """Return the port of an engine's URL."""
    return urlsplit(url).port or 80
