"""The sidecar of a prefill worker: owns the queue in front of the engine and measures the TTFT it gives."""

import asyncio
import logging
from dataclasses import replace
from time import monotonic

from aiohttp import web

from weft_core.policies.snapshot import PrefillTask
from weft_router.api.answers import models, read_body
from weft_router.api.inference import PATHS
from weft_router.config import Settings
from weft_router.errors import ApiError, InvalidRequestError, LegFailedError, UnavailableError
from weft_router.roles.server import FACTS, REQUEST_ID
from weft_router.roles.sidecar import Sidecar
from weft_router.signals.metrics import Metrics
from weft_router.signals.window import Window
from weft_router.state.store import Store, WorkerRecord
from weft_router.wire.upstream import Deadline, Legs, post, read_bounded

log = logging.getLogger(__name__)

PATH_HEADER = "X-Weft-Path"
HISTORY_HEADER = "X-Weft-History"
INCREMENT_HEADER = "X-Weft-Increment"
FROM_ENGINE = "X-Weft-Engine"
QUEUED_HEADER = "X-Weft-Queue-Seconds"
PREFILL_HEADER = "X-Weft-Prefill-Seconds"


class PrefillSidecar:
    """The duty of role ``prefill``."""

    def __init__(self, settings: Settings, store: Store, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._legs = Legs()
        self._ttft = Window(settings.config.routing.stats_window_seconds)
        self._sidecar = Sidecar(settings, store, metrics, describe=self._describe)

    def routes(self) -> list[web.RouteDef]:
        """Return the endpoints of a prefill worker."""
        return [
            web.post("/internal/prefill", self._prefill),
            web.get("/v1/models", self._models),
            *self._sidecar.routes(),
        ]

    def ready(self) -> str | None:
        """Return None when prefills can be served."""
        return self._sidecar.ready()

    async def start(self) -> None:
        """Start the sidecar's background work."""
        await self._sidecar.start(watch_peers=False)

    async def stop(self) -> None:
        """Stop it."""
        await self._sidecar.stop()

    def drain(self) -> None:
        """Take nothing new."""
        self._sidecar.drain()

    def cut(self) -> None:
        """End what is still under way."""
        self._legs.cut("shutting down")

    def observe(self) -> None:
        """Bring gauges up to date."""
        self._metrics.queue_length.set(len(self._sidecar.queue))

    def _describe(self, record: WorkerRecord) -> WorkerRecord:
        return replace(record, windowed_ttft=self._ttft.mean(monotonic()))

    async def _models(self, _: web.Request) -> web.Response:
        return models(self._settings)

    async def _prefill(self, request: web.Request) -> web.Response:
        """Queue one prefill, run it, give the engine's reply back; the body comes ready for the engine."""
        sidecar = self._sidecar
        if sidecar.draining:
            raise UnavailableError("this prefill worker is draining", retryable=True)
        if not sidecar.engine.healthy:
            raise UnavailableError("the engine of this prefill worker is not healthy", retryable=True)
        arrived = monotonic()
        path = request.headers.get(PATH_HEADER, "")
        if path not in PATHS:
            raise InvalidRequestError(f"{PATH_HEADER}: {path[:64]!r} cannot be prefilled", param=PATH_HEADER)
        task = PrefillTask(_length(request, HISTORY_HEADER, 0), _length(request, INCREMENT_HEADER, 1))
        request_id = request.headers.get(REQUEST_ID, "")
        request[FACTS].update(request_id=request_id, history=task.history, increment=task.increment)
        limits, timeouts = self._settings.config.limits, self._settings.config.timeouts
        body = await read_body(request, limit=2 * limits.max_body_bytes, seconds=timeouts.body)
        asked = monotonic()
        slot = await sidecar.queue.acquire(request_id, task)
        try:
            status, reply = await self._run(path, body, request_id, fresh=task.history == 0)
        finally:
            began = slot.began
            slot.release()
            self._metrics.queue_seconds.observe(began - asked)
        ended = monotonic()
        if status == 200:
            self._ttft.add(ended, ended - arrived)
            self._metrics.prefill_seconds.observe(ended - began)
        request[FACTS].update(queued=round(began - asked, 4), prefill=round(ended - began, 4))
        return web.Response(
            status=status,
            body=reply,
            content_type="application/json",
            headers={
                FROM_ENGINE: "1",
                QUEUED_HEADER: f"{began - asked:.6f}",
                PREFILL_HEADER: f"{ended - began:.6f}",
            },
        )

    async def _run(self, path: str, body: bytes, request_id: str, *, fresh: bool) -> tuple[int, bytes]:
        engine = self._sidecar.engine
        limit = self._settings.config.limits.max_reply_bytes
        deadline = Deadline(self._settings.config.timeouts.first_byte)
        leg = post(engine.http, engine.url + path, body, {REQUEST_ID: request_id}, resend=fresh)
        try:
            with self._legs.track(deadline):
                async with deadline, leg as response:
                    reply = await read_bounded(response, limit)
                    if response.status < 500:
                        engine.served()
                    elif fresh:  # a history that cannot be read may be the decode worker's fault
                        engine.failed()
                    return response.status, reply
        except LegFailedError as error:
            if error.reason == "connect":
                engine.lost()
            elif fresh and error.reason != "reply-too-large":
                engine.failed()
            log.warning("prefill_engine_failed", extra={"request_id": request_id, "reason": error.reason})
            raise ApiError(
                f"the prefill engine failed ({error.reason})", status=502, kind="server_error", retryable=True
            ) from error
        except TimeoutError as error:
            if fresh and not deadline.lost:
                engine.failed()
            raise ApiError("the prefill engine did not answer in time", status=504, kind="server_error") from error
        except asyncio.CancelledError:
            log.info("prefill_cancelled", extra={"request_id": request_id})
            raise


def _length(request: web.Request, header: str, least: int) -> int:
    value = request.headers.get(header, "")
    if not value.isdigit() or not least <= int(value) < 2**31:
        raise InvalidRequestError(f"{header}: {value[:32]!r} is not a number of tokens", param=header)
    return int(value)
