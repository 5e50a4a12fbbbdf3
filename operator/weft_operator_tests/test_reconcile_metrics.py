"""What a service's status says of its traffic over whole passes, and that noise writes nothing."""

import dataclasses
from collections.abc import Callable

import pytest

from weft_operator.api.objects import Manifest
from weft_operator.metrics.observation import STARTING, NoMetricsError
from weft_operator.metrics.queries import windows_of
from weft_operator.status.reasons.metrics import METRICS_AVAILABLE, SLO_MET
from weft_operator_tests import world as worlds
from weft_operator_tests.fake_prometheus import Prometheus, Router
from weft_operator_tests.samples import SETTINGS
from weft_operator_tests.valid import changed, service
from weft_operator_tests.world import Answered, World, serving, summary


def body() -> Manifest:
    return changed(service(), "spec.planning.prometheus", {"url": "https://prometheus.example.com/tenant"})


def scraped(world: World, rate: float = 2.0, *, good: float = 0.95) -> Callable[[], Answered]:
    """Return a Prometheus that scrapes the pods of the world."""
    pods = sorted(world.cluster.pods)
    routers = [Router(name, world.now.timestamp() - 5000, rate / len(pods)) for name in pods]
    prometheus = Prometheus(routers, world.now.timestamp(), windows_of(300), good=good)

    def answers() -> Answered:
        given = prometheus.answers()
        return given.clock, list(given.results)

    return answers


async def test_traffic_is_shown_and_noise_writes_nothing() -> None:
    world = await serving(body())
    assert summary(world)["MetricsAvailable"] == ("Unknown", "NotYetObserved")
    assert summary(world)["SLOMet"] == ("Unknown", "Unknown")
    world.prometheus = scraped(world)
    await world.look()
    assert (summary(world)["MetricsAvailable"], summary(world)["SLOMet"]) == (("True", "Fresh"), ("True", "Met"))
    observed = world.cluster.service["status"]["observed"]
    assert observed["workload"]["sessionRate"] == pytest.approx(0.5, rel=0.05)
    assert observed["slo"]["classes"][0]["name"] == "default"

    writes = world.cluster.status_writes
    for rate in (2.05, 1.95, 2.1):
        world.prometheus = scraped(world, rate)
        await world.look()
        await world.step()
    assert world.cluster.status_writes == writes
    world.prometheus = scraped(world, 3.0)
    await world.look()
    assert world.cluster.status_writes == writes + 1
    assert world.cluster.service["status"]["observed"]["workload"]["sessionRate"] > 0.7


async def test_a_restarted_operator_keeps_the_observed_figures() -> None:
    world = await serving(body())
    world.prometheus = scraped(world)
    await world.look()
    status, writes = world.cluster.service["status"], world.cluster.status_writes
    await world.metrics_poller.close()
    world.restart()
    await world.step()
    world.prometheus = scraped(world, 2.05)
    await world.look()
    await world.step()
    assert (world.cluster.service["status"], world.cluster.status_writes) == (status, writes)


async def test_without_metrics_the_service_stays_ready_and_says_why() -> None:
    world = await serving(body())
    world.prometheus = scraped(world)
    await world.look()
    objects = {key: dict(item) for key, item in world.cluster.objects.items()}

    def silent() -> Answered:
        raise NoMetricsError(
            "PrometheusUnreachable", "no answer from https://prometheus.example.com (it took too long)"
        )

    world.prometheus = silent
    await world.look()
    assert summary(world)["MetricsAvailable"] == ("False", "PrometheusUnreachable")
    assert summary(world)["SLOMet"] == ("Unknown", "Unknown")
    assert summary(world)["Ready"] == ("True", "Serving")
    assert world.cluster.service["status"]["observed"] == {"metricsReason": "PrometheusUnreachable", "window": "300 s"}
    assert [event.type for event in world.cluster.events if event.reason == "PrometheusUnreachable"] == ["Warning"]
    writes = world.cluster.status_writes
    for _ in range(3):
        await world.look()
        await world.step()
    assert (world.cluster.status_writes, world.cluster.objects) == (writes, objects)


async def test_without_a_prometheus_the_service_is_ready() -> None:
    world = await serving()
    await world.look()
    assert summary(world)["MetricsAvailable"] == ("False", "NotConfigured")
    assert summary(world)["Ready"] == ("True", "Serving")


async def test_the_operators_own_prometheus_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://weft-prometheus.weft-system:9090"
    monkeypatch.setattr(worlds, "SETTINGS", dataclasses.replace(SETTINGS, prometheus_url=url))
    world = await serving()
    world.prometheus = scraped(world)
    await world.look()
    assert summary(world)["MetricsAvailable"] == ("True", "Fresh")


async def test_a_missed_slo_is_reported_once() -> None:
    world = await serving(body())
    world.prometheus = scraped(world, good=0.5)
    await world.look()
    assert summary(world)["SLOMet"] == ("False", "Missed")
    assert [event.type for event in world.cluster.events if event.reason == "Missed"] == ["Warning"]
    world.prometheus = scraped(world, 0.01)
    await world.look()
    assert summary(world)["SLOMet"] == ("Unknown", "TooFewRounds")


@pytest.mark.parametrize(
    "reason", [reason for reason in METRICS_AVAILABLE if reason not in ("Fresh", "NotYetObserved")]
)
async def test_every_reason_of_blindness_reaches_the_status(reason: str) -> None:
    world = await serving(body())

    def blind() -> Answered:
        raise NoMetricsError(reason, "why")  # type: ignore[arg-type]

    world.prometheus = blind
    await world.look()
    assert summary(world)["MetricsAvailable"] == ("Unknown" if reason in STARTING else "False", reason)
    assert set(SLO_MET) == {"Met", "Missed", "TooFewRounds", "Unknown"}
