"""The operator's own port: liveness, readiness and metrics."""

from collections.abc import Callable
from typing import Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from weft_operator.api.objects import PassKey, ServiceKey
from weft_operator.kube.leader_election.elector import LeaderElector
from weft_operator.kube.request_stats import RequestStats


class QueueStats(Protocol):
    """The work queue as metrics see it."""

    @property
    def known(self) -> frozenset[PassKey]:
        """Return the services and groups that are reconciled."""

    @property
    def failing(self) -> int:
        """Return the number of keys whose last pass failed."""


class OperatorMetrics(Collector):
    """Collects the operator's metrics at each scrape."""

    def __init__(
        self,
        *,
        stats: RequestStats,
        work_queue: QueueStats,
        leading: Callable[[], bool],
        elector: LeaderElector | None = None,
    ) -> None:
        self._stats = stats
        self._work_queue = work_queue
        self._leading = leading
        self._elector = elector
        self.watch_restarts: Callable[[], int] = lambda: 0
        self.contested: Callable[[], int] = lambda: 0
        self.metrics_query_failures: Callable[[], int] = lambda: 0
        self.passes: dict[str, int] = {"ok": 0, "error": 0}
        self.actions = 0
        self.planner_runs: dict[str, int] = {}

    def collect(self) -> list[Metric]:
        """Return all metrics."""
        requests = CounterMetricFamily(
            "weft_operator_api_requests", "Requests to the API server", labels=("method", "resource", "code")
        )
        for (method, resource, status), count in sorted(self._stats.requests.items()):
            requests.add_metric((method, resource, str(status)), count)
        passes = CounterMetricFamily("weft_operator_reconciles", "Passes over a service", labels=("result",))
        for result, count in sorted(self.passes.items()):
            passes.add_metric((result,), count)
        runs = CounterMetricFamily("weft_operator_planner_runs", "Answers of the planner", labels=("outcome",))
        for outcome, count in sorted(self.planner_runs.items()):
            runs.add_metric((outcome,), count)
        actions = CounterMetricFamily("weft_operator_actions", "Objects applied or deleted")
        actions.add_metric((), self.actions)
        query_failures = CounterMetricFamily(
            "weft_operator_metrics_query_failures", "Queries of a service's metrics that ended in an unexpected error"
        )
        query_failures.add_metric((), self.metrics_query_failures())
        restarts = CounterMetricFamily("weft_operator_watch_restarts", "Restarts of the watches after they broke")
        restarts.add_metric((), self.watch_restarts())
        missing = GaugeMetricFamily(
            "weft_operator_missing_rights",
            "1 for a right of the API server that the operator lacked in the last minutes",
            labels=("verb", "resource", "namespace"),
        )
        for right in sorted(self._stats.missing_rights):
            resource = f"{right.resource}.{right.group}" if right.group else right.resource
            missing.add_metric((right.verb, resource, right.namespace), 1)
        terms = CounterMetricFamily("weft_operator_terms", "Times that this replica became the leader")
        terms.add_metric((), self._elector.terms if self._elector is not None else int(self._leading()))
        return [
            requests,
            passes,
            runs,
            actions,
            query_failures,
            restarts,
            missing,
            terms,
            _gauge(
                "weft_operator_services",
                "Services that are reconciled",
                sum(isinstance(key, ServiceKey) for key in self._work_queue.known),
            ),
            _gauge(
                "weft_operator_services_failing", "Services and groups whose last pass failed", self._work_queue.failing
            ),
            _gauge(
                "weft_operator_contested_namespaces",
                "Namespaces whose services another operator reconciles, so that this one does not",
                self.contested(),
            ),
            _gauge("weft_operator_leading", "Whether this replica leads", int(self._leading())),
            _gauge(
                "weft_operator_api_failing_seconds",
                "How long every request to the API server got 429, 5xx or no answer; 0 when all is well",
                self._stats.failing_s,
            ),
        ]


def _gauge(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, text)
    family.add_metric((), value)
    return family


async def serve(
    *, port: int, alive: Callable[[], bool], ready: Callable[[], str | None], metrics: OperatorMetrics
) -> web.AppRunner:
    """Serve /healthz, /readyz and /metrics until the returned runner is cleaned up; ``ready`` returns who leads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)

    async def health(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n") if alive() else web.Response(status=503, text="stuck\n")

    async def readiness(_request: web.Request) -> web.Response:
        leader = ready()
        return web.Response(text=f"{leader}\n") if leader else web.Response(status=503, text="not yet\n")

    async def exposition(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.router.add_get("/healthz", health)
    app.router.add_get("/readyz", readiness)
    app.router.add_get("/metrics", exposition)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
