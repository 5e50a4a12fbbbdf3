"""Tell which of a coordinator's requests are usual at a decode sidecar, and begin them on the straight way."""

from collections.abc import Callable, Coroutine
from time import monotonic
from typing import TYPE_CHECKING, Final

from weft_router.api.bounds import Allowed
from weft_router.api.inference import PATHS, check
from weft_router.api.nodes import AT_ONCE
from weft_router.config import Settings
from weft_router.errors import ApiError
from weft_router.express.passage import Means, Passage
from weft_router.express.usual import Usual, is_usual
from weft_router.guard.caller import NO_KEYS_TENANT
from weft_router.roles.reading import read_at_once
from weft_router.roles.relay import (
    CAP_HEADER,
    CLASS_HEADER,
    IDS_HEADER,
    LEFT_HEADER,
    LOCAL_HEADER,
    REQUEST_ID,
    RESPONSE_HEADER,
    SESSION_HEADER,
    TENANT_HEADER,
)
from weft_router.roles.telling import Telling
from weft_router.rounds.decoding import Decoding
from weft_router.rounds.job import Job
from weft_router.rounds.standing import DEATHS_HEADER
from weft_router.wire.exchange import Exchange

if TYPE_CHECKING:
    from weft_router.roles.server import Server

_SELDOM: Final = frozenset(
    {LEFT_HEADER, LOCAL_HEADER, CAP_HEADER, IDS_HEADER, RESPONSE_HEADER, DEATHS_HEADER, "content-encoding"}
)
"""Headers of requests that are not usual."""

GoOn = Callable[[Job, Telling], Coroutine[object, object, None]]


class FromFront(Usual):
    """A coordinator's request."""

    __slots__ = ("_lane", "_telling")

    def __init__(self, lane: "DecodeLane", exchange: Exchange, telling: Telling) -> None:
        self._lane = lane
        self._telling = telling
        self.exchange = exchange
        self.outlet = telling

    def go_on(self, job: Job) -> None:
        """Have it served on the general way, from where it is."""
        lane, exchange = self._lane, self.exchange
        exchange.go_on(lane.books.through(exchange, lane.serve(job, self._telling)))

    def close(self, now: float) -> None:
        """Close its books: it was answered."""
        self._lane.books.leave(self.exchange, now)


class DecodeLane:
    """The straight way through a decode sidecar; ``serve`` is the general one."""

    def __init__(self, settings: Settings, *, decoding: Decoding, means: Means, serve: GoOn) -> None:
        self._allowed = Allowed(settings.config.model, settings.config.limits, requests=None)
        self._decoding = decoding
        self._means = means
        self.serve = serve
        self.books: Server
        """Who counts the requests; set by the server itself."""

    def takes(self, exchange: Exchange) -> bool:
        """Begin a usual request; False: nothing was done for it but to parse it."""
        path, headers = exchange.path, exchange.headers
        session = headers.get(SESSION_HEADER)
        if (
            len(exchange.body) > AT_ONCE
            or not session
            or PATHS.get(path, "responses") == "responses"
            or exchange.method != "POST"
        ):
            return False
        worker = self._decoding.worker
        if worker.draining or not worker.engine.healthy or not _SELDOM.isdisjoint(headers):
            return False
        if not exchange.peer.proven:
            return False
        try:
            body = exchange.parsed = read_at_once(exchange, self._allowed.hop_nodes)
            inference = check(path, body, self._allowed)
        except ApiError:
            return False  # found again, and told, by the general way
        if not is_usual(inference):
            return False
        self.books.enter()
        id_ = headers.get(REQUEST_ID, "")
        facts = exchange.facts
        facts["request_id"] = id_
        facts["session"] = session
        tenant, class_ = headers.get(TENANT_HEADER, NO_KEYS_TENANT), headers.get(CLASS_HEADER, "default")
        job = Job(id_, session, tenant, inference, exchange.started, facts, class_, None, id_.removeprefix("weft-"))
        exchange.let_go()
        Passage(FromFront(self, exchange, Telling(exchange, "")), job, self._decoding, self._means).begin(monotonic())
        return True
