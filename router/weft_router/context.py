"""What a router process has once, whatever its role: its metrics, its access control, its traces."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weft_router.auth.access_control import AccessControl
from weft_router.config import Settings
from weft_router.http import connection
from weft_router.telemetry.decision_log import DecisionLog
from weft_router.telemetry.metrics import Metrics
from weft_router.telemetry.tracing import Tracer

if TYPE_CHECKING:
    from weft_router.telemetry.otlp import Telemetry

COMPILED = not str(connection.__file__).endswith(".py")
"""Whether requests go by compiled modules here; an interpreter they were not made for takes the sources beside them."""


@dataclass(frozen=True, slots=True)
class Context:
    """The things that every part of one process shares."""

    metrics: Metrics
    access: AccessControl
    telemetry: "Telemetry | None" = None
    ring: DecisionLog = field(default_factory=DecisionLog)

    @property
    def tracer(self) -> Tracer | None:
        """Return what traces rounds; None while tracing is off."""
        return None if self.telemetry is None else self.telemetry.tracer


def context_of(settings: Settings) -> Context:
    """Return what a process with these settings has.

    Raises:
        ConfigError: keys, certificate or the collector's headers cannot be used.
    """
    metrics = Metrics()
    metrics.compiled.set(COMPILED)
    config = settings.config.telemetry
    telemetry = None
    if config.otlp_endpoint:
        # Loaded where it is wanted: the exporter brings an HTTP client of its own.
        from weft_router.telemetry.otlp import open_telemetry

        telemetry = open_telemetry(config, settings=settings, metrics=metrics)
    return Context(metrics, AccessControl(settings), telemetry)
