"""What a new service says from its creation through its first minutes: a start without trouble reads as one."""

from datetime import timedelta

import pytest

from weft_operator.api.objects import Manifest
from weft_operator.metrics.queries import windows_of
from weft_operator_tests.fake_prometheus import Prometheus, Router
from weft_operator_tests.valid import changed, service
from weft_operator_tests.world import Answered, World, summary

FIRST_SCRAPE_S = 25.0
POLL_S = 15.0
LATENCIES = frozenset({"ttft_first", "ttft_later", "itl"})


class Start:
    """A service in its first minutes, and everything that its status and Events said."""

    def __init__(self, *, scraped: bool, rate: float = 0.0) -> None:
        self.rate = rate
        body = changed(service(), "spec.planning.prometheus", {"url": "https://prometheus.example.com"})
        self.world = World(body)
        self.world.prometheus = self._answers if scraped else self._nothing
        self.said: set[tuple[str, str, str, str]] = set()
        self.born: dict[str, float] = {}

    @property
    def metrics(self) -> tuple[str, str]:
        return summary(self.world)["MetricsAvailable"]

    @property
    def warnings(self) -> list[str]:
        return [event.reason for event in self.world.cluster.events if event.type == "Warning"]

    async def until_plan(self) -> None:
        """Create it and plan it; its pods are there and load their model."""
        for _ in range(3):
            await self.step()
        self.world.cluster.settle()
        for pod in self.pods:
            pod["status"]["conditions"][0]["status"] = "False"
        await self.step()

    async def ready(self) -> None:
        """Let every pod become ready."""
        now = self.world.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        for pod in self.pods:
            pod["status"]["conditions"][0] |= {"status": "True", "lastTransitionTime": now}
            self.born[pod["metadata"]["name"]] = self.world.now.timestamp()
        await self.step()

    async def look(self) -> None:
        self.world.now += timedelta(seconds=POLL_S)
        await self.world.look()
        await self.step()

    async def step(self) -> None:
        await self.world.step()
        for item in self.world.cluster.service["status"]["conditions"]:
            self.said.add((item["type"], item["status"], item["reason"], item["message"]))

    @property
    def pods(self) -> list[Manifest]:
        return list(self.world.cluster.pods.values())

    def _answers(self) -> Answered:
        now = self.world.now.timestamp()
        routers = [
            Router(name, since, self.rate, told=lambda at, since=since: at >= since + FIRST_SCRAPE_S)  # type: ignore[misc]
            for name, since in self.born.items()
        ]
        # The latencies of this Prometheus are far above the plan's predictions, which is no start without trouble.
        given = Prometheus(routers, now, windows_of(300), dropped=LATENCIES).answers()
        return given.clock, list(given.results)

    def _nothing(self) -> Answered:
        given = Prometheus([], self.world.now.timestamp(), windows_of(300)).answers()
        return given.clock, list(given.results)


@pytest.mark.parametrize("rate", [0.0, 0.5], ids=["no traffic", "traffic"])
async def test_a_start_without_trouble_warns_of_nothing(rate: float) -> None:
    start = Start(scraped=True, rate=rate)
    await start.until_plan()
    for _ in range(4):  # the engines load their model
        await start.look()
    assert start.metrics == ("Unknown", "WaitingForMetrics")
    await start.ready()
    await start.look()
    assert summary(start.world)["Ready"] == ("True", "Serving")
    assert start.metrics == ("Unknown", "WaitingForMetrics")
    reasons = [start.metrics[1]]
    for _ in range(24):
        await start.look()
        reasons.append(start.metrics[1])
    assert list(dict.fromkeys(reasons)) == ["WaitingForMetrics", "TooFewSamples", "Fresh"]
    assert start.warnings == []
    planned = {(status, reason) for kind, status, reason, _ in start.said if kind == "Planned"}
    assert planned == {("Unknown", "Planning"), ("True", "PlanReady")}
    assert {status for kind, status, _, _ in start.said if kind == "MetricsAvailable"} == {"Unknown", "True"}
    for word in ("blind", "noseries", "concluded", "missing"):
        assert not [said for said in start.said if word in " ".join(said).lower()]


async def test_pods_that_do_not_stay_ready_hide_for_a_while_only_that_nothing_is_scraped() -> None:
    start = Start(scraped=False)
    await start.until_plan()
    waited = 0.0
    while start.metrics[1] in ("NotYetObserved", "WaitingForMetrics"):
        assert waited < 1200
        await start.ready()  # once more, a moment ago
        await start.look()
        waited += POLL_S
    assert waited == pytest.approx(600, abs=2 * POLL_S), "ten times spec.planning.prometheus.staleAfter"
    await start.look()
    assert "NoSeries" in start.warnings


async def test_pods_that_are_never_scraped_are_warned_of_once() -> None:
    start = Start(scraped=False)
    await start.until_plan()
    await start.ready()
    waited = 0.0
    while start.metrics[1] in ("NotYetObserved", "WaitingForMetrics"):
        assert start.warnings == []
        await start.look()
        waited += POLL_S
    assert waited == pytest.approx(120, abs=POLL_S), "twice spec.planning.prometheus.staleAfter"
    for _ in range(3):
        await start.look()
    assert start.metrics == ("False", "NoSeries")
    assert start.warnings == ["NoSeries"]
    assert summary(start.world)["Planned"] == ("True", "MetricsUnavailable")
