"""What a report is about: the plan, and what simulations around it found."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft_core.plan import Plan
from weft_core.prediction import Estimate
from weft_planner.request.reading import Request


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """How the chosen layout does at a rate of sessions per second; latencies are P95s in seconds."""

    rate: float
    ttft_first: Estimate
    ttft_later: Estimate
    itl: Estimate
    attainment: Estimate


@dataclass(frozen=True, slots=True)
class LayoutScore:
    """A layout that was considered: sessions per second within the SLO, what it takes, and how fast it is.

    ``drawn``: of several policies on one layout only the one that would run is in the pictures.
    """

    name: str
    policy: str
    chosen: bool
    runnable: bool
    drawn: bool
    gpus: int
    cost_per_hour: float | None
    goodput: Estimate | None
    ttft_s: float
    itl_s: float
    held: bool


@dataclass(frozen=True, slots=True)
class ReportTimeline:
    """Queued prefills and decoding sequences of all workers, and the fullest worker's KV share, over time."""

    at: Sequence[float]
    queued: Sequence[float]
    batch: Sequence[float]
    kv: Sequence[float]


@dataclass(frozen=True, slots=True)
class SensitivityCell:
    """The best layout at one rate and speed of the GPUs, and the share of sessions within the SLO there."""

    layout: str
    attainment: float
    chosen_attainment: float


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The choice among the considered layouts when rate or efficiency are not as thought; factors of the planned."""

    rates: Sequence[float]
    speeds: Sequence[float]
    cells: Sequence[Sequence[SensitivityCell]]
    """One row for each speed."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything on the page; parts that were not made are None."""

    service: str
    request: Request
    plan: Plan
    version: str
    load: Sequence[LoadPoint] = ()
    layouts: Sequence[LayoutScore] = ()
    timeline: ReportTimeline | None = None
    sensitivity: Sensitivity | None = None
    method: Sequence[str] = field(default_factory=tuple)
    """How the figures were made, one sentence each."""
    interrupted: bool = False
