"""Serve rounds whose legs are sent at the same time: pair the workers, and retry once when the prefill is lost."""

from weft_router.engines.adapter import Adapter, EngineRequest, PrefillResult, endpoint_of, port_of, room_of
from weft_router.errors import UpstreamFailedError
from weft_router.openai.answers import not_ready
from weft_router.openai.reply import Reply
from weft_router.rounds.concurrent_legs import ConcurrentLegs
from weft_router.rounds.decode_executor import DecodeExecutor
from weft_router.rounds.remote_prefill import PREFILL_LOST, RemotePrefill
from weft_router.rounds.response_writer import ResponseWriter
from weft_router.routing.prefill_workers import PrefillWorkers
from weft_router.sessions.round import PrefilledKv, Round
from weft_router.state.registry import Registry
from weft_router.telemetry.metrics import Metrics
from weft_router.workers.worker import Worker

MOST = 2
"""Pairs of legs for one round."""


class DualDispatch:
    """Sends pairs of legs for one decode worker."""

    def __init__(
        self, worker: Worker, *, adapter: Adapter, registry: Registry, prefill_workers: PrefillWorkers,
        remote: RemotePrefill, executor: DecodeExecutor, metrics: Metrics,
    ) -> None:  # fmt: skip
        self._settings = worker.settings
        self._adapter = adapter
        self._registry = registry
        self._prefill_workers = prefill_workers
        self._remote = remote
        self._executor = executor
        self._failures = metrics.prefill_failures
        self._concurrent_legs = ConcurrentLegs()

    async def run(self, writer: ResponseWriter, rnd: Round, worker: str) -> None:
        """Send both legs at once; retry once with another prefill worker when the prefill is lost.

        Raises:
            ApiError: there is no prefill worker.
            UpstreamFailedError: the decode engine failed.
            StreamBrokenError: the stream ended early.
        """
        settings, engine_request = self._settings, rnd.engine_request
        for attempt in range(MOST):
            record = self._registry.get(worker, "prefill")
            if record is None:
                break
            # Engines pair legs by a number that is valid once, so each attempt and worker has its own.
            engine_request.room = room_of(EngineRequest(rnd.inference, f"{rnd.id}/{settings.worker}/{attempt}"))
            if attempt:
                engine_request.request_id = f"{rnd.id}-{attempt}"
            bootstrap = self._adapter.traits.bootstrap_port
            engine_request.prefill = endpoint_of(record.url, engine_port=record.engine_port, bootstrap_port=bootstrap)
            engine_request.decode = endpoint_of(
                settings.url, engine_port=port_of(settings.engine_url), bootstrap_port=0
            )
            prefilled = PrefilledKv(record.worker, PrefillResult(None, Reply(rnd.inference.kind)), 0, None, 0)
            try:
                await self._concurrent_legs.run(
                    self._remote.beside(rnd, record), self._executor.run(writer, rnd, prefilled),
                    headers_sent=lambda: writer.headers_sent,
                )  # fmt: skip
            except UpstreamFailedError as error:
                if writer.headers_sent or error.reason != PREFILL_LOST:
                    raise
                self._failures.labels(error.detail or error.reason).inc()
                rnd.retried = True
                worker = (
                    self._prefill_workers.least_queued(
                        {record.worker}, rnd.prefix_match.task, adapter=rnd.inference.version
                    )
                    or ""
                )
            else:
                return
        raise not_ready("prefill worker")
