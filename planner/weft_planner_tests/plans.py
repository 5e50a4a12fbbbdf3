"""Plans that tests of tables, reports and differences share."""

from dataclasses import replace

from weft_core.layouts import PlannedGroup, PlannedPolicy
from weft_core.plan import Alternative, Plan
from weft_core.prediction import Estimate, GroupUse, LatencyQuantiles, Limit, Prediction
from weft_core.shortfall import Remedy, Shortfall

WEFT = PlannedPolicy("weft", "ia", "moore-hodgson", "kv-headroom", chunked=False)


def prefill(degree: int, replicas: int, pool: str = "h20") -> PlannedGroup:
    return PlannedGroup("prefill", degree, replicas, pool)


def decode(degree: int, replicas: int, pool: str = "h20") -> PlannedGroup:
    return PlannedGroup("decode", degree, replicas, pool)


def both(degree: int, replicas: int, pool: str = "h20") -> PlannedGroup:
    return PlannedGroup("both", degree, replicas, pool)


def predicted(gpus: int = 16, *, held: bool = True, goodput: float | None = 1.3, ttft: float = 1.1) -> Prediction:
    """Return a prediction of a simulation."""
    return Prediction(
        ttft_p95_s=ttft,
        itl_p95_s=0.0172,
        ttft_mean_s=0.5,
        itl_mean_s=0.0168,
        gpus=gpus,
        slo_met=held,
        source="simulation",
        ttft=LatencyQuantiles(0.4, ttft),
        ttft_first=LatencyQuantiles(0.5, 1.2),
        ttft_later=LatencyQuantiles(0.3, 0.9),
        itl=LatencyQuantiles(0.0165, 0.0172),
        attainment=Estimate(0.97, 0.95, 1.02),
        reading="per session",
        goodput=None if goodput is None else Estimate(goodput, goodput - 0.1, goodput + 0.1),
        use=(GroupUse("prefill", 4, "h20", 0.6, 0.2), GroupUse("decode", 8, "h20", 0.24, 0.5)),
        kv_headroom=0.5,
        cost_per_hour=3.0 * gpus,
        cost_per_million_tokens=1.25,
        limits=(Limit("compute", 0.6, "prefill"), Limit("itl", 0.34)),
    )


PLAN = Plan(
    groups=(prefill(4, 2), decode(8, 1)),
    predicted=predicted(),
    objective="latency",
    inputs_hash="9f" * 8,
    revision="bf4ab90c6d",
    reason="P4x2 D8x1 holds the SLO at the highest load.",
    slo_reading="Attainment is counted per session.",
    alternatives=(
        Alternative((prefill(8, 1), decode(8, 1)), predicted(goodput=1.25), 0.4, policy=WEFT),
        Alternative((decode(8, 2),), predicted(goodput=0.8, ttft=2.0), 0.5, layout="colocated", runnable=False),
        Alternative((prefill(4, 1), decode(4, 1)), predicted(8, held=False, goodput=0.5), 2.0, note="too small by far"),
    ),
    policy=WEFT,
    notes=("only means are given",),
)
MISSED = replace(
    PLAN,
    predicted=predicted(held=False, goodput=0.3),
    shortfall=Shortfall(
        binding="gpus",
        message="16 GPUs do not hold the SLO",
        nearest_ttft_s=9.0,
        nearest_itl_s=0.06,
        least_gpus=24,
        remedies=(Remedy("capacity.gpus", 24), Remedy("budgetPerHour", None)),
    ),
)
