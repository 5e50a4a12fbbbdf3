"""The operator's own port: liveness, readiness and metrics."""

from collections.abc import Callable, Mapping

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class OperatorMetrics(Collector):
    """Reads the operator's counters when they are asked for."""

    def __init__(
        self, *, requests: Callable[[], Mapping[tuple[str, str, int], int]], services: Callable[[], int]
    ) -> None:
        self._requests = requests
        self._services = services
        self.passes: dict[str, int] = {"ok": 0, "error": 0}
        self.actions = 0
        self.planner_runs: dict[str, int] = {}

    def collect(self) -> list[Metric]:
        """Return all metrics."""
        requests = CounterMetricFamily(
            "weft_operator_api_requests", "Requests to the API server", labels=("method", "resource", "code")
        )
        for (method, resource, status), count in sorted(self._requests().items()):
            requests.add_metric((method, resource, str(status)), count)
        passes = CounterMetricFamily("weft_operator_reconciles", "Passes over a service", labels=("result",))
        for result, count in sorted(self.passes.items()):
            passes.add_metric((result,), count)
        runs = CounterMetricFamily("weft_operator_planner_runs", "Answers of the planner", labels=("outcome",))
        for outcome, count in sorted(self.planner_runs.items()):
            runs.add_metric((outcome,), count)
        actions = CounterMetricFamily("weft_operator_actions", "Objects applied or deleted")
        actions.add_metric((), self.actions)
        services = GaugeMetricFamily("weft_operator_services", "Services that are looked after")
        services.add_metric((), self._services())
        return [requests, passes, runs, actions, services]


async def serve(
    *, port: int, alive: Callable[[], bool], ready: Callable[[], bool], metrics: OperatorMetrics
) -> web.AppRunner:
    """Serve /healthz, /readyz and /metrics until the returned runner is cleaned up."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)

    def verdict(holds: Callable[[], bool]) -> Callable[[web.Request], object]:
        async def answer(_request: web.Request) -> web.Response:
            return web.Response(text="ok\n") if holds() else web.Response(status=503, text="not yet\n")

        return answer

    async def exposition(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.router.add_get("/healthz", verdict(alive))  # type: ignore[arg-type]
    app.router.add_get("/readyz", verdict(ready))  # type: ignore[arg-type]
    app.router.add_get("/metrics", exposition)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
