"""The gateway: one address for many services; the model that a request names says which one serves it."""

import asyncio
import logging
from time import time
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, unquote

import orjson

from weft_router.auth.authenticator import authorization_of
from weft_router.background import Background, guarded
from weft_router.config.gateway import GatewaySettings
from weft_router.context import Context
from weft_router.errors import SHUTTING_DOWN, ApiError, InvalidRequestError, NotFoundError, UnavailableError
from weft_router.gateway.route_table import RouteTable
from weft_router.gateway.served_service import ServedService
from weft_router.gateway.service_source import ServiceSource
from weft_router.http.exchange import Exchange
from weft_router.http.head import CredentialCache, Peer
from weft_router.http.pool import ConnectionPool
from weft_router.openai.answers import MESSAGES, model_entry
from weft_router.openai.inference import PATHS
from weft_router.roles.app import DEEP, App, Routes
from weft_router.roles.body_reader import read_body
from weft_router.roles.gateway_relay import SERVICE_HEADER, GatewayRelay
from weft_router.roles.pooling_endpoint import PATHS as POOLING
from weft_router.roles.session_closer import PATH as SESSIONS

if TYPE_CHECKING:
    from weft_router.gateway.hop_token import HopTokens

log = logging.getLogger(__name__)

MODELS: Final = "/v1/models"
HOUSEKEEPING_S = 5.0
END_S: Final = 10.0
"""How long a service may take to end a session."""
MAX_ASKED: Final = 32
"""Services that are asked for one session whose service is not named."""


class Gateway(App):
    """The application of role ``gateway``."""

    def __init__(
        self, settings: GatewaySettings, context: Context, *, source: ServiceSource, pool: ConnectionPool,
        tokens: "HopTokens | None",
    ) -> None:  # fmt: skip
        self._most_nodes = settings.config.limits.max_body_nodes
        self._access = context.access
        self._authenticator = context.access.authenticator
        self._metrics = context.metrics
        self._pool = pool
        self._tokens = tokens
        self._relay = GatewayRelay(pool, tokens=tokens, metrics=context.metrics)
        self._source = source
        self._background = Background()
        self.table = RouteTable()
        source.on_change = self._rebuild
        self._rebuild()

    @property
    def role(self) -> str:
        """Return the role, which never changes."""
        return "gateway"

    def routes(self) -> Routes:
        """Return the endpoints that services have."""
        return {
            **{path: {"POST": self._forward} for path in PATHS},
            MODELS: {"GET": self._models},
            f"{MODELS}/{DEEP}": {"GET": self._model},
            "/tokenize": {"POST": self._forward},
            MESSAGES: {"POST": self._forward},
            f"{MESSAGES}/count_tokens": {"POST": self._forward},
            **{path: {"POST": self._forward_pooling} for path in POOLING},
            SESSIONS: {"DELETE": self._end_session},
        }

    def admits(
        self, path: str, headers: dict[str, str], credential_cache: CredentialCache | None, _: Peer, /
    ) -> object:
        """Let known callers in; everyone, where services know them."""
        del path
        known = self._authenticator.cached(credential_cache)
        if known is not None:
            return known
        return self._authenticator.principal(authorization_of(headers), time(), credential_cache)

    def ready(self) -> str | None:
        """Return None once the services were listed; whether they answer is their own affair."""
        return None if self._source.listed else "the services were not listed yet"

    async def start(self) -> None:
        """Follow the services, keys and certificates."""
        self._background.start(*self._source.work(), self._housekeeping())

    async def stop(self) -> None:
        """End background work and close connections."""
        await self._background.stop()
        await self._source.close()
        await self._pool.close()

    def terminate(self) -> None:
        """End what is still under way."""
        self._pool.terminate(SHUTTING_DOWN)

    def observe(self) -> None:
        """Bring gauges up to date."""
        gauges = self._metrics.gateway
        gauges.services.set(len(self.table.services))
        gauges.conflicts.set(len(self.table.conflicts))
        gauges.list_age.set(self._source.age())

    def _rebuild(self) -> None:
        """Follow other services; say which names more than one of them has."""
        before = set(self.table.conflicts)
        self.table = RouteTable(self._source.services())
        for conflict in self.table.conflicts:
            if conflict not in before:
                facts = {"model": conflict.name, "service": conflict.service, "others": list(conflict.others)}
                log.warning("model_name_conflict", extra=facts)

    async def _housekeeping(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            await guarded(self._tidy)

    async def _tidy(self) -> None:
        self._access.reload()
        if self._tokens is not None:
            self._tokens.reload()

    async def _models(self, exchange: Exchange) -> None:
        entries = [model_entry(name, model, model.adapters) for name, model in self._known().models]
        exchange.reply(200, orjson.dumps({"object": "list", "data": entries}))

    async def _model(self, exchange: Exchange) -> None:
        name = unquote(exchange.path.removeprefix(f"{MODELS}/"))
        model = self._serving(name).model
        exchange.reply(200, orjson.dumps(model_entry(name, model, model.adapters)))

    async def _forward(self, exchange: Exchange) -> None:
        """Pass a request on to the service of its model."""
        service = self._named(exchange)
        if service is None:
            body = await read_body(exchange, self._most_nodes)
            service = self._serving(body.get("model"))
        await self._relay.serve(exchange, service)

    async def _forward_pooling(self, exchange: Exchange) -> None:
        """Pass a request for embeddings or ranks on: its model may be one that no service names."""
        service = self._named(exchange)
        if service is None:
            body = await read_body(exchange, self._most_nodes)
            table, model = self._known(), body.get("model")
            service = table.find(model) if isinstance(model, str) else None
            if service is None and len(table.pooling) == 1:
                service = table.pooling[0]
            if service is None:
                some = ", ".join(one.key for one in table.pooling) or "none has spec.coordinator.poolingUrl"
                raise NotFoundError(
                    f"which service is to answer {exchange.path}? Name one in the header {SERVICE_HEADER}: {some}"
                )
        await self._relay.serve(exchange, service)

    async def _end_session(self, exchange: Exchange) -> None:
        """End a session at the service of the model in the query, or at all services."""
        named = self._named(exchange)
        models = parse_qs(exchange.query).get("model")
        if named is None and models:
            named = self._serving(models[0])
        if named is not None:
            await self._relay.serve(exchange, named)
            return
        services = list(self._known().services.values())
        if len(services) > MAX_ASKED:
            raise InvalidRequestError(
                f"there are {len(services)} services here; name the session's model, as in DELETE "
                f"{exchange.path[:128]}?model=NAME",
                param="model",
            )
        statuses = await asyncio.gather(*[self._relay.ask(exchange, one, seconds=END_S) for one in services])
        if exchange.ended:
            return
        failed = [one.key for one, status in zip(services, statuses, strict=True) if status == 0 or status >= 500]
        if failed:
            some = ", ".join(failed[:8])
            raise UnavailableError(
                f"the session may go on at {some}, which did not answer; send it again",
                retry_after_s=2,
            )
        refused = [status for status in statuses if status != 204]
        if refused and len(refused) == len(statuses):
            raise ApiError(f"no service would end this session (status {refused[0]})", status=refused[0])
        exchange.reply(204, content_type="")

    def _named(self, exchange: Exchange) -> ServedService | None:
        """Return the service that a header names; None where none does."""
        key = exchange.headers.get(SERVICE_HEADER)
        if key is None:
            return None
        service = self._known().services.get(key)
        if service is None:
            raise NotFoundError(f"{SERVICE_HEADER}: there is no service {key[:128]!r} here; give NAMESPACE/NAME")
        return service

    def _serving(self, model: object) -> ServedService:
        """Return the service that serves a model.

        Raises:
            InvalidRequestError: it is no name.
            NotFoundError: no service has it.
        """
        table = self._known()
        if not isinstance(model, str) or not model:
            raise InvalidRequestError(f"model: name the model to use, one of {table.shown_names}", param="model")
        service = table.find(model)
        if service is None:
            shown = model if len(model) <= 128 else model[:128] + "…"
            raise NotFoundError(
                f"the model {shown!r} does not exist here; there are {table.shown_names}",
                param="model",
                code="model_not_found",
            )
        return service

    def _known(self) -> RouteTable:
        """Return the services as they are known.

        Raises:
            UnavailableError: they were not listed yet.
        """
        if not self._source.listed:
            raise UnavailableError("the services were not listed yet; try again shortly", retry_after_s=2)
        return self.table
