"""Poll Prometheus for every service that has a plan, and keep the newest observation of each.

Queries are spread over the interval and run in a few separate threads, so that a Prometheus that hangs does not block
calls to the API server. Polling goes on after any error.
"""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from weft_operator.api.objects import ServiceKey
from weft_operator.metrics.credentials import Credentials, ReadSecret, credentials_for
from weft_operator.metrics.observation import MetricsAvailability, NoMetricsError, Observation
from weft_operator.metrics.queries import queries
from weft_operator.metrics.query_results import QueryResults, read
from weft_operator.metrics.query_target import QueryTarget
from weft_operator.metrics.query_threads import QueryThreads
from weft_operator.metrics.status_figures import differs, figures
from weft_operator.metrics.untrusted import ask

MIN_QUERY_TIMEOUT_S = 5.0
"""Timeout of a service's queries where the interval is shorter."""

MIN_CANARY_WINDOW_S = 15
"""A shorter window has too few scrapes."""

MAX_WAIT_STALE_AFTERS = 10
"""How many times ``staleAfter`` a service may wait for its first metrics in all.

Otherwise pods that become ready again and again would hide forever that Prometheus scrapes none of them.
"""

log = logging.getLogger(__name__)

QueryPrometheus = Callable[[str, Credentials, tuple[str, ...]], tuple[object, list[object]]]


@dataclass(slots=True)
class _Polled:
    target: QueryTarget
    reported: Mapping[str, Any] | None = None
    """``status.observed`` when polling started."""
    task: "asyncio.Task[None] | None" = None
    last: Observation | None = None
    shown: Observation | None = None
    waits_since: datetime | None = None
    """When the first pod was ready without metrics."""


class MetricsPoller:
    """Keeps the newest observation of each service; passes set the targets and read the observations."""

    def __init__(
        self,
        *,
        read_secret: ReadSecret,
        enqueue: Callable[[ServiceKey], None],
        clock: Callable[[], datetime],
        ask: QueryPrometheus = ask,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_observation: Callable[[ServiceKey, Observation], bool] | None = None,
    ) -> None:
        """Create it; ``on_observation`` gets every observation and returns whether its service must be enqueued."""
        self._read_secret = read_secret
        self._enqueue = enqueue
        self._clock = clock
        self._ask = ask
        self._sleep = sleep
        self._on_observation = on_observation
        self._services: dict[ServiceKey, _Polled] = {}
        self._threads = QueryThreads()
        self.failures = 0
        """Number of queries that ended in an unexpected error."""

    def poll(self, key: ServiceKey, target: QueryTarget, *, reported: Mapping[str, Any] | None = None) -> None:
        """Poll a service from now on; a changed target applies to the next query.

        ``reported`` is ``status.observed``: a first observation that equals it does not enqueue the service, so that an
        operator that starts does not make a second pass over every service.
        """
        polled = self._services.get(key)
        if polled is None:
            polled = self._services[key] = _Polled(target, reported)
            polled.task = asyncio.create_task(self._poll_forever(key, polled), name=f"measure {key}")
        polled.target = target

    def forget(self, key: ServiceKey) -> None:
        """Stop polling a service."""
        polled = self._services.pop(key, None)
        if polled is not None and polled.task is not None:
            polled.task.cancel()

    def last(self, key: ServiceKey) -> Observation | None:
        """Return the newest observation, None before the first."""
        polled = self._services.get(key)
        return polled.last if polled is not None else None

    def shown(self, key: ServiceKey) -> Observation | None:
        """Return the observation that the status shows, which a newer one replaces only if it differs notably."""
        polled = self._services.get(key)
        return polled.shown if polled is not None else None

    async def close(self) -> None:
        """End all queries."""
        tasks = [polled.task for polled in self._services.values() if polled.task is not None]
        for key in list(self._services):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)
        self.end_threads()

    def end_threads(self) -> None:
        """End each thread after its query; no query may follow."""
        self._threads.end()

    async def _poll_forever(self, key: ServiceKey, polled: _Polled) -> None:
        # After a restart all services are polled from the same time: their names spread them over the interval.
        await self._sleep(polled.target.interval_s * (zlib.crc32(str(key).encode()) % 1000) / 1000)
        while True:
            try:
                self._record(key, polled, await self._query(key, polled.target))
            except Exception:
                # Otherwise polling would end silently.
                log.exception("metrics_query_failed", extra={"service": str(key)})
                self.failures += 1
            await self._sleep(polled.target.interval_s)

    def _record(self, key: ServiceKey, polled: _Polled, queried: Observation) -> None:
        observation = _limit_waiting(polled, queried)
        polled.last = observation
        known = polled.shown is None and not observation.availability.seen and polled.reported == figures(observation)
        changed = polled.shown is None or differs(polled.shown, observation)
        if changed:
            if polled.shown is None or polled.shown.availability.reason != observation.availability.reason:
                log.info("metrics_availability", extra={"service": str(key), "reason": observation.availability.reason})
            polled.shown = observation
        drifted = self._on_observation is not None and self._on_observation(key, observation)
        if (changed and not known) or drifted:
            self._enqueue(key)

    async def _query(self, key: ServiceKey, target: QueryTarget) -> Observation:
        windows = target.subject.windows
        try:
            clock, results = await self._answers(key, target)
            seen = read(QueryResults(clock, results), target.subject, at=self._clock())
        except NoMetricsError as error:
            availability = error.availability
        except Exception:
            # The last observation must not count as current.
            log.exception("metrics_query_failed", extra={"service": str(key)})
            self.failures += 1
            availability = MetricsAvailability("QueryFailed", "the operator's query failed; its log says why")
        else:
            return replace(seen, canary_since=target.canary_since)
        return Observation(
            at=self._clock(),
            window_s=float(windows.whole),
            fast_window_s=float(windows.fast),
            availability=availability,
        )

    async def _answers(self, key: ServiceKey, target: QueryTarget) -> tuple[object, list[object]]:
        if not target.url:
            raise NoMetricsError(
                "NotConfigured",
                "no Prometheus is known; give spec.planning.prometheus.url, or the chart's prometheus.url",
            )
        credentials = await credentials_for(key, target, self._read_secret)
        canary_s = None
        if target.canary_since is not None:
            canary_s = max(MIN_CANARY_WINDOW_S, int((self._clock() - target.canary_since).total_seconds()))
        asked = queries(
            key.namespace, key.name, target.subject.windows, canary_s=canary_s, matchers=target.matchers,
            triggers=target.triggers,
        )  # fmt: skip
        # A query that takes longer than the interval would make the last observation two intervals old.
        within_s = max(MIN_QUERY_TIMEOUT_S, target.interval_s)
        try:
            return await self._threads.run(
                partial(self._ask, target.url, credentials, asked),
                named_by=key.namespace if target.foreign else None,
                within_s=within_s,
            )
        except TimeoutError as error:
            raise NoMetricsError(
                "PrometheusUnreachable",
                f"Prometheus took longer than {within_s:g} s for the queries; check its load, or raise "
                "spec.planning.interval",
            ) from error


def _limit_waiting(polled: _Polled, observation: Observation) -> Observation:
    """Return an observation with reason NoSeries once the service has waited too long for its first metrics."""
    if observation.availability.reason != "WaitingForMetrics":
        polled.waits_since = None
        return observation
    subject = polled.target.subject
    if polled.waits_since is None:
        polled.waits_since = observation.at if subject.pods else None
        return observation
    if (observation.at - polled.waits_since).total_seconds() <= MAX_WAIT_STALE_AFTERS * subject.stale_after_s:
        return observation
    words = (
        "Prometheus has had no metrics of the service since its first pods were ready, and no pod stays ready: check "
        "their restarts, and that Prometheus scrapes them"
    )
    return replace(observation, availability=MetricsAvailability("NoSeries", words))
