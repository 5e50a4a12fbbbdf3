"""The metrics of a gateway, beside those that every router process has."""

from weft_router.telemetry.instruments import Counter, Gauge


class GatewayMetrics:
    """Counters and gauges by the services behind one address; ``service`` is NAMESPACE/NAME."""

    def __init__(self) -> None:
        self.requests = Counter(
            "weft_router_gateway_requests",
            "Requests that a gateway passed on to a service, by the status that its client got",
            ["service", "code"],
        )
        self.failures = Counter(
            "weft_router_gateway_failures",
            "Requests that a service did not answer, or not to the end, or whose gateway it did not accept, by reason",
            ["service", "reason"],
        )
        self.services = Gauge("weft_router_gateway_services", "Services that a gateway knows")
        self.conflicts = Gauge(
            "weft_router_gateway_name_conflicts",
            "Names of models that more than one service has: they lead to the oldest of these",
        )
        self.list_age = Gauge(
            "weft_router_gateway_list_age_seconds",
            "Time since a gateway last knew its list of services to be right; it grows while the API server is away",
        )
