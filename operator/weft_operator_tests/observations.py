"""Looks at a service that tests make up, and a planner whose plans follow from the rate alone."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from weft_core.plan import Alternative, Plan, PlannedGroup, Prediction, Validity, plan_revision
from weft_core.prediction import Estimate
from weft_operator.api import DisaggInferenceServiceSpec
from weft_operator.metrics.observation import (
    ClassTally,
    Latency,
    MetricsAvailability,
    Observation,
    ObservedSlo,
    ObservedWorkload,
    Spread,
    Tally,
    UnavailableReason,
    WorkerPressure,
)
from weft_operator.planning.planner_process import Planned
from weft_operator.planning.request import planner_request, request_hash
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.plan_baseline import PlanBaseline
from weft_operator_tests.samples import PROFILE_JSON, group
from weft_operator_tests.valid import service, spec

START = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW_S = 300.0
FAST_S = 60.0
SLO = Tally(1000, 0), Tally(200, 0)
EACH = 0.5
"""Sessions per second that one decode worker of the planner below carries within the SLO."""
HEADROOM = 0.2


def at(seconds: float) -> datetime:
    """Return a moment of the tests' day."""
    return START + timedelta(seconds=seconds)


def spread(mean: float, count: int = 500, variation: float = 0.6) -> Spread:
    """Return a figure with a shape of three bins whose mean is near the stated one."""
    edges = (0.0, mean / 2, 3 * mean / 2, 3 * mean)
    return Spread(mean, mean * variation, mean * 0.9, mean * 2.2, count, edges, (1.0, 2.0, 0.5))


def look(seconds: float, rate: float = 0.6, *, sessions: int | None = None, **parts: Any) -> Observation:
    """Return a look that saw the traffic of ``valid.SERVICE``; ``parts`` replace figures or parts of it."""
    figures = {
        "rounds": spread(5.0),
        "first_prompt": spread(1000.0),
        "increment": spread(800.0),
        "decode": spread(280.0),
        "gap_s": spread(2.0),
    }
    known = {key: parts.pop(key) for key in list(parts) if key in figures}
    fast, slow = parts.pop("fast", SLO[1]), parts.pop("slow", SLO[0])
    ttft, itl = parts.pop("ttft", 0.9), parts.pop("itl", 0.02)
    load = ObservedWorkload(
        session_rate=rate,
        round_rate=5 * rate,
        refused_rate=parts.pop("refused", 0.0),
        sessions=round(rate * WINDOW_S) if sessions is None else sessions,
        fast_lengths=parts.pop("fast_lengths", {}),
        **{**figures, **known},
    )
    sessions_ended: Tally = parts.pop("ended", Tally())
    tally = ClassTally("", fast, slow, slow, slow, sessions_ended)
    slo = ObservedSlo(
        percentile=95,
        unit="session" if sessions_ended.total else "round",
        target=0.9,
        attainment=sessions_ended.attained if sessions_ended.total else slow.attained,
        classes=(tally,),
        ttft_first=Latency(ttft, 500),
        ttft_later=Latency(ttft, 500),
        itl=Latency(itl, 5000),
    )
    pressure = parts.pop("pressure", WorkerPressure(queue=0.0, sessions=10.0, kv_use={"decode": 0.1}))
    return Observation(
        at(seconds), WINDOW_S, FAST_S, MetricsAvailability("Fresh", "seen"), load, slo, pressure, **parts
    )


def blind(seconds: float, reason: UnavailableReason = "Stale") -> Observation:
    """Return a look that saw nothing."""
    return Observation(at(seconds), WINDOW_S, FAST_S, MetricsAvailability(reason, f"{reason}: look at Prometheus"))


VALID = Validity(0.6, 0.0, 0.9, 5.0, 1000.0, 800.0, 280.0, 2.0)


def prediction(workers: int, *, rate: float, gpus: int) -> Prediction:
    """Return what so many decode workers should achieve at a rate."""
    carries = workers * EACH
    return Prediction(
        ttft_p95_s=0.9,
        itl_p95_s=0.02,
        ttft_mean_s=0.5,
        itl_mean_s=0.02,
        gpus=gpus,
        slo_met=carries >= rate,
        source="simulation",
        goodput=Estimate(carries, carries * 0.99, carries * 1.01),
    )


def layout(workers: int) -> tuple[PlannedGroup, ...]:
    """Return a layout of so many decode workers of one GPU."""
    return group("decode", 1, workers), group("prefill", 1, 1)


def plan_for(workers: int, *, rate: float, instead_of: int | None = None, objective: Any = "cost") -> Plan:
    """Return the plan of so many decode workers, made for a rate."""
    groups = layout(workers)
    others = () if instead_of in (None, workers) else (instead_of,)
    return Plan(
        groups=groups,
        predicted=prediction(workers, rate=rate, gpus=workers + 1),
        objective=objective,
        inputs_hash="0123456789abcdef",
        revision=plan_revision(groups, profile=PROFILE_JSON, engine_inputs={}),
        reason=f"D1x{workers} does for {rate:g} sessions/s",
        slo_reading="per session",
        alternatives=tuple(
            Alternative(layout(other), prediction(other, rate=rate, gpus=other + 1), 1.0) for other in others
        ),
        validity=replace(
            VALID,
            arrival_rate=rate,
            rate_low=rate / (1 + HEADROOM) if objective == "cost" else 0.0,
            rate_high=max(rate, workers * EACH * 0.99),
        ),
    )


def solve_rate(rate: float, *, now: int, least: int = 1, most: int = 15) -> Planned:
    """Return the cheapest plan that carries a rate with headroom, within bounds."""
    needed = max(least, min(most, math.ceil(rate * (1 + HEADROOM) / EACH)))
    return Planned(plan=plan_for(needed, rate=rate, instead_of=now), profile=FLAT)


FLAT = {
    **PROFILE_JSON,
    "degrees": [{**PROFILE_JSON["degrees"][0], "degree": 1, "kvCapacityTokens": 100_000}],
}
"""A profile of workers with one GPU."""


def service_with(**planning: Any) -> dict[str, Any]:
    """Return the manifest of a service with settings of its planning."""
    body = service()
    body["spec"]["planning"] = planning
    return body


def record_of(plan: Plan, *, changed: float | None = None, **planning: Any) -> PlanRecord:
    """Return an active plan since a moment of the tests' day."""
    parsed: DisaggInferenceServiceSpec = spec(service_with(**planning))
    return PlanRecord(
        spec=parsed,
        plan=plan,
        profile=FLAT,
        request_hash=request_hash(planner_request(parsed)),
        baseline=PlanBaseline(changed_at=None if changed is None else at(changed)),
    )
