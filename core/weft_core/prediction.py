"""What a layout should achieve: latencies, attainment, goodput, use of its workers, cost, and what limits it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from weft_core.json_fields import Json, at, finite_or_none
from weft_core.layouts import WORKER_ROLES, WorkerRole
from weft_core.parallelism import Degree, degree_to_json
from weft_core.plan_fields import FIELDS, PlanError

LimitKind = Literal["compute", "kv", "link", "ttft", "itl"]
LIMITS: tuple[LimitKind, ...] = ("compute", "kv", "link", "ttft", "itl")
PredictionSource = Literal["phases", "simulation"]
SOURCES: tuple[PredictionSource, ...] = ("phases", "simulation")


@dataclass(frozen=True, slots=True)
class LatencyQuantiles:
    """Median and P95 of a latency in seconds; infinite where nothing useful is served."""

    p50_s: float
    p95_s: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its 95 % interval over seeds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class GroupUse:
    """How busy the workers of one group are (mean share of time) and the fullest worker's KV cache (peak share)."""

    role: WorkerRole
    degree: Degree
    pool: str
    utilisation: float
    kv_peak: float


UNBOUNDED: Final = 1e6
"""Stands for a latency without bound, as a share of its threshold: JSON knows no infinity."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Something that a layout runs into, and how much of it is used: 1 is all of it.

    ``compute`` and ``kv`` are of the workers of ``role``, ``link`` is KV transfers, ``ttft`` and ``itl`` the SLO's
    thresholds.
    """

    kind: LimitKind
    share: float
    """At most UNBOUNDED."""
    role: WorkerRole | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a layout should give at the workload; latencies in seconds, infinite where the load exceeds the capacity.

    ``ttft_p95_s`` and ``itl_p95_s`` hold the SLO's percentile when it is not 95; ITL is of each round's mean gap.
    ``attainment`` is counted under the reading ``reading``, ``readings`` holds it under every reading. ``goodput`` is
    the sessions per second up to which the SLO holds. Cost is money per hour of all GPUs, and per million new prompt
    and answer tokens, None without prices. ``source`` tells a simulation with the policy from two phases alone.
    """

    ttft_p95_s: float
    itl_p95_s: float
    ttft_mean_s: float
    itl_mean_s: float
    gpus: int
    slo_met: bool
    source: PredictionSource = "phases"
    ttft: LatencyQuantiles | None = None
    ttft_first: LatencyQuantiles | None = None
    ttft_later: LatencyQuantiles | None = None
    itl: LatencyQuantiles | None = None
    attainment: Estimate | None = None
    reading: str = ""
    readings: Mapping[str, float] = field(default_factory=dict)
    goodput: Estimate | None = None
    use: tuple[GroupUse, ...] = ()
    kv_headroom: float | None = None
    local_share: float | None = None
    cost_per_hour: float | None = None
    cost_per_million_tokens: float | None = None
    limits: tuple[Limit, ...] = ()


def prediction_to_json(predicted: Prediction) -> dict[str, object]:
    """Return the JSON-ready form: infinite latencies become null, what is not known is left out."""
    known: dict[str, object] = {
        "ttft": _quantiles_to_json(predicted.ttft),
        "ttftFirst": _quantiles_to_json(predicted.ttft_first),
        "ttftLater": _quantiles_to_json(predicted.ttft_later),
        "itl": _quantiles_to_json(predicted.itl),
        "attainment": _estimate_to_json(predicted.attainment),
        "reading": predicted.reading or None,
        "readings": dict(predicted.readings) or None,
        "goodput": _estimate_to_json(predicted.goodput),
        "use": [
            {
                "role": u.role,
                "degree": degree_to_json(u.degree),
                "pool": u.pool,
                "utilisation": u.utilisation,
                "kvPeak": u.kv_peak,
            }
            for u in predicted.use
        ]
        or None,
        "kvHeadroom": predicted.kv_headroom,
        "localShare": predicted.local_share,
        "costPerHour": predicted.cost_per_hour,
        "costPerMillionTokens": predicted.cost_per_million_tokens,
        "limits": [
            {"kind": limit.kind, "share": limit.share} | ({"role": limit.role} if limit.role else {})
            for limit in predicted.limits
        ]
        or None,
    }
    return {
        "ttftP95": finite_or_none(predicted.ttft_p95_s),
        "itlP95": finite_or_none(predicted.itl_p95_s),
        "ttftMean": finite_or_none(predicted.ttft_mean_s),
        "itlMean": finite_or_none(predicted.itl_mean_s),
        "sloMet": predicted.slo_met,
        "source": predicted.source,
        **{key: value for key, value in known.items() if value is not None},
    }


def prediction_from_json(body: Json, *, gpus: int, where: str = "") -> Prediction:
    """Read the ``predicted`` part of a plan or alternative at ``where``; absent parts are None.

    Raises:
        PlanError: a field is missing or of the wrong type.
    """
    here = at(where, "predicted")
    row = body.get("predicted")
    if not isinstance(row, Mapping):
        raise PlanError(f"{here}: must be an object")
    return Prediction(
        ttft_p95_s=FIELDS.seconds(row, "ttftP95", here),
        itl_p95_s=FIELDS.seconds(row, "itlP95", here),
        ttft_mean_s=FIELDS.seconds(row, "ttftMean", here),
        itl_mean_s=FIELDS.seconds(row, "itlMean", here),
        gpus=gpus,
        slo_met=FIELDS.flag(row, "sloMet", here),
        source=cast(PredictionSource, FIELDS.choice({"source": "phases", **row}, "source", SOURCES, here)),
        ttft=_quantiles(row, "ttft", here),
        ttft_first=_quantiles(row, "ttftFirst", here),
        ttft_later=_quantiles(row, "ttftLater", here),
        itl=_quantiles(row, "itl", here),
        attainment=_estimate(row, "attainment", here),
        reading=str(row.get("reading") or ""),
        readings=_readings(row, here),
        goodput=_estimate(row, "goodput", here),
        use=tuple(_use(u, f"{here}.use[{i}]") for i, u in enumerate(FIELDS.rows(row.get("use", []), f"{here}.use"))),
        kv_headroom=FIELDS.figure(row, "kvHeadroom", here),
        local_share=FIELDS.figure(row, "localShare", here),
        cost_per_hour=FIELDS.figure(row, "costPerHour", here),
        cost_per_million_tokens=FIELDS.figure(row, "costPerMillionTokens", here),
        limits=tuple(
            _limit(limit, f"{here}.limits[{i}]")
            for i, limit in enumerate(FIELDS.rows(row.get("limits", []), f"{here}.limits"))
        ),
    )


def _quantiles_to_json(quantiles: LatencyQuantiles | None) -> dict[str, object] | None:
    if quantiles is None:
        return None
    return {"p50": finite_or_none(quantiles.p50_s), "p95": finite_or_none(quantiles.p95_s)}


def _quantiles(row: Json, key: str, where: str) -> LatencyQuantiles | None:
    found = FIELDS.part(row, key, where)
    if found is None:
        return None
    here = at(where, key)
    return LatencyQuantiles(p50_s=FIELDS.seconds(found, "p50", here), p95_s=FIELDS.seconds(found, "p95", here))


def _estimate_to_json(estimate: Estimate | None) -> dict[str, object] | None:
    return None if estimate is None else {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def _estimate(row: Json, key: str, where: str) -> Estimate | None:
    found = FIELDS.part(row, key, where)
    if found is None:
        return None
    here = at(where, key)
    return Estimate(*(FIELDS.required(found, name, here) for name in ("value", "low", "high")))


def _readings(row: Json, where: str) -> dict[str, float]:
    found = FIELDS.part(row, "readings", where) or {}
    return {name: FIELDS.required(found, name, at(where, "readings")) for name in found}


def _use(row: Json, where: str) -> GroupUse:
    return GroupUse(
        role=cast(WorkerRole, FIELDS.choice(row, "role", WORKER_ROLES, where)),
        degree=FIELDS.degree(row, "degree", where),
        pool=FIELDS.text(row, "pool", where),
        utilisation=FIELDS.required(row, "utilisation", where),
        kv_peak=FIELDS.required(row, "kvPeak", where),
    )


def _limit(row: Json, where: str) -> Limit:
    role = None if row.get("role") is None else cast(WorkerRole, FIELDS.choice(row, "role", WORKER_ROLES, where))
    return Limit(
        kind=cast(LimitKind, FIELDS.choice(row, "kind", LIMITS, where)),
        share=FIELDS.required(row, "share", where),
        role=role,
    )
