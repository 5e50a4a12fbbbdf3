"""The straight way of a coordinator: to the sidecar of the decode worker that a session is bound to, and back."""

import asyncio
from time import monotonic

from weft_router.express.afterwards import Afterwards
from weft_router.express.usual import AtFront
from weft_router.roles.placing import Placing
from weft_router.roles.relay import Relay, Relayed
from weft_router.rounds.job import Job
from weft_router.state.gathered import Asked
from weft_router.state.registry import Registry
from weft_router.state.store import Question


class Forwarding:
    """From a front to decode workers' sidecars."""

    def __init__(self, placing: Placing, relay: Relay, registry: Registry) -> None:
        self.placing = placing
        self.relay = relay
        self.registry = registry
        self.afterwards = Afterwards()

    def begin(self, usual: AtFront, job: Job, /) -> None:
        """Find the worker, and send the request there."""
        Forwarded(usual, job, self).begin()


class Forwarded:
    """One request on its way."""

    __slots__ = ("_asked", "_job", "_relayed", "_usual", "_way")

    def __init__(self, usual: AtFront, job: Job, way: Forwarding) -> None:
        self._usual = usual
        self._job = job
        self._way = way
        self._asked: Asked[Question, str] | None = None
        self._relayed: Relayed | None = None

    def begin(self) -> None:
        """Send it, once its session is bound."""
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - raised again on the general way
            self._leave(error)

    def _begin(self) -> None:
        job, placing = self._job, self._way.placing
        name = placing.place_now(job.session, job.inference, monotonic(), tenant=job.tenant, class_=job.class_)
        if name is not None:
            self._send(name)
            return
        asked = self._asked = placing.place_soon(job.session, job.inference, tenant=job.tenant, class_=job.class_)
        if asked is None:
            self._leave()
            return
        self._usual.exchange.on_gone = self._gone
        asked.on_done = self._bound

    def _bound(self, error: Exception | None) -> None:
        """Hear whom the store has the session bound to."""
        del error  # ``placed`` reads it
        asked, self._asked = self._asked, None
        if asked is None:
            return
        try:
            self._send(self._way.placing.placed(asked))
        except Exception as failed:  # noqa: BLE001 - raised again on the general way
            self._leave(failed)

    def _send(self, name: str | None) -> None:
        way, job = self._way, self._job
        record = way.registry.get(name) if name is not None else None
        if record is None:
            self._leave()
            return
        facts = job.facts
        facts["worker"] = record.worker
        facts["attempts"] = 1
        job.at = record
        relayed = self._relayed = way.relay.whole(job, self._usual.outlet)
        relayed.leg.on_done = self._over
        self._usual.exchange.on_gone = self._gone
        way.relay.send(record, job, relayed)

    def _over(self, error: Exception | None) -> None:
        """Hear that the leg is over: answer the client, and have the books closed."""
        relayed, self._relayed = self._relayed, None
        if relayed is None:
            return
        if error is None:
            try:
                self._usual.exchange.on_gone = None
                relayed.finish()
            except Exception as failed:  # noqa: BLE001 - raised again on the general way
                error = failed
        if error is not None:
            self._leave(error)
            return
        self._way.afterwards.add(self._close)

    def _close(self) -> None:
        """Close the books: the client has the answer."""
        self._usual.close(monotonic())

    def _gone(self) -> None:
        """Hear that the client went away: end what is under way."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.cancel()
        self._leave(asyncio.CancelledError())

    def _leave(self, failed: BaseException | None = None) -> None:
        """Go on the general way from here; ``failed`` is what ended the leg under way."""
        job = self._job
        relayed, self._relayed = self._relayed, None
        if relayed is not None:
            relayed.leg.cancel()
        job.failed = failed
        self._usual.go_on(job)
