"""Count what a front refuses and degrades, and which workers it takes out of use or moves sessions away from."""

from weft_core.heartbeat import WorkerRecord
from weft_router.limits.admission import RATES
from weft_router.state.bindings import Bindings
from weft_router.state.registry import Registry
from weft_router.telemetry.instruments import DEFAULT
from weft_router.telemetry.metrics import Metrics


class FrontMetrics:
    """The counters of a front's own doing."""

    def __init__(self, metrics: Metrics, *, registry: Registry, bindings: Bindings) -> None:
        """Count from now on what the registry and the bindings do."""
        self._metrics = metrics
        self._registry = registry
        registry.on_health_change(self._count_health_change)
        bindings.on_move(self._moved)

    def refused(self, reason: str, class_: str = DEFAULT) -> None:
        """Count a request that was not let in."""
        self._metrics.rejected.labels(reason, class_).inc()
        if reason in RATES:
            self._metrics.rate_limited.labels(reason).inc()

    def degraded(self, class_: str, *, capped: bool, local: bool) -> None:
        """Count a request that gets less than it asked for."""
        if capped:
            self._metrics.degraded.labels("output-cap", class_).inc()
        if local:
            self._metrics.degraded.labels("local-only", class_).inc()

    def _count_health_change(self, record: WorkerRecord, why: str) -> None:
        if why:
            self._metrics.ejections.labels(record.role, why).inc()
        else:
            self._metrics.readmissions.labels(record.role).inc()

    def _moved(self, worker: str) -> None:
        record = self._registry.find(worker)
        if record is None:
            why = "gone"
        elif record.draining:
            why = "draining"
        else:
            why = "failed" if record.has_duty("decode") else "role"
        self._metrics.rebinds.labels(why).inc()
