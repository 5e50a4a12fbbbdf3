"""Tell which requests are usual, and begin their rounds on the straight way.

Usual is: a standalone router in front of vLLM's protocol, a chat or text completion in one piece, a session that its
client names, fields that need no second look. Nothing is counted or charged before that is known, so whatever else
comes is left to the general way, which looks at it anew; and a round that stops being usual later goes on there from
where it is (``Passage``).
"""

from typing import TYPE_CHECKING

from weft_router.api.body import parse
from weft_router.api.identity import MAX_ID
from weft_router.api.inference import FIXED, ODD, PATHS, check
from weft_router.engines.vllm import Vllm
from weft_router.errors import ApiError
from weft_router.express.afterwards import Afterwards
from weft_router.express.passage import Passage
from weft_router.guard.admission import Refusal
from weft_router.roles.front import Front
from weft_router.rounds.decoding import Decoding
from weft_router.rounds.prefilling import Prefilling
from weft_router.state.registry import Registry
from weft_router.wire.exchange import Exchange

if TYPE_CHECKING:
    from weft_router.roles.server import Server


class Lane:
    """The straight way through one standalone router."""

    def __init__(
        self, *, front: Front, adapter: Vllm, registry: Registry, decodings: dict[str, Decoding],
        prefillings: dict[str, Prefilling],
    ) -> None:  # fmt: skip
        self.front = front
        self.adapter = adapter
        self.registry = registry
        self.decodings = decodings
        self.prefillings = prefillings
        self.afterwards = Afterwards()
        self.books: Server
        """Who counts the requests; set by the server itself."""

    def takes(self, exchange: Exchange) -> bool:
        """Begin a usual request's round; False: it was not looked at."""
        path, headers = exchange.path, exchange.headers
        named = headers.get("x-session-id")
        if not named or PATHS.get(path, "responses") == "responses" or exchange.method != "POST":
            return False
        if len(named) > MAX_ID or "content-encoding" in headers or not named.isprintable():
            return False
        front = self.front
        if not self.registry.ready("decode") or not front.plain:
            return False
        try:
            caller = front.admits(headers, exchange.notes)
            body = parse(exchange.body)
            class_ = front.classifier.of(caller, headers, body)
            inference = check(path, body, model=front.model, limits=front.limits)
        except ApiError:
            return False  # found again, and told, by the general way
        if inference.stream or inference.n != 1 or inference.marks & (ODD | FIXED):
            return False
        load = front.load(inference)
        admitted = front.admission.admit(exchange.started, caller, class_, load)
        if isinstance(admitted, Refusal):
            return False  # nothing was charged
        self.books.enter()
        exchange.admitted = caller
        passage = Passage(self, exchange, inference, admitted, load, caller.tenant, class_, named)
        passage.begin()
        return True
