"""The target of metrics queries for one service: read from its spec and its pods in every pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from weft_core.durations import parse_duration
from weft_operator.api.objects import COMPONENT_LABEL, Manifest, condition_of, is_terminating, labels_of, name_of
from weft_operator.api.references import SecretKey
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.metrics.queries import windows_of
from weft_operator.metrics.query_results import QueriedService
from weft_operator.settings import PrometheusAccess

_SERVING = ("coordinator", "prefill", "decode")


@dataclass(frozen=True, slots=True)
class QueryTarget:
    """Where to look, how often, and at what."""

    url: str
    """Empty where no Prometheus is configured."""
    secret: str | None
    """Name of the Secret with credentials, in the service's namespace."""
    interval_s: float
    subject: QueriedService
    canary_since: datetime | None = None
    """Since when a plan is on trial, None where none is."""
    access: PrometheusAccess = field(default_factory=PrometheusAccess)
    """How the operator's own server is asked; nothing of it where the service names another one."""
    headers: Mapping[str, str | SecretKey] = field(default_factory=dict, repr=False)
    """The service's headers; values that are secret come from the service's namespace."""
    matchers: tuple[tuple[str, str], ...] = ()
    foreign: bool = False
    """Whether the service's author chose the URL: the operator is asked to go where its author cannot."""


def target_of(
    spec: DisaggInferenceServiceSpec,
    pods: Sequence[Manifest],
    *,
    default_url: str,
    access: PrometheusAccess,
    canary_since: datetime | None = None,
) -> QueryTarget:
    """Return the target of a service: the spec's Prometheus, else the operator's with what gives access to it."""
    asked = spec.planning.prometheus
    own = access if asked.url is None else PrometheusAccess()
    return QueryTarget(
        url=asked.url or default_url,
        secret=asked.auth_secret_ref.name if asked.auth_secret_ref is not None else None,
        interval_s=parse_duration(spec.planning.interval),
        subject=QueriedService(
            windows=windows_of(parse_duration(asked.window)),
            stale_after_s=parse_duration(asked.stale_after),
            pods=serving_pods(pods),
            ready_since=ready_since(pods),
            percentile=spec.slo.percentile,
            unit=spec.slo.unit,
            target=spec.slo.attainment,
        ),
        canary_since=canary_since,
        access=own,
        foreign=asked.url is not None,
        headers={item.name: item.secret_key_ref or item.value or "" for item in asked.headers},
        matchers=tuple(dict.fromkeys([*own.matchers, *((item.name, item.value) for item in asked.matchers)])),
    )


def serving_pods(pods: Sequence[Manifest]) -> dict[str, float]:
    """Return the pods that may serve rounds, and when (Unix time) their router began; 0 where that is not known.

    A pod that is not ready has no part of the load, and may not answer a scrape.
    """
    return {name_of(pod): _began(pod) for pod in sorted(pods, key=name_of) if _serves(pod)}


def ready_since(pods: Sequence[Manifest]) -> dict[str, float]:
    """Return since when (Unix time) the pods that may serve rounds are ready; 0 where that is not known."""
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


def _began(pod: Manifest) -> float:
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
