"""Services that nobody asks anything: their workers leave, the plan is kept, and the first request brings them back."""

import dataclasses
from typing import Any

import pytest

from weft_core.heartbeat import QueueEntry, WorkerRecord
from weft_operator.metrics.history import History, sample_of
from weft_operator.metrics.observation import UnavailableReason, WorkerPressure
from weft_operator.planning.planner_process import Refused
from weft_operator.render.config_maps import live_config
from weft_operator.render.plan_baseline import baseline_json, read_baseline
from weft_operator.scaling.idle import has_demand, is_idle, may_scale_to_zero, scaled_up
from weft_operator_tests.observations import at, blind, look, plan_for, record_of, service_with
from weft_operator_tests.samples import KEY, rendering, told
from weft_operator_tests.test_reconcile_replanning import Watched
from weft_operator_tests.world import summary

REST = {"after": "10m", "hold": "90s", "maxHeld": 8}
SILENT = {"rounds": None, "first_prompt": None, "increment": None, "decode": None}
NOBODY = WorkerPressure(queue=0.0, sessions=0.0, kv_use={"decode": 0.0})


def nothing(seconds: float) -> Any:
    """Return a look that saw that nobody asks anything."""
    return look(seconds, 0.0, pressure=NOBODY, **SILENT)


def word(name: str, role: str = "decode", **parts: Any) -> WorkerRecord:
    """Return what a worker says of itself."""
    return WorkerRecord(name, role, f"http://{name}", 1, 1000, ready=True, **parts)  # type: ignore[arg-type]


class Idle(Watched):
    """A service with one prefill and two decode workers that may have none at all."""

    def __init__(self, **planning: Any) -> None:
        # Less traffic must not bring another plan: that is another matter.
        super().__init__(scaleToZero=REST, **{"drift": {"shrinkAfter": "24h"}, **planning})

    def idle(self, begin: float, end: float) -> None:
        """Let the watch see that nobody asks anything from one moment to another."""
        self.see(*(nothing(begin + 10.0 * k) for k in range(int((end - begin) / 10) + 1)))

    def tell(self, **parts: Any) -> None:
        """Let all workers say what they do."""
        self.heartbeats = {name: word(name, role, **parts) for name, role in self.cluster.roles().items()}

    @property
    def ready(self) -> tuple[str, str]:
        return summary(self)["Ready"]

    @property
    def asked(self) -> dict[str, int]:
        """Return what is asked of each group, by role."""
        found = [self.cluster.named("WorkerGroup", name)["spec"] for name in self.cluster.names("WorkerGroup")]
        return {role: sum(spec["roles"][role] for spec in found) for role in ("decode", "prefill")}


async def idle(**planning: Any) -> Idle:
    world = Idle(**planning)
    world.see(look(0.0))
    await world.until_quiet()
    assert world.ready == ("True", "Serving")
    world.tell()
    return world


async def asleep() -> Idle:
    world = await idle()
    world.idle(400, 1010)
    await world.until_quiet()
    assert world.ready == ("True", "ScaledToZero")
    return world


async def test_a_service_without_requests_has_no_workers_and_keeps_its_plan() -> None:
    world = await idle()
    world.idle(400, 990)
    await world.until_quiet()
    assert (world.ready, world.asked) == (("True", "Serving"), {"decode": 2, "prefill": 1}), "not for long enough"
    assert world.replanning_state.on_observation(KEY, nothing(1000)), (
        "the service is woken for it, however rarely it is looked at"
    )
    world.see(nothing(1010))
    await world.until_quiet()
    assert world.ready == ("True", "ScaledToZero")
    assert "starts P1x1 D1x2 and waits for it for up to 90s" in world.cluster.condition("Ready")["message"]
    assert world.asked == {"decode": 0, "prefill": 0}
    assert world.cluster.names("StatefulSet") == []
    assert world.cluster.names("Deployment") == ["demo"]
    status = world.cluster.service["status"]
    assert (status["planSummary"], status["url"]) == ("P1x1 D1x2", "http://demo.default.svc")
    assert summary(world)["Progressing"] == ("False", "UpToDate")
    assert KEY in world.demand.watched
    assert len(world.requests) == 1, "less traffic asks the planner nothing here"
    before = world.cluster.status_writes
    world.see(nothing(1020))
    await world.until_quiet()
    assert world.cluster.status_writes == before


async def test_the_first_request_brings_the_plan_back() -> None:
    world = await asleep()
    world.demand.said = "Waiting"
    await world.step()
    assert world.asked == {"decode": 2, "prefill": 1}
    assert KEY not in world.demand.watched
    await world.until_quiet()
    assert world.ready == ("True", "Serving")
    world.demand.said = "None"
    # Prometheus has not seen the request yet: what is quiet begins anew with the workers.
    world.idle(1020, 1600)
    await world.until_quiet()
    assert world.ready == ("True", "Serving")
    world.tell()
    world.idle(1610, 1700)
    await world.until_quiet()
    assert world.ready == ("True", "ScaledToZero")


async def test_a_restarted_operator_keeps_a_service_at_zero_and_scales_it_up() -> None:
    world = await asleep()
    world.restart()
    await world.until_quiet()
    assert (world.ready, world.asked) == (("True", "ScaledToZero"), {"decode": 0, "prefill": 0})
    world.demand.said = "Waiting"
    await world.until_quiet()
    assert world.ready == ("True", "Serving")


async def test_a_request_that_only_prometheus_shows_scales_up_too() -> None:
    world = await asleep()
    world.see(look(1100, 0.0, refused=0.01, pressure=NOBODY, **SILENT))
    await world.until_quiet()
    assert world.ready == ("True", "Serving")


@pytest.mark.parametrize("reason", ["Stale", "Partial", "NotANumber", "PrometheusUnreachable", "TooFewSamples"])
async def test_what_is_not_seen_never_takes_workers_away(reason: UnavailableReason) -> None:
    world = await idle()
    world.see(*(blind(400.0 + 10 * k, reason) for k in range(200)))
    await world.until_quiet()
    assert world.asked == {"decode": 2, "prefill": 1}
    # One blind look in a quiet time makes it begin anew.
    world.idle(2400, 2980)
    world.see(blind(2985.0, reason))
    world.idle(2990, 3500)
    await world.until_quiet()
    assert world.asked == {"decode": 2, "prefill": 1}
    world.idle(3510, 3600)
    await world.until_quiet()
    assert world.asked == {"decode": 0, "prefill": 0}


@pytest.mark.parametrize(
    "busy", [{"live_rounds": 1}, {"batch": 1}, {"queue": (QueueEntry(0, 100, "weft-1"),)}], ids=str
)
async def test_a_live_round_keeps_all_workers(busy: dict[str, Any]) -> None:
    world = await idle()
    world.heartbeats["demo-w1-1"] = word("demo-w1-1", **busy)
    world.idle(400, 1100)
    await world.until_quiet()
    assert (world.ready, world.planned) == (("True", "Serving"), ("True", "PlanReady"))
    world.tell(sessions=3, kv_tokens=500)
    world.see(nothing(1110))
    await world.until_quiet()
    assert world.ready == ("True", "ScaledToZero"), "sessions between two rounds are recomputed when they go on"


async def test_without_redis_workers_stay_and_status_says_why() -> None:
    world = await idle()
    world.heartbeats = {"demo-w1-2": word("demo-w1-2", "prefill")}
    world.idle(400, 1100)
    await world.until_quiet()
    assert (world.ready, world.planned) == (("True", "Serving"), ("True", "ScaleToZeroBlocked"))
    assert "no heartbeat of demo-w1-0, demo-w1-1 in Redis" in world.message


async def test_without_a_prometheus_status_says_what_is_needed() -> None:
    world = await idle()
    world.see(blind(100.0, "NotConfigured"))
    await world.until_quiet()
    assert world.planned == ("True", "ScaleToZeroBlocked")
    assert "spec.planning.prometheus.url" in world.message


async def test_at_zero_a_redis_that_does_not_answer_is_reported_and_the_workers_stay_away() -> None:
    world = await asleep()
    world.demand.said = "Unknown"
    await world.until_quiet()
    assert (world.ready, world.asked) == (("False", "DemandUnknown"), {"decode": 0, "prefill": 0})
    world.demand.said = "None"
    await world.until_quiet()
    assert world.ready == ("True", "ScaledToZero")


@pytest.mark.parametrize("change", [{"scaleToZero": None}, {"mode": "Manual"}, {"mode": "Advisory"}], ids=str)
async def test_a_spec_that_wants_workers_brings_them_back(change: dict[str, Any]) -> None:
    world = await asleep()
    planning = {**world.cluster.service["spec"]["planning"], **change}
    world.cluster.change(planning={key: value for key, value in planning.items() if value is not None})
    await world.until_quiet()
    assert (world.ready, world.asked) == (("True", "Serving"), {"decode": 2, "prefill": 1})


async def test_a_changed_spec_is_planned_at_zero_and_comes_back_as_the_new_plan() -> None:
    world = await asleep()
    world.offers(4, 0.6)
    world.cluster.change(slo={"ttft": "3s", "itl": "40ms"})
    await world.until_quiet()
    assert world.cluster.service["status"]["planSummary"] == "P1x1 D1x4"
    assert (world.ready, world.asked) == (("True", "ScaledToZero"), {"decode": 0, "prefill": 0})
    world.heartbeats = {}
    world.demand.said = "Waiting"
    await world.until_quiet()
    assert (world.ready, world.asked) == (("True", "Serving"), {"decode": 4, "prefill": 1})


async def test_a_spec_that_cannot_be_planned_does_not_keep_a_service_from_waking() -> None:
    world = await asleep()
    world.answer = Refused("Infeasible", "no layout holds the SLO")
    world.cluster.change(slo={"ttft": "3s", "itl": "40ms"})
    await world.until_quiet()
    assert world.planned == ("False", "Infeasible")
    assert world.ready == ("True", "ScaledToZero")
    world.demand.said = "Waiting"
    await world.until_quiet()
    assert (world.ready, world.asked) == (("True", "Serving"), {"decode": 2, "prefill": 1})


async def test_workers_that_do_not_start_are_waited_for() -> None:
    world = await asleep()
    world.demand.said = "Waiting"
    await world.step()
    world.now = at(100_000)
    await world.step()
    assert world.asked == {"decode": 2, "prefill": 1}, "there is nothing to go back to"


# --- the parts


def test_idle_time_starts_with_the_first_idle_sample_and_ends_with_any_other() -> None:
    def after(*looks: Any) -> Any:
        history = History(3600)
        for one in looks:
            history = history.with_(sample_of(one, attainment=0.9, min_samples=30, burn_rate=1))
        return history.quiet_since

    assert after(nothing(0), nothing(10)) == at(0)
    assert after(nothing(0), nothing(299), nothing(598)) == at(0), "their windows join"
    assert after(nothing(0), nothing(301)) == at(301), "nobody looked at a second between"
    assert after(nothing(0), look(10, 0.01)) is None
    assert after(nothing(0), blind(10.0)) is None
    assert after(nothing(0), look(10, 0.0, refused=0.1, **SILENT, pressure=NOBODY)) is None
    waiting = dataclasses.replace(NOBODY, queue=1.0)
    assert after(nothing(0), look(10, 0.0, **SILENT, pressure=waiting)) is None
    nan = dataclasses.replace(NOBODY, queue=float("nan"))
    assert after(nothing(0), look(10, 0.0, **SILENT, pressure=nan)) is None


def test_a_service_at_zero_scales_up_for_demand_or_for_newer_metrics() -> None:
    record = record_of(plan_for(2, rate=0.6), objective="cost")
    assert not has_demand(record, look(0.0), "Waiting"), "it is awake"
    sleeping = dataclasses.replace(record, baseline=dataclasses.replace(record.baseline, scaled_to_zero_at=at(100)))
    assert has_demand(sleeping, None, "Waiting")
    assert not has_demand(sleeping, None, "None")
    assert not has_demand(sleeping, None, "Unknown")
    assert not has_demand(sleeping, look(99.0), "None"), "older than the sleep"
    assert has_demand(sleeping, look(101.0), "None")
    assert not has_demand(sleeping, nothing(101.0), "None")
    woken = scaled_up(sleeping, at(200)).baseline
    assert (woken.scaled_to_zero_at, woken.changed_at) == (None, at(200))
    assert read_baseline(baseline_json(sleeping.baseline)) == sleeping.baseline


def test_only_a_service_in_auto_that_says_so_may_sleep() -> None:
    for planning, may in (
        ({"objective": "cost", "scaleToZero": {}}, True),
        ({"objective": "cost"}, False),
        ({"objective": "cost", "scaleToZero": {}, "mode": "Off"}, False),
    ):
        record = record_of(plan_for(2, rate=0.6), **planning)
        assert may_scale_to_zero(record.spec) is may
        assert is_idle(record.spec, record, quiet_since=at(0), now=at(1800)) is may
        assert not is_idle(record.spec, record, quiet_since=at(0), now=at(1799))
        assert not is_idle(record.spec, record, quiet_since=None, now=at(1800))


def test_coordinators_hold_requests_and_sidecars_do_not() -> None:
    body = service_with(objective="cost", scaleToZero=REST)
    hold = told(rendering(body), front=True).hold
    assert hold is not None
    assert (hold.seconds, hold.most) == (90.0, 8)
    assert told(rendering(body)).hold is None
    assert told(rendering(), front=True).hold is None
    assert "hold" not in live_config(rendering(body))["data"]["live.json"]
