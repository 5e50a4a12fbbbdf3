"""Speak SGLang's prefill/decode protocol: both legs at once, the same body, joined by a bootstrap room.

The prefill engine waits until the decode engine has registered for the room at its bootstrap server, so neither leg
means anything alone: when one fails, the other has to be ended at once. The decode engine's reply is the client's.
"""

from weft_core.authority import bracketed
from weft_router.engines.adapter import (
    AdapterOptions,
    Call,
    Capabilities,
    EngineRequest,
    NotPossibleError,
    PrefillResult,
    room_of,
)
from weft_router.engines.load import SGLANG
from weft_router.engines.openai import OpenAi
from weft_router.errors import UpstreamFailedError
from weft_router.openai.reply import read_answer

_ROOMS = 1 << 63


class Sglang(OpenAi):
    """The adapter of SGLang."""

    salted = True

    def __init__(self, traits: AdapterOptions) -> None:
        super().__init__(traits)
        self.gauges = SGLANG
        self.can = Capabilities(order="concurrent", local=False)

    def prefill(self, request: EngineRequest, /) -> Call:
        """Return the client's request with the room."""
        return self._leg(request)

    def read_prefill(self, request: EngineRequest, raw: bytes, /) -> PrefillResult:
        """Read the counts of a reply that is not needed otherwise; a streamed one is drained unread."""
        if request.inference.stream:
            raise UpstreamFailedError("engine-error", "a streamed prefill reply has nothing to read")
        try:
            _, reply = read_answer(request.inference.kind, raw)
        except ValueError as error:
            raise UpstreamFailedError("engine-error", "the reply is not JSON") from error
        return PrefillResult(None, reply)

    def decode(self, request: EngineRequest, _: PrefillResult | None, /) -> Call:
        """Return the same request for the decode engine."""
        return self._leg(request)

    def local(self, _: EngineRequest, /) -> Call:
        """Refuse: a decode engine takes only what a prefill engine computed."""
        raise NotPossibleError("no-local-prefill")

    def _leg(self, request: EngineRequest) -> Call:
        peer = request.prefill
        if peer is None:
            raise NotPossibleError("no-prefill-worker")
        fields = self.answer_fields(request)
        port, room, n = peer.bootstrap_port or self.traits.bootstrap_port, room_of(request), request.inference.n
        # Older engines join host and port as they come; newer ones take an address with brackets or without.
        host = bracketed(peer.host)
        # Several answers are several requests inside the engine, each with a room of its own.
        fields["bootstrap_host"] = host if n == 1 else [host] * n
        fields["bootstrap_port"] = port if n == 1 else [port] * n
        fields["bootstrap_room"] = room if n == 1 else [(room + i) % _ROOMS for i in range(n)]
        return self.call(request, fields)
