"""Looks at services: what is kept, when a service is woken, and that trouble ends no watch."""

import asyncio
import base64
import dataclasses
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pytest

from weft_operator.api.objects import Manifest, ServiceKey
from weft_operator.errors import ForbiddenError, Right
from weft_operator.metrics.credentials import Credentials
from weft_operator.metrics.observation import NoMetricsError, Observation
from weft_operator.metrics.poller import MetricsPoller
from weft_operator.metrics.queries import windows_of
from weft_operator.metrics.query_target import QueryTarget, serving_pods
from weft_operator.metrics.status_figures import differs, figures, slo_reason
from weft_operator_tests.fake_prometheus import Prometheus, Router

KEY = ServiceKey("llm", "demo")
NOW = 1_800_000_000.0


def prometheus(rate: float = 2.0, *, good: float = 0.95, now: float = NOW) -> Prometheus:
    return Prometheus([Router("d0", NOW - 5000, rate)], now, windows_of(300), good=good)


class Bench:
    """A watch over one service whose looks the test lets happen."""

    def __init__(
        self, url: str = "http://prometheus:9090", secret: str | None = None, said: Manifest | None = None
    ) -> None:
        self.now = NOW
        self.said = said
        self.woken: list[ServiceKey] = []
        self.asked: list[tuple[str, Credentials, Sequence[str]]] = []
        self.secrets: dict[str, Manifest] = {}
        self.answer: Callable[[], Prometheus] = prometheus
        self._looks = asyncio.Semaphore(0)
        self.watch = MetricsPoller(
            read_secret=self._secret,
            enqueue=self.woken.append,
            clock=lambda: datetime.fromtimestamp(self.now, UTC),
            ask=self._ask,
            sleep=self._sleep,
        )
        self.target = QueryTarget(url=url, secret=secret, interval_s=10.0, subject=prometheus().subject())

    async def look(self) -> Observation:
        before = self.watch.last(KEY)
        self.watch.poll(KEY, self.target, reported=self.said)
        self._looks.release()
        async with asyncio.timeout(60):
            while (found := self.watch.last(KEY)) is before or found is None:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.001)
        return found

    async def _secret(self, _key: ServiceKey, name: str) -> Manifest | None:
        if name == "forbidden":
            raise ForbiddenError("no", status=403, right=Right("get", "secrets", "", "default"))
        return self.secrets.get(name)

    def _ask(self, url: str, credentials: Credentials, asked: Sequence[str]) -> tuple[object, list[object]]:
        self.asked.append((url, credentials, asked))
        answers = self.answer().answers()
        return answers.clock, list(answers.results)

    async def _sleep(self, _seconds: float) -> None:
        await self._looks.acquire()


def broken() -> Prometheus:
    raise ZeroDivisionError


def trouble() -> Prometheus:
    raise NoMetricsError("PrometheusUnreachable", "no answer")


async def test_a_service_is_enqueued_for_what_status_shows_and_for_nothing_else() -> None:
    bench = Bench()
    first = await bench.look()
    assert first.availability.seen
    assert (bench.watch.shown(KEY), bench.woken) == (first, [KEY])
    bench.now += 10
    bench.answer = lambda: prometheus(2.1, now=NOW + 10)
    second = await bench.look()
    assert second is not first
    assert (bench.watch.shown(KEY), bench.woken) == (first, [KEY])
    bench.answer = lambda: prometheus(3.0, now=NOW + 10)
    third = await bench.look()
    assert (bench.watch.shown(KEY), bench.woken) == (third, [KEY, KEY])
    bench.answer = trouble
    blind = await bench.look()
    assert (blind.availability.reason, blind.workload) == ("PrometheusUnreachable", None)
    assert (bench.watch.last(KEY), bench.watch.shown(KEY), len(bench.woken)) == (blind, blind, 3)
    await bench.look()
    assert len(bench.woken) == 3
    await bench.watch.close()


async def test_a_started_operator_whose_first_observation_equals_the_status_enqueues_nothing() -> None:
    blind = {"metricsReason": "PrometheusUnreachable", "window": "300 s"}
    for said, woken in ((blind, []), ({**blind, "metricsReason": "NotConfigured"}, [KEY]), (None, [KEY])):
        bench = Bench(said=said)
        bench.answer = trouble
        await bench.look()
        assert bench.woken == woken
        bench.answer = prometheus
        await bench.look()
        assert bench.woken == [*woken, KEY]
        await bench.watch.close()


async def test_a_forgotten_service_is_not_polled() -> None:
    bench = Bench()
    await bench.look()
    bench.watch.forget(KEY)
    assert bench.watch.last(KEY) is None
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("measure")]
    await bench.watch.close()


async def test_a_bug_in_a_query_does_not_end_polling() -> None:
    bench = Bench()
    bench.answer = broken
    assert (await bench.look()).availability.reason == "QueryFailed"
    bench.answer = prometheus
    assert (await bench.look()).availability.seen
    await bench.watch.close()


async def test_without_a_url_nothing_is_asked() -> None:
    bench = Bench(url="")
    assert (await bench.look()).availability.reason == "NotConfigured"
    assert bench.asked == []
    await bench.watch.close()


def encoded(**data: str) -> Manifest:
    coded = {key.replace("_", "."): base64.b64encode(text.encode()).decode() for key, text in data.items()}
    return {"metadata": {"name": "prom", "labels": {"weft.dev/use": "prometheus"}}, "data": coded}


async def test_credentials_come_from_the_secret_that_the_spec_names_and_are_not_shown() -> None:
    bench = Bench(secret="prom")
    assert (await bench.look()).availability.reason == "PrometheusUnauthorized"
    bench.secrets["prom"] = encoded(nothing="x")
    assert (await bench.look()).availability.reason == "PrometheusUnauthorized"
    assert bench.asked == []
    bench.secrets["prom"] = encoded(token="canary\n", username="u", password="canary", ca_crt="canary")
    assert (await bench.look()).availability.seen
    credentials = bench.asked[0][1]
    bench.secrets["prom"]["metadata"]["labels"] = {"weft.dev/use": "model"}
    unmarked = (await bench.look()).availability
    assert unmarked.reason == "PrometheusUnauthorized"
    assert "kubectl label secret prom -n llm weft.dev/use=prometheus" in unmarked.message
    assert len(bench.asked) == 1, "its value is sent nowhere"
    assert (credentials.token, credentials.ca) == ("canary", "canary")
    assert "canary" not in repr(credentials)
    bench.target = dataclasses.replace(bench.target, secret="forbidden")
    refused = (await bench.look()).availability
    assert refused.reason == "PrometheusUnauthorized"
    assert "the operator may not get secrets in namespace default; apply Weft's chart again" in refused.message
    await bench.watch.close()


async def seen(answer: Prometheus) -> Observation:
    bench = Bench()
    bench.answer = lambda: answer
    found = await bench.look()
    await bench.watch.close()
    return found


async def test_words_of_the_slo() -> None:
    good, bad, quiet = await seen(prometheus()), await seen(prometheus(good=0.8)), await seen(prometheus(0.01))
    assert slo_reason(good.slo)[0] == "Met"
    assert slo_reason(bad.slo) == ("Missed", "80 % of the rounds of class default met the SLO; 90 % must")
    assert slo_reason(quiet.slo)[0] == "TooFewRounds"
    assert slo_reason(None)[0] == "Unknown"
    # From 95 to 89 % is less than a tenth, but it is another word.
    assert differs(good, await seen(prometheus(good=0.89)))
    assert not differs(good, await seen(prometheus(good=0.93)))


async def test_figures_are_rounded_and_absent_where_nothing_is_seen() -> None:
    found = await seen(prometheus())
    shown = figures(found)
    assert shown["workload"]["decode"]["mean"] == 210.0
    assert shown["workload"]["sessionRate"] == float(f"{shown['workload']['sessionRate']:.3g}")
    blind = dataclasses.replace(
        found, availability=dataclasses.replace(found.availability, reason="Stale"), workload=None, slo=None
    )
    assert figures(blind) == {"metricsReason": "Stale", "window": "300 s"}


def pod(name: str, *, ready: bool = True, component: str = "decode", **more: object) -> Manifest:
    return {
        "metadata": {"name": name, "labels": {"app.kubernetes.io/component": component}, **more},
        "status": {
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "initContainerStatuses": [{"name": "router", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
        },
    }


def test_pods_that_serve_are_the_ready_ones() -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    front = pod("front", component="coordinator")
    del front["status"]["initContainerStatuses"]
    pods = [pod("d0"), pod("d1", ready=False), pod("d2", deletionTimestamp="now"), pod("x", component="other"), front]
    assert serving_pods(pods) == {"d0": began, "front": 0.0}


@pytest.mark.parametrize("text", [None, "", "yesterday"])
def test_a_start_that_is_not_told_is_long_ago(text: str | None) -> None:
    odd = pod("d0")
    odd["status"]["initContainerStatuses"][0]["state"] = {"running": {"startedAt": text}}
    assert serving_pods([odd]) == {"d0": 0.0}
