"""Poll Prometheus for every service that has a plan, and keep the newest observation of each.

Queries are spread over the interval, a few at a time, in separate threads: a Prometheus that hangs must not hold up
calls to the API server. Whatever a query ends with, the next one follows.
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

SHORTEST_LOOK_S = 5.0
"""How long the queries of a service may take where the interval is shorter."""

MIN_CANARY_WINDOW_S = 15
"""A window with fewer scrapes tells nothing."""

LONGEST_WAIT_STALE_AFTERS = 10
"""How many times ``staleAfter`` a service may wait for first metrics in all.

Pods that become ready again and again would otherwise hide for ever that Prometheus scrapes none of them.
"""

log = logging.getLogger(__name__)

QueryPrometheus = Callable[[str, Credentials, tuple[str, ...]], tuple[object, list[object]]]


@dataclass(slots=True)
class _Watched:
    target: QueryTarget
    said: Mapping[str, Any] | None = None
    """What ``status.observed`` said when polling started."""
    task: "asyncio.Task[None] | None" = None
    last: Observation | None = None
    shown: Observation | None = None
    waits_since: datetime | None = None
    """Since when pods were ready, now and then, without any metrics of them."""


class MetricsPoller:
    """Keeps the observations of all services; passes set the targets and read the newest observations."""

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
        self._watched: dict[ServiceKey, _Watched] = {}
        self._threads = QueryThreads()
        self.failures = 0
        """Queries that ended in an unforeseen error."""

    def poll(self, key: ServiceKey, target: QueryTarget, *, said: Mapping[str, Any] | None = None) -> None:
        """Poll a service from now on; a changed target holds from the next query.

        ``said`` is ``status.observed``: a first observation that says no more does not enqueue the service, so that an
        operator that starts does not make a second pass over every service.
        """
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched(target, said)
            watched.task = asyncio.create_task(self._look_forever(key, watched), name=f"measure {key}")
        watched.target = target

    def forget(self, key: ServiceKey) -> None:
        """Stop polling a service."""
        watched = self._watched.pop(key, None)
        if watched is not None and watched.task is not None:
            watched.task.cancel()

    def last(self, key: ServiceKey) -> Observation | None:
        """Return the newest observation, None before the first."""
        watched = self._watched.get(key)
        return watched.last if watched is not None else None

    def shown(self, key: ServiceKey) -> Observation | None:
        """Return the observation that status shows: a newer one takes its place only when it says something else."""
        watched = self._watched.get(key)
        return watched.shown if watched is not None else None

    async def close(self) -> None:
        """End all queries."""
        tasks = [watched.task for watched in self._watched.values() if watched.task is not None]
        for key in list(self._watched):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)
        self.end_threads()

    def end_threads(self) -> None:
        """End the threads as soon as each is done with its query; no query may follow."""
        self._threads.end()

    async def _look_forever(self, key: ServiceKey, watched: _Watched) -> None:
        # Services that a restarted operator finds all at once get their places within the interval by name.
        await self._sleep(watched.target.interval_s * (zlib.crc32(str(key).encode()) % 1000) / 1000)
        while True:
            try:
                self._keep(key, watched, await self._look(key, watched.target))
            except Exception:
                # Otherwise polling would end here without notice.
                log.exception("metrics_query_failed", extra={"service": str(key)})
                self.failures += 1
            await self._sleep(watched.target.interval_s)

    def _keep(self, key: ServiceKey, watched: _Watched, looked: Observation) -> None:
        observation = _impatient(watched, looked)
        watched.last = observation
        known = watched.shown is None and not observation.availability.seen and watched.said == figures(observation)
        changed = watched.shown is None or differs(watched.shown, observation)
        if changed:
            if watched.shown is None or watched.shown.availability.reason != observation.availability.reason:
                log.info("metrics_availability", extra={"service": str(key), "reason": observation.availability.reason})
            watched.shown = observation
        drifted = self._on_observation is not None and self._on_observation(key, observation)
        if (changed and not known) or drifted:
            self._enqueue(key)

    async def _look(self, key: ServiceKey, target: QueryTarget) -> Observation:
        windows = target.subject.windows
        try:
            clock, results = await self._answers(key, target)
            seen = read(QueryResults(clock, results), target.subject, at=self._clock())
        except NoMetricsError as error:
            availability = error.availability
        except Exception:
            # The observation before must not count as one of now.
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
        asked = queries(key.namespace, key.name, target.subject.windows, canary_s=canary_s, matchers=target.matchers)
        # The last good look is two intervals old when the next one has taken longer than an interval.
        within_s = max(SHORTEST_LOOK_S, target.interval_s)
        try:
            return await self._threads.run(
                partial(self._ask, target.url, credentials, asked),
                named_by=key.namespace if target.foreign else None,
                within_s=within_s,
            )
        except TimeoutError as error:
            raise NoMetricsError(
                "PrometheusUnreachable",
                f"Prometheus took longer than {within_s:g} s for a look; look at its load, or raise "
                "spec.planning.interval",
            ) from error


def _impatient(watched: _Watched, observation: Observation) -> Observation:
    """Return an observation that waits for metrics as one that lacks them, once the service has waited too long."""
    if observation.availability.reason != "WaitingForMetrics":
        watched.waits_since = None
        return observation
    subject = watched.target.subject
    if watched.waits_since is None:
        watched.waits_since = observation.at if subject.pods else None
        return observation
    if (observation.at - watched.waits_since).total_seconds() <= LONGEST_WAIT_STALE_AFTERS * subject.stale_after_s:
        return observation
    words = (
        "Prometheus has had no metrics of the service since its first pods were ready, and none stays ready: look at "
        "their restarts, and see that Prometheus scrapes them"
    )
    return replace(observation, availability=MetricsAvailability("NoSeries", words))
