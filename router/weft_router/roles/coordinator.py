"""The front door: knows tenant and session, binds it to a decode worker, and keeps the client's stream whole."""

import asyncio
import logging
from functools import partial
from uuid import uuid4

import orjson
from aiohttp import web

from weft_router.api.answers import models, not_ready, read_body
from weft_router.api.body import parse, sanitise
from weft_router.api.identity import Heads, Identity, derived, explicit
from weft_router.api.inference import PATHS, Inference, check
from weft_router.api.tokens import START_CHARS_PER_TOKEN
from weft_router.api.transcript import of_request
from weft_router.background import Background, guarded
from weft_router.config import Settings
from weft_router.errors import ApiError, LegFailedError, UnavailableError
from weft_router.guard.auth import ApiKeys
from weft_router.roles.decode import SESSION_HEADER, TENANT_HEADER
from weft_router.roles.relay import ENGINE_FAILED, SHUTTING_DOWN, Relay
from weft_router.roles.server import FACTS, REQUEST_ID
from weft_router.roles.sidecar import SIDECAR_KEEPALIVE_S
from weft_router.rounds.placement import Placement
from weft_router.signals.metrics import Metrics
from weft_router.state.bindings import Bindings
from weft_router.state.registry import Registry
from weft_router.state.store import Store, StoreDownError
from weft_router.wire.upstream import TOKEN_HEADER, client, probe

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""Three workers lost under one request is a sick cluster or a sick request; more replays would spread either."""
EXPECTED_OUTPUT = 256
"""KV set aside for the answer when the client gives no limit."""
FINAL = frozenset({"timeout", "reply-too-large", SHUTTING_DOWN})
"""Not the worker's fault, or the same on any other: sent again, a slow request would only double the load."""
MAX_PARENTS = 32
HOUSEKEEPING_S = 5.0


class Coordinator:
    """The duty of role ``coordinator``."""

    def __init__(self, settings: Settings, store: Store, metrics: Metrics) -> None:
        config = settings.config
        self._settings = settings
        self._config = config
        self._metrics = metrics
        self._store = store
        self._keys = ApiKeys(settings.api_keys_file)
        self._token = settings.token.decode("latin-1")
        self._http = client(connect_s=config.timeouts.connect, keepalive_s=SIDECAR_KEEPALIVE_S)
        self._registry = Registry(store, partial(probe, self._http))
        self._bindings = Bindings(
            store, ttl_s=config.routing.session_ttl_seconds, store_up=lambda: self._registry.store_up
        )
        self._registry.on_new_epoch = self._bindings.republish
        self._placement = Placement(config.routing.binding)
        self._heads = Heads()
        self._relay = Relay(config, http=self._http, registry=self._registry, metrics=metrics)
        self._background = Background()
        self._writes: set[asyncio.Task[None]] = set()
        self._store_met = False

    def routes(self) -> list[web.RouteDef]:
        """Return the public endpoints."""
        inference = [web.post(path, partial(self._infer, path)) for path in PATHS]
        return [*inference, web.get("/v1/models", self._models)]

    def ready(self) -> str | None:
        """Return None when a request can be served: the store was reached once and a decode worker is ready."""
        self._store_met = self._store_met or self._registry.store_up
        if not self._store_met:
            return "Redis was not reached yet"
        return None if self._registry.ready("decode") else "no decode worker is ready"

    async def start(self) -> None:
        """Read the workers once, then keep watching them."""
        await self._registry.refresh()
        self._background.start(self._registry.run(), self._housekeeping())

    async def stop(self) -> None:
        """End background work and close connections."""
        await self._background.stop()
        for task in self._writes:
            task.cancel()
        await asyncio.gather(*self._writes, return_exceptions=True)
        await self._http.close()

    def drain(self) -> None:
        """Nothing to announce: readiness takes this process out of its Service."""

    def cut(self) -> None:
        """End what is still under way."""
        self._relay.legs.cut(SHUTTING_DOWN)

    def observe(self) -> None:
        """Bring gauges up to date."""
        self._metrics.sessions.set(len(self._bindings))
        self._metrics.state_up.set(self._registry.store_up)
        for role in ("decode", "prefill"):
            ready = len(self._registry.ready(role))
            self._metrics.workers.labels(role, "ready").set(ready)
            self._metrics.workers.labels(role, "not-ready").set(len(self._registry.known(role)) - ready)

    async def _housekeeping(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            await guarded(self._tidy)

    async def _tidy(self) -> None:
        self._keys.reload()
        self._bindings.expire()

    async def _models(self, request: web.Request) -> web.Response:
        self._keys.tenant(request.headers.get("Authorization"))
        return models(self._settings)

    async def _infer(self, path: str, request: web.Request) -> web.StreamResponse:
        tenant = self._keys.tenant(request.headers.get("Authorization"))
        if not self._registry.ready("decode"):
            raise not_ready("decode worker")
        limits = self._config.limits
        body = parse(await read_body(request, limit=limits.max_body_bytes, seconds=self._config.timeouts.body))
        identity = explicit(tenant, request.headers, body)
        if dropped := sanitise(body):
            self._metrics.dropped_fields.inc(len(dropped))
        inference = check(path, body, model=self._config.model, limits=limits)
        if identity is None:
            identity = await self._recognise(tenant, inference)
        request_id = "weft-" + uuid4().hex
        request[FACTS].update(request_id=request_id, session=identity.key, tenant=tenant)
        sent = {
            TOKEN_HEADER: self._token,
            REQUEST_ID: request_id,
            SESSION_HEADER: identity.key,
            TENANT_HEADER: tenant,
        }
        shown = {REQUEST_ID: request_id, SESSION_HEADER: _shown(identity)}
        return await self._serve(request, identity.key, inference, orjson.dumps(body), sent, shown)

    async def _recognise(self, tenant: str, inference: Inference) -> Identity:
        """Find the conversation a nameless request continues, here or, at first sight, in the store."""
        identity = derived(tenant, inference, of_request(inference), fresh=uuid4().hex)
        parents = identity.parents[:MAX_PARENTS]
        session = self._heads.find(parents)
        if session is None and parents and self._registry.store_up:
            try:
                session = next((s for s in await self._store.sessions_of(parents) if s is not None), None)
            except StoreDownError:
                session = None
        if session is not None:
            identity = Identity(session, f"weft-{session[:16]}", identity.parents, identity.head)
        if identity.head:
            self._heads.put(identity.head, identity.key)
            if self._registry.store_up:
                task = asyncio.get_running_loop().create_task(self._put_head(identity))
                self._writes.add(task)
                task.add_done_callback(self._writes.discard)
        return identity

    async def _put_head(self, identity: Identity) -> None:
        try:
            await self._store.put_head(identity.head, identity.key, ttl_s=self._config.routing.session_ttl_seconds)
        except StoreDownError as error:
            log.info("head_not_written", extra={"error": str(error)})

    async def _serve(
        self, request: web.Request, session: str, inference: Inference, payload: bytes,
        sent: dict[str, str], shown: dict[str, str],
    ) -> web.StreamResponse:  # fmt: skip
        """Relay to the bound worker; as long as nothing reached the client, a lost worker is replaced unseen."""
        tried: set[str] = set()
        failure: LegFailedError | None = None
        failed_engines = 0
        for _ in range(MAX_ATTEMPTS):
            worker = await self._place(session, inference, tried)
            record = self._registry.get(worker) if worker is not None else None
            if record is None:
                break
            request[FACTS].update(worker=record.worker, attempts=len(tried) + 1)
            try:
                return await self._relay.run(
                    request, record, payload, stream=inference.stream, sent=sent, shown=shown, facts=request[FACTS]
                )
            except LegFailedError as error:
                if error.reason in FINAL:
                    raise _final(error) from error
                failure = error
                tried.add(record.worker)
                self._metrics.replays.labels(error.reason).inc()
                log.warning(
                    "leg_failed",
                    extra={"request_id": sent[REQUEST_ID], "worker": record.worker, "reason": error.reason},
                )
                if error.reason == ENGINE_FAILED:
                    failed_engines += 1
                    if failed_engines > 1:
                        break  # two engines failed on it: a third would more likely be hurt than serve it
                elif error.reason != "refused":
                    self._registry.report_failure(record.worker)
        if failure is None or failure.reason in ("refused", "connect"):
            raise not_ready("decode worker")
        raise ApiError(
            f"{len(tried)} decode worker(s) failed to serve this request ({failure.reason}); try again",
            status=502,
            kind="server_error",
            code="worker_failed",
        )

    async def _place(self, session: str, inference: Inference, tried: set[str]) -> str | None:
        records = self._registry.ready("decode")
        ratio = min((r.chars_per_token for r in records), default=START_CHARS_PER_TOKEN)
        prompt = inference.exact_tokens or int(inference.chars / ratio)
        need = prompt + (inference.max_tokens or EXPECTED_OUTPUT) * inference.n
        return await self._bindings.resolve(
            session,
            usable=lambda worker: worker not in tried and self._registry.get(worker) is not None,
            choose=lambda: self._placement.choose(records, need=need, avoid=tried),
        )


def _final(error: LegFailedError) -> ApiError:
    if error.reason == SHUTTING_DOWN:
        return UnavailableError("this router is shutting down; try again")
    late = error.reason == "timeout"
    return ApiError(
        f"the decode worker did not answer this request ({error.reason})",
        status=504 if late else 502,
        kind="server_error",
        code="timeout" if late else "worker_failed",
    )


def _shown(identity: Identity) -> str:
    return identity.shown if identity.shown.isascii() else identity.key
