"""Hours with bounds of their own: which are active, when that changes, and what passes make of it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_operator.api.scaling import DAYS, Schedule
from weft_operator.api.status import Status
from weft_operator.metrics.observation import WorkerPressure
from weft_operator.scaling.schedules import bounded, in_force, next_edge, unknown_zone, wants_workers
from weft_operator_tests.observations import blind, look, service_with
from weft_operator_tests.samples import KEY
from weft_operator_tests.test_reconcile_replanning import Watched
from weft_operator_tests.test_scale_to_zero import nothing, word
from weft_operator_tests.valid import spec
from weft_operator_tests.world import summary

BERLIN = "Europe/Berlin"
WORKDAYS = ["Mon", "Tue", "Wed", "Thu", "Fri"]


def hours(begin: str, end: str, days: list[str] | None = None, name: str = "office", **parts: Any) -> Schedule:
    body = {"name": name, "days": days or list(DAYS), "begin": begin, "end": end, "decode": {"min": 4}, **parts}
    return Schedule.model_validate(body)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def name_at(schedules: list[Schedule], text: str) -> str:
    found = in_force(schedules, utc(text))
    return "" if found is None else found.name


def test_hours_hold_from_begin_until_just_before_end_in_their_time_zone() -> None:
    office = [hours("08:00", "18:00", WORKDAYS, timeZone=BERLIN)]
    # 2026-01-05 is a Monday; Berlin is an hour ahead.
    for text, name in (
        ("2026-01-05 06:59:59", ""),
        ("2026-01-05 07:00", "office"),
        ("2026-01-05 16:59:59", "office"),
        ("2026-01-05 17:00", ""),
        ("2026-01-10 09:00", ""),
    ):
        assert name_at(office, text) == name, text
    assert next_edge(office, utc("2026-01-05 06:00")) == utc("2026-01-05 07:00")
    assert next_edge(office, utc("2026-01-05 07:00")) == utc("2026-01-05 17:00")
    assert next_edge(office, utc("2026-01-09 17:00")) == utc("2026-01-12 07:00"), "over the week-end"


def test_hours_that_end_no_later_than_they_begin_go_on_until_the_next_day() -> None:
    night = [hours("22:00", "06:00", ["Fri"])]
    for text, name in (("2026-01-09 22:00", "office"), ("2026-01-10 05:59", "office"), ("2026-01-10 06:00", "")):
        assert name_at(night, text) == name
    assert name_at(night, "2026-01-09 05:00") == "", "that night began on a Thursday"
    whole = [hours("00:00", "00:00", ["Sun"])]
    assert (name_at(whole, "2026-01-11 23:59"), name_at(whole, "2026-01-12 00:00")) == ("office", "")


def test_what_always_holds_has_no_edge() -> None:
    assert next_edge([hours("00:00", "00:00")], utc("2026-01-05 12:00")) is None
    assert next_edge([], utc("2026-01-05 12:00")) is None


def test_the_first_of_two_that_hold_is_in_force() -> None:
    both = [hours("12:00", "13:00", name="lunch"), hours("08:00", "18:00")]
    names = [name_at(both, f"2026-01-05 {hour}:30") for hour in ("08", "12", "13", "18")]
    assert names == ["office", "lunch", "office", ""]
    edges = [utc("2026-01-05 07:00")]
    for _ in range(4):
        edge = next_edge(both, edges[-1])
        assert edge is not None
        edges.append(edge)
    assert [edge.hour for edge in edges] == [7, 8, 12, 13, 18]


def test_daylight_saving_moves_the_hours_with_the_clocks() -> None:
    office = [hours("08:00", "18:00", timeZone=BERLIN)]
    # Clocks go forward on 2026-03-29 at 01:00 UTC, and back on 2026-10-25.
    assert next_edge(office, utc("2026-03-28 17:00")) == utc("2026-03-29 06:00")
    assert next_edge(office, utc("2026-10-24 16:00")) == utc("2026-10-25 07:00")
    gap = [hours("02:30", "04:00", timeZone=BERLIN)]
    assert next_edge(gap, utc("2026-03-29 00:00")) == utc("2026-03-29 01:30"), "02:30 is not there: 03:30 it is"
    twice = [hours("02:30", "04:00", timeZone=BERLIN)]
    assert next_edge(twice, utc("2026-10-24 23:00")) == utc("2026-10-25 00:30"), "the first 02:30"


CLOCKS = st.builds("{:02d}:{:02d}".format, st.integers(0, 23), st.sampled_from([0, 15, 30, 59]))
ANY = st.lists(
    st.builds(
        hours,
        CLOCKS,
        CLOCKS,
        st.lists(st.sampled_from(DAYS), min_size=1, max_size=7, unique=True),
        timeZone=st.sampled_from(["UTC", BERLIN, "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]),
        name=st.sampled_from(["a", "b", "c"]),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60, deadline=None)
@given(ANY, st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31)), st.floats(0.001, 0.999))  # noqa: DTZ001
def test_nothing_changes_before_the_next_edge_and_something_does_at_it(
    schedules: list[Schedule], naive: datetime, share: float
) -> None:
    now = naive.replace(tzinfo=UTC)
    edge = next_edge(schedules, now)
    until = edge or now + timedelta(days=7)
    assert until > now
    assert in_force(schedules, now + share * (until - now)) == in_force(schedules, now)
    assert in_force(schedules, until - timedelta(microseconds=1)) == in_force(schedules, now)
    if edge is not None:
        assert in_force(schedules, edge) != in_force(schedules, now)


def test_a_schedule_takes_the_place_of_bounds_and_budget_alone() -> None:
    own = spec(service_with(objective="cost", prefill={"min": 2}))
    assert bounded(own, None) is own
    within = bounded(own, hours("08:00", "18:00", gpus=8))
    assert (within.planning.prefill.min, within.planning.decode.min, within.capacity.gpus) == (2, 4, 8)
    assert within.model_copy(update={"planning": own.planning, "capacity": own.capacity}) == own
    assert wants_workers(hours("08:00", "18:00"))
    assert not wants_workers(hours("08:00", "18:00", decode=None, gpus=8))
    assert not wants_workers(None)


def test_a_time_zone_that_nobody_knows_is_named() -> None:
    assert unknown_zone([hours("08:00", "18:00", timeZone=BERLIN)]) == ""
    assert "spec.planning.schedules[office].timeZone: Mars/Olympus" in unknown_zone(
        [hours("08:00", "18:00", timeZone="Mars/Olympus")]
    )


# --- passes; the tests' day, 2026-01-01, is a Thursday

DAY = {"name": "day", "days": ["Thu"], "begin": "01:00", "end": "02:00", "decode": {"min": 4, "max": 8}}
HOUR = 3600.0


async def scheduled(**planning: Any) -> Watched:
    world = Watched(schedules=[DAY], drift={"shrinkAfter": "24h"}, **planning)
    world.see(look(0.0))
    await world.until_quiet()
    assert world.cluster.service["status"]["planSummary"] == "P1x1 D1x2"
    return world


def in_status(world: Watched) -> dict[str, str]:
    Status.model_validate(world.cluster.service["status"])
    found: dict[str, str] = world.cluster.service["status"]["schedule"]
    return found


async def test_a_schedule_is_asked_for_when_it_begins_and_no_more_when_it_ends() -> None:
    world = await scheduled()
    assert in_status(world) == {"until": "2026-01-01T01:00:00Z"}
    assert world.requests[0]["bounds"]["decode"] == {"min": 1}
    outcome = await world.reconciler.reconcile(KEY)
    assert outcome.requeue_after == HOUR, "the service is looked at just then"
    world.offers(4, 0.6)
    world.see(look(HOUR - 1))
    await world.until_quiet()
    assert len(world.requests) == 1
    world.see(look(HOUR))
    await world.until_quiet()
    assert world.requests[1]["bounds"]["decode"] == {"min": 4, "max": 8}
    assert world.decode_workers() == ["demo-w1-0", "demo-w1-1", "demo-w1-3", "demo-w1-4"]
    assert world.planned == ("True", "PlanReady"), "it is no drift"
    assert in_status(world) == {"name": "day", "until": "2026-01-01T02:00:00Z"}
    assert world.cluster.service["status"]["plan"]["madeFrom"] == "spec.workload"
    assert (await world.reconciler.reconcile(KEY)).requeue_after == HOUR
    world.offers(2, 0.6, instead_of=4)
    world.see(look(2 * HOUR))
    await world.until_quiet()
    assert world.decode_workers() == ["demo-w1-0", "demo-w1-1"]
    assert in_status(world) == {"until": "2026-01-08T01:00:00Z"}
    assert len(world.requests) == 3


async def test_current_load_may_defer_a_smaller_plan_and_drift_is_still_detected() -> None:
    world = await scheduled()
    world.offers(4, 0.6)
    world.see(look(HOUR))
    await world.until_quiet()
    world.offers(1, 0.1, instead_of=4)
    for seen, reason, words in (
        (look(2 * HOUR, 0.6), "ScheduleDeferred", "it holds the SLO up to 0.495 sessions/s, and 0.6 arrive"),
        (
            blind(2 * HOUR + 130, "Stale"),
            "MetricsUnavailable",
            "the plan is kept while its metrics are missing (Stale)",
        ),
        (blind(2 * HOUR + 190, "WaitingForMetrics"), "ScheduleDeferred", "metrics are missing"),
        (
            look(2 * HOUR + 260, 0.1, pressure=WorkerPressure(queue=0.0, kv_use={"decode": 0.8})),
            "ScheduleDeferred",
            "too few for the live sessions",
        ),
    ):
        world.see(seen)
        await world.until_quiet()
        assert world.planned == ("True", reason)
        assert words in world.message
        assert len(world.decode_workers()) == 4
    # Much more arrives than even the present plan holds: it grows, within the bounds of the hour.
    world.offers(9, 3.6, instead_of=4)
    world.serves(2 * HOUR + 270, 2 * HOUR + 1200, 3.6)
    await world.until_quiet()
    assert len(world.decode_workers()) == 9
    asked = world.requests[-1]
    assert (asked["workload"]["arrivalRate"], asked["bounds"]["decode"]) == (3.6, {"min": 1})


async def test_a_smaller_plan_that_waited_comes_when_nothing_speaks_against_it_any_more() -> None:
    world = await scheduled()
    world.offers(4, 0.6)
    world.see(look(HOUR))
    await world.until_quiet()
    world.offers(1, 0.3, instead_of=4)
    world.see(look(2 * HOUR, 0.6))
    await world.until_quiet()
    assert world.planned == ("True", "ScheduleDeferred")
    assert (await world.reconciler.reconcile(KEY)).requeue_after == 120.0
    world.see(look(2 * HOUR + 120, 0.3))
    await world.until_quiet()
    assert (world.planned, len(world.decode_workers())) == (("True", "PlanReady"), 1)


async def test_without_a_prometheus_the_clock_alone_decides() -> None:
    world = Watched(schedules=[DAY])
    world.offers(2, 0.6)
    await world.until_quiet()
    for hour, workers in ((1, 4), (2, 2)):
        world.offers(workers, 0.6)
        world.now = world.start + timedelta(hours=hour)
        await world.until_quiet()
        assert len(world.decode_workers()) == workers


@pytest.mark.parametrize("mode", ["Manual", "Advisory"])
async def test_where_a_person_decides_other_hours_are_proposed(mode: str) -> None:
    world = await scheduled(mode=mode)
    world.offers(4, 0.6)
    world.see(look(HOUR))
    await world.until_quiet()
    assert world.decode_workers() == ["demo-w1-0", "demo-w1-1"]
    assert world.cluster.service["status"]["proposedPlan"]["summary"] == "P1x1 D1x4"
    world.see(look(2 * HOUR))
    await world.until_quiet()
    assert world.planned == ("True", "PlanReady")
    assert "proposedPlan" not in world.cluster.service["status"], "the hour is over"


async def test_a_schedule_with_bounds_brings_a_service_back_from_zero_and_keeps_it() -> None:
    world = await scheduled(scaleToZero={"after": "10m"})
    world.heartbeats = {name: word(name, role) for name, role in world.cluster.roles().items()}
    world.see(*(nothing(400.0 + 10 * k) for k in range(62)))
    await world.until_quiet()
    assert summary(world)["Ready"] == ("True", "ScaledToZero")
    world.heartbeats = {}
    world.offers(4, 0.6)
    world.see(nothing(HOUR))
    await world.until_quiet()
    assert (summary(world)["Ready"], len(world.decode_workers())) == (("True", "Serving"), 4)
    world.heartbeats = {name: word(name, role) for name, role in world.cluster.roles().items()}
    world.see(*(nothing(HOUR + 10.0 * k) for k in range(1, 100)))
    await world.until_quiet()
    assert summary(world)["Ready"] == ("True", "Serving")


async def test_a_wrong_time_zone_changes_nothing_that_runs() -> None:
    world = await scheduled()
    world.cluster.change(planning={"objective": "cost", "schedules": [{**DAY, "timeZone": "Mars/Olympus"}]})
    await world.until_quiet()
    assert world.planned == ("False", "InvalidSpec")
    assert "Mars/Olympus is not in the time zone database" in world.message
    assert summary(world)["Ready"] == ("True", "Serving")


def test_a_service_without_schedules_asks_what_it_asked_before() -> None:
    plain = spec(service_with(objective="cost"))
    assert bounded(plain, in_force(plain.planning.schedules, utc("2026-01-05 12:00"))) is plain
