"""Serve rounds whose legs are sent at the same time: who meets whom, and once more when the prefill is lost."""

from weft_router.engines.adapter import Adapter, Ask, PrefillResult, endpoint_of, port_of, room_of
from weft_router.errors import LegFailedError
from weft_router.openai.answers import not_ready
from weft_router.openai.reply import Reply
from weft_router.rounds.concurrent_legs import Together
from weft_router.rounds.decode_executor import DecodeExecutor
from weft_router.rounds.remote_prefill import PREFILL_LOST, RemotePrefill
from weft_router.rounds.response_writer import ResponseWriter
from weft_router.routing.prefill_workers import Peers
from weft_router.sessions.round import Prefilled, Round
from weft_router.state.registry import Registry
from weft_router.telemetry.metrics import Metrics
from weft_router.workers.worker import Worker

MOST = 2
"""Pairs of legs for one round."""


class Pairs:
    """The pairs of legs of one decode worker."""

    def __init__(
        self, worker: Worker, *, adapter: Adapter, registry: Registry, peers: Peers, remote: RemotePrefill,
        executor: DecodeExecutor, metrics: Metrics,
    ) -> None:  # fmt: skip
        self._settings = worker.settings
        self._adapter = adapter
        self._registry = registry
        self._peers = peers
        self._remote = remote
        self._executor = executor
        self._failures = metrics.prefill_failures
        self._together = Together()

    async def run(self, writer: ResponseWriter, rnd: Round, worker: str) -> None:
        """Send both legs at once; once more with another prefill worker when the first is lost.

        Raises:
            ApiError: there is no prefill worker.
            LegFailedError: the decode engine failed, or nobody is known to have lost the prefill.
            StreamBrokenError: the answer broke off.
        """
        settings, ask = self._settings, rnd.ask
        for attempt in range(MOST):
            record = self._registry.get(worker)
            if record is None:
                break
            # Engines meet by a number that is good once: not for a second pair, nor for another worker's.
            ask.room = room_of(Ask(rnd.inference, f"{rnd.id}/{settings.worker}/{attempt}"))
            if attempt:
                ask.request_id = f"{rnd.id}-{attempt}"
            bootstrap = self._adapter.traits.bootstrap_port
            ask.prefill = endpoint_of(record.url, engine_port=record.engine_port, bootstrap_port=bootstrap)
            ask.decode = endpoint_of(settings.url, engine_port=port_of(settings.engine_url), bootstrap_port=0)
            prefilled = Prefilled(record.worker, PrefillResult(None, Reply(rnd.inference.kind)), 0, None, 0)
            try:
                await self._together.run(
                    self._remote.beside(rnd, record), self._executor.run(writer, rnd, prefilled),
                    begun=lambda: writer.begun,
                )  # fmt: skip
            except LegFailedError as error:
                if writer.begun or error.reason != PREFILL_LOST:
                    raise
                self._failures.labels(error.detail or error.reason).inc()
                rnd.retried = True
                worker = self._peers.least_queued({record.worker}) or ""
            else:
                return
        raise not_ready("prefill worker")
