"""Tell which requests are usual at a front, and begin them on the straight way.

Usual is: a chat or text completion in one piece, a session that a header names or that is known without a look
elsewhere, fields that need no second look; where the worker is one of this process, vLLM's protocol, too. Nothing is
counted or charged before that is known, so whatever else comes is left to the general way, which looks at it anew; and
a request that stops being usual later goes on there from where it is.
"""

from typing import TYPE_CHECKING, Protocol

from weft_router.api.identity import MAX_ID, Identity, session_key
from weft_router.api.inference import PATHS, check
from weft_router.api.nodes import AT_ONCE
from weft_router.api.transcript import Transcript, of_request
from weft_router.errors import ApiError
from weft_router.express.usual import AtFront, is_usual
from weft_router.guard.admission import Refusal
from weft_router.roles.front import Front, shown_session
from weft_router.roles.reading import read_at_once
from weft_router.rounds.job import Job
from weft_router.rounds.outlet import Outlet, shown_to_all
from weft_router.state.registry import Registry
from weft_router.wire.exchange import Exchange

if TYPE_CHECKING:
    from weft_router.roles.server import Server


class Way(Protocol):
    """How usual requests go on from a front."""

    def begin(self, usual: AtFront, job: Job, /) -> None:
        """Begin to serve one that was let in."""


class Lane:
    """The straight way through a front."""

    def __init__(self, front: Front, *, registry: Registry, way: Way) -> None:
        self.front = front
        self._registry = registry
        self._way = way
        self.books: Server
        """Who counts the requests; set by the server itself."""

    def takes(self, exchange: Exchange) -> bool:
        """Begin a usual request; False: nothing was done for it but to parse it."""
        path, headers = exchange.path, exchange.headers
        if len(exchange.body) > AT_ONCE:
            return False  # it is looked at in several steps
        named = headers.get("x-session-id")
        if PATHS.get(path, "responses") == "responses" or exchange.method != "POST" or "content-encoding" in headers:
            return False
        if named and (len(named) > MAX_ID or not named.isprintable()):
            return False
        front = self.front
        if not self._registry.ready("decode") or not front.plain:
            return False
        try:
            caller = front.admits(headers, exchange.notes)
            if front.admission.closed_to(exchange.started, caller) is not None:
                return False
            body = exchange.parsed = read_at_once(exchange, front.allowed.max_nodes)
            class_ = front.classifier.of(caller, headers, body)
            inference = check(path, body, front.allowed)
        except ApiError:
            return False  # found again, and told, by the general way
        tenant = caller.tenant
        if not is_usual(inference) or front.held_back.concerns(tenant):
            return False
        trace = front.ids.next()
        id_ = "weft-" + trace
        transcript: Transcript | None = None
        if named:
            identity = Identity(session_key(tenant, "id", named), named)
        else:  # a field of the body that names one is the router's own, so not usual
            transcript = of_request(inference)
            known = front.recognising.at_once(inference, transcript, tenant=tenant, fresh=id_)
            if known is None:
                return False
            identity = known
        load = front.load(inference)
        admitted = front.admission.admit(exchange.started, caller, class_, load)
        if isinstance(admitted, Refusal):
            return False  # nothing was charged
        self.books.enter()
        exchange.admitted = caller
        session = identity.key
        facts = exchange.facts = {"request_id": id_, "session": session, "tenant": tenant, "class": class_}
        outlet = Outlet(exchange, shown_to_all(id_, shown_session(session, identity.shown)), admitted)
        usual = AtFront(front, self.books, exchange, outlet, admitted, load)
        exchange.let_go()
        job = Job(id_, session, tenant, inference, exchange.started, facts, class_, None, trace)
        job.transcript = transcript
        try:
            front.recognising.note(identity, tenant)
            if admitted.output_cap is not None or admitted.local_only:
                front.counts.degraded(class_, capped=admitted.output_cap is not None, local=admitted.local_only)
                usual.go_on(job)
            else:
                self._way.begin(usual, job)
        except Exception as error:  # noqa: BLE001 - raised again on the general way
            job.failed = error
            usual.go_on(job)
        return True
