"""Let a client end a session: its binding goes, and its decode worker forgets it and gives its KV back."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from time import monotonic
from typing import cast
from urllib.parse import unquote

from weft_core.heartbeat import WorkerRecord
from weft_router.auth.principal import Principal
from weft_router.errors import InvalidRequestError, UnavailableError, UpstreamFailedError
from weft_router.http.exchange import Exchange
from weft_router.limits.admission import AdmissionPermit
from weft_router.openai.body import Json
from weft_router.openai.identity import explicit_identity, scope_of
from weft_router.state.bindings import Bindings
from weft_router.state.registry import Registry
from weft_router.state.store import StoreDownError

log = logging.getLogger(__name__)

PATH = "/v1/sessions/"


class SessionCloser:
    """The endpoint ``DELETE /v1/sessions/{id}`` of a front."""

    def __init__(
        self, bindings: Bindings, *, registry: Registry, forget: Callable[[WorkerRecord, str], Awaitable[None]],
        admit: Callable[[Exchange, Json], AdmissionPermit], adapters: Callable[[], Iterable[str]] = tuple,
    ) -> None:  # fmt: skip
        self._bindings = bindings
        self._registry = registry
        self._forget = forget
        self._admit = admit
        self._adapters = adapters

    async def serve(self, exchange: Exchange) -> None:
        """End the session of the caller's tenant that has the id in the path; one that nobody knows has ended already.

        A name may stand for one session with the model and one with each adapter; all of them end.

        Raises:
            ApiError: the id cannot be one, the caller may not ask now, or the store could not be told.
        """
        principal = cast(Principal, exchange.admitted)
        named = {"x-session-id": unquote(exchange.path.removeprefix(PATH))}
        scopes = [scope_of(principal.tenant, adapter) for adapter in ("", *self._adapters())]
        identities = [explicit_identity(scope, named, {}) for scope in scopes]
        keys = [identity.key for identity in identities if identity is not None]
        if not keys:
            raise InvalidRequestError(f"name the session, as in DELETE {PATH}my-session")
        admitted = self._admit(exchange, {})
        exchange.facts.update(session=keys[0], tenant=principal.tenant)
        try:
            for key in keys:
                await self._end(key)
        finally:
            admitted.done(monotonic(), 0.0)
        exchange.reply(204, content_type="")

    async def _end(self, session: str) -> None:
        worker = self._bindings.forget(session)
        down: StoreDownError | None = None
        try:
            worker = await self._bindings.unbind(session) or worker
        except StoreDownError as error:
            down = error
        await self._tell(worker, session)
        if down is not None:
            raise UnavailableError(
                "the shared state does not answer, so other routers may still know this session; try again"
            ) from down

    async def _tell(self, worker: str | None, session: str) -> None:
        """Have a worker forget; one that is not there forgets by itself, when the session's time to live is over."""
        record = None if worker is None else self._registry.find(worker)
        if record is None:
            return
        try:
            await self._forget(record, session)
        except UpstreamFailedError as error:
            log.info("session_not_forgotten", extra={"worker": record.worker, "reason": error.reason})
