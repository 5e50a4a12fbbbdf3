"""Run a prefill on a prefill worker, by the session's KV handle when it has one; give up towards a local prefill."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import cast

import aiohttp
import orjson

from weft_core.policies.snapshot import PrefillTask
from weft_router.api.body import Json
from weft_router.api.reply import read_whole
from weft_router.config import Settings
from weft_router.engines.handles import KvHandle, Outcome, prefix_digest
from weft_router.engines.vllm import prefill_body, transfer_params
from weft_router.errors import ApiError, LegFailedError
from weft_router.roles.prefill import FROM_ENGINE, HISTORY_HEADER, INCREMENT_HEADER, PATH_HEADER
from weft_router.roles.relay import SHUTTING_DOWN
from weft_router.roles.server import REQUEST_ID
from weft_router.rounds.round import Prefilled, Round
from weft_router.rounds.routing import Dispatched
from weft_router.signals.metrics import Metrics
from weft_router.state.registry import Registry
from weft_router.state.store import WorkerRecord
from weft_router.wire.upstream import TOKEN_HEADER, Deadline, Legs, post, read_bounded

log = logging.getLogger(__name__)

MAX_CALLS = 3
"""One worker, the same again without a handle it refused, one other worker: each call may cost a whole prefill."""
_LOCALLY = frozenset({"engine-error", "no-kv", "reply-too-large", "timeout"})
"""An engine that lives failed on this request: another one would more likely fail, too, than serve it."""


class EngineAnsweredError(Exception):
    """The engine refused the request itself (4xx): the client gets its words."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"engine answered {status}")
        self.status = status
        self.body = body


class RemotePrefill:
    """Calls from one decode sidecar to the prefill sidecars."""

    def __init__(
        self, settings: Settings, *, http: aiohttp.ClientSession, registry: Registry, metrics: Metrics
    ) -> None:
        self._config = settings.config
        self._revision = settings.revision
        self._token = settings.token.decode("latin-1")
        self._http = http
        self._registry = registry
        self._metrics = metrics
        self.dispatched = Dispatched(settings.profile, pools=settings.pools)
        self.legs = Legs()

    def peers(self) -> list[WorkerRecord]:
        """Return the ready prefill workers whose KV this worker's engine can read: those of its own revision."""
        return [record for record in self._registry.ready("prefill") if record.revision == self._revision]

    async def run(self, rnd: Round, worker: str) -> Prefilled | None:
        """Return the prefilled KV's whereabouts; None when the round shall prefill locally.

        A handle that is refused or lost is not tried again. Prefilling without it elsewhere pays only while the
        history is shorter than the increment: otherwise the decode worker, which still caches it, is the better place.

        Raises:
            EngineAnsweredError: the engine found the request itself wrong.
            LegFailedError: this process ends.
        """
        handle = rnd.outlook.handle
        tried: set[str] = set()
        target: str | None = worker
        for _ in range(MAX_CALLS):
            record = self._registry.get(target) if target is not None else None
            if record is None or record.revision != self._revision:
                target = self._other(tried | ({target} if target is not None else set()))
                if target is None:
                    break
                continue
            try:
                found = await self._attempt(rnd, record, handle)
            except (EngineAnsweredError, asyncio.CancelledError):
                if handle is not None:
                    self._metrics.kv_handles.labels("lost").inc()
                raise
            except LegFailedError as error:
                self._metrics.prefill_failures.labels(error.reason).inc()
                log.warning(
                    "prefill_failed",
                    extra={"request_id": rnd.id, "worker": record.worker, "reason": error.reason},
                )
                if error.reason in ("connect", "disconnected", "gone"):
                    self._registry.report_failure(record.worker)
                if handle is not None:
                    answered = error.reason in ("engine-error", "ids-differ")
                    outcome: Outcome = (
                        "ids_differ" if error.reason == "ids-differ" else "refused" if answered else "lost"
                    )
                    self._metrics.kv_handles.labels(outcome).inc()
                    handle = None
                    if error.reason != SHUTTING_DOWN:
                        if rnd.outlook.task.history >= rnd.outlook.task.increment:
                            return None
                        if answered:
                            continue
                if error.reason == SHUTTING_DOWN:
                    raise
                if error.reason in _LOCALLY:
                    return None
                tried.add(record.worker)
                target = self._other(tried)
                continue
            if handle is not None:
                self._metrics.kv_handles.labels("used").inc()
            return found
        if handle is not None:
            self._metrics.kv_handles.labels("superseded").inc()
        return None

    def _other(self, tried: set[str]) -> str | None:
        views = [self.dispatched.view(r) for r in self.peers() if r.worker not in tried]
        best = min(views, key=lambda view: (view.queued, view.worker), default=None)
        return best.worker if best is not None else None

    async def _attempt(self, rnd: Round, record: WorkerRecord, handle: KvHandle | None) -> Prefilled:
        body = rnd.salted(prefill_body(rnd.inference, handle, want_ids=rnd.want_ids and handle is not None))
        task = rnd.outlook.task
        known = task.history if handle is not None else 0
        headers = {
            TOKEN_HEADER: self._token,
            REQUEST_ID: rnd.id,
            PATH_HEADER: rnd.inference.path,
            HISTORY_HEADER: str(known),
            INCREMENT_HEADER: str(task.history + task.increment - known),
        }
        self.dispatched.add(record.worker, rnd.id, PrefillTask(known, task.history + task.increment - known))
        try:
            status, raw, from_engine = await self._call(record, orjson.dumps(body), headers)
        finally:
            self.dispatched.remove(record.worker, rnd.id)
        if status != 200:
            if from_engine and 400 <= status < 500 and status not in (408, 429):
                raise EngineAnsweredError(status, raw)
            raise LegFailedError("engine-error" if from_engine else "refused", f"status {status}")
        return self._read(rnd, record, raw, handle)

    async def _call(self, record: WorkerRecord, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes, bool]:
        deadline = Deadline(self._config.timeouts.first_byte)
        try:
            with self.legs.track(deadline), self._registry.watched(record.worker, partial(deadline.end, "gone")):
                async with deadline, post(self._http, record.url + "/internal/prefill", body, headers) as response:
                    raw = await read_bounded(response, self._config.limits.max_reply_bytes)
                    return response.status, raw, FROM_ENGINE in response.headers
        except TimeoutError as error:
            raise LegFailedError(deadline.lost or "timeout") from error

    def _read(self, rnd: Round, record: WorkerRecord, raw: bytes, handle: KvHandle | None) -> Prefilled:
        try:
            reply, _ = read_whole(rnd.inference.kind, raw, keep_ids=True)
        except ValueError as error:
            raise LegFailedError("engine-error", "the reply is not JSON") from error
        params = transfer_params(reply.handle)
        if params is None:
            raise LegFailedError("no-kv", "the engine gave no transfer parameters")
        if handle is not None and handle.digest is not None:
            ids = reply.prompt_ids
            if ids is None or prefix_digest(ids, handle.tokens) != handle.digest:
                self._metrics.kv_handles.labels("orphaned").inc()
                raise LegFailedError("ids-differ")
        cached = params.get("remote_prefill_cached_tokens")
        return Prefilled(
            worker=record.worker,
            params=params,
            prompt_tokens=reply.prompt_tokens,
            cached_tokens=cached if isinstance(cached, int) else reply.cached_tokens,
            read_tokens=handle.tokens if handle is not None else 0,
        )


def engine_error(answered: EngineAnsweredError) -> ApiError:
    """Return an engine's refusal in OpenAI's error form, keeping its message and field when it has them."""
    message, param, code = f"the engine refused the request with status {answered.status}", None, None
    try:
        body: object = orjson.loads(answered.body)
    except orjson.JSONDecodeError:
        body = None
    if isinstance(body, dict):
        inner = cast(Json, body["error"]) if isinstance(body.get("error"), dict) else cast(Json, body)
        message = str(inner.get("message") or message)
        param = str(inner["param"]) if isinstance(inner.get("param"), str) else None
        code = str(inner["code"]) if isinstance(inner.get("code"), str) else None
    return ApiError(message, status=answered.status, param=param, code=code)
