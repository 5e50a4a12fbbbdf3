"""The target of metrics queries for one service: read from its spec and its pods in every pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal

from weft_core.durations import parse_duration
from weft_operator.api.objects import (
    COMPONENT_LABEL,
    PICKER_COMPONENT,
    WORKER_COMPONENTS,
    Manifest,
    condition_of,
    is_terminating,
    labels_of,
    name_of,
)
from weft_operator.api.references import SecretKey
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.metrics.queries import Windows, windows_of
from weft_operator.metrics.trigger_queries import TriggerWindow
from weft_operator.settings import PrometheusAccess

_SERVING = ("coordinator", PICKER_COMPONENT, *WORKER_COMPONENTS)

FIRST_METRICS_STALE_AFTERS = 2
"""How many times ``staleAfter`` a ready pod may have no series before that is a fault.

``staleAfter`` spans some scrapes (1 min by default), so twice that is enough for Prometheus to discover a pod and to
scrape it.
"""


@dataclass(frozen=True, slots=True)
class QueriedService:
    """The queried service: its windows, its pods, the freshness that samples need, and its SLO."""

    windows: Windows
    stale_after_s: float
    pods: Mapping[str, float]
    """Ready pods with the start (Unix time) of their router process, whose counters started at 0."""
    percentile: int
    unit: Literal["session", "round"]
    target: float
    """Share of units that must meet the SLO."""
    ready_since: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """When (Unix time) each pod became ready; absent pods became ready long ago."""

    def awaits(self, pod: str, now: float) -> bool:
        """Return whether a pod became ready so recently that Prometheus may not have scraped it yet."""
        return now - self.ready_since.get(pod, 0.0) <= FIRST_METRICS_STALE_AFTERS * self.stale_after_s


@dataclass(frozen=True, slots=True)
class QueryTarget:
    """The server, the interval and the service of metrics queries."""

    url: str
    """Empty where no Prometheus is configured."""
    secret: str | None
    """Name of the Secret with credentials, in the service's namespace."""
    interval_s: float
    subject: QueriedService
    canary_since: datetime | None = None
    """When the canary started, None without one."""
    access: PrometheusAccess = field(default_factory=PrometheusAccess)
    """Access to the operator's own server; empty where the service names another one."""
    headers: Mapping[str, str | SecretKey] = field(default_factory=dict, repr=False)
    """The service's headers; secret values come from the service's namespace."""
    matchers: tuple[tuple[str, str], ...] = ()
    triggers: tuple[TriggerWindow, ...] = ()
    """Loads of the workers that are queried, too."""
    foreign: bool = False
    """Whether the service names the URL: the operator may reach addresses that its author cannot."""


def target_of(
    spec: DisaggInferenceServiceSpec,
    pods: Sequence[Manifest],
    *,
    default_url: str,
    access: PrometheusAccess,
    canary_since: datetime | None = None,
) -> QueryTarget:
    """Return the target of a service: the spec's Prometheus, or else the operator's with its access."""
    given = spec.planning.prometheus
    own = access if given.url is None else PrometheusAccess()
    return QueryTarget(
        url=given.url or default_url,
        secret=given.auth_secret_ref.name if given.auth_secret_ref is not None else None,
        interval_s=parse_duration(spec.planning.interval),
        subject=QueriedService(
            windows=windows_of(parse_duration(given.window)),
            stale_after_s=parse_duration(given.stale_after),
            pods=serving_pods(pods),
            ready_since=ready_since(pods),
            percentile=spec.slo.percentile,
            unit=spec.slo.unit,
            target=spec.slo.attainment,
        ),
        canary_since=canary_since,
        access=own,
        foreign=given.url is not None,
        headers={item.name: item.secret_key_ref or item.value or "" for item in given.headers},
        triggers=tuple(
            TriggerWindow(one.metric, round(parse_duration(one.window))) for one in spec.planning.triggers or ()
        ),
        matchers=tuple(dict.fromkeys([*own.matchers, *((item.name, item.value) for item in given.matchers)])),
    )


def serving_pods(pods: Sequence[Manifest]) -> dict[str, float]:
    """Return the pods that may serve rounds, with the start (Unix time) of their router; 0 where it is unknown.

    An unready pod has no load, and may not answer a scrape.
    """
    return {name_of(pod): _started(pod) for pod in sorted(pods, key=name_of) if _serves(pod)}


def ready_since(pods: Sequence[Manifest]) -> dict[str, float]:
    """Return when (Unix time) the pods that may serve rounds became ready; 0 where it is unknown."""
    return {
        name_of(pod): _seconds((condition_of(pod, "Ready") or {}).get("lastTransitionTime"))
        for pod in pods
        if _serves(pod)
    }


def _serves(pod: Manifest) -> bool:
    return (
        labels_of(pod).get(COMPONENT_LABEL) in _SERVING
        and not is_terminating(pod)
        and (condition_of(pod, "Ready") or {}).get("status") == "True"
    )


def _started(pod: Manifest) -> float:
    status: Mapping[str, Any] = pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        if container.get("name") == "router":
            return _seconds(((container.get("state") or {}).get("running") or {}).get("startedAt"))
    return 0.0


def _seconds(text: str | None) -> float:
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return 0.0
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
