"""What was found: one comparison for each cell, SLO and workload, as JSON keeps it."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Contender:
    """A configuration on all GPUs of a cell, and what each model says of it.

    ``tokens_per_s_gpu``: output tokens per second and GPU by aiconfigurator's model (NaN: it misses the SLO or does not
    fit there). ``goodput``: sessions per second and GPU that meet the SLO by Weft's simulation, under ``policy``;
    ``rerouted``: the same under the best of Weft's own policies. ``simulated``: the layout of both, where the first one
    does not fit by Weft's estimate of memory, or has no usable fit.
    """

    layout: str
    gpus: int
    policy: str
    tokens_per_s_gpu: float = math.nan
    goodput: float = math.nan
    rerouted: float = math.nan
    simulated: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both planners' answers for a cell, an SLO and a workload; seconds and processor seconds that each took.

    ``rate``: sessions per second that Weft was asked to plan for. ``matched``: Weft's rate matching of single rounds.
    """

    cell: str
    slo: str
    workload: str
    rate: float
    weft: Contender
    disaggregated: Contender | None
    aggregated: Contender | None
    weft_s: float
    weft_cpu_s: float
    peer_s: float
    matched: Contender | None = None

    @property
    def planning_s(self) -> float:
        """Return the seconds of Weft's plan: the lesser of both, since on a busy machine it waits for a core."""
        return min(self.weft_s, self.weft_cpu_s)

    @property
    def peers(self) -> list[Contender]:
        """Return aiconfigurator's configurations."""
        return [one for one in (self.disaggregated, self.aggregated) if one is not None]

    def ratio(self, figure: str) -> float:
        """Return Weft's figure over the better of aiconfigurator's; NaN: one is unknown, or none is above 0."""
        return self._over_peers(getattr(self.weft, figure), figure)

    @property
    def matched_ratio(self) -> float:
        """Return the same of rate matching by aiconfigurator's model; NaN: not measured."""
        if self.matched is None:
            return math.nan
        return self._over_peers(self.matched.tokens_per_s_gpu, "tokens_per_s_gpu")

    def _over_peers(self, mine: float, figure: str) -> float:
        theirs: list[float] = [getattr(one, figure) for one in self.peers]
        if not theirs or any(map(math.isnan, theirs)) or max(theirs) <= 0:
            return math.nan
        return 0.0 if math.isnan(mine) else mine / max(theirs)


@dataclass
class Record:
    """A run: comparisons, and cells and SLOs without one with the reason, by name."""

    comparisons: list[Comparison] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    how: str = ""
    machine: str = ""

    def has(self, cell: str, slo: str) -> bool:
        """Return whether a cell was done for an SLO."""
        return f"{cell}, {slo}" in self.left_out or any((one.cell, one.slo) == (cell, slo) for one in self.comparisons)

    def of(self, workload: str) -> list[Comparison]:
        """Return the comparisons of a workload."""
        return [one for one in self.comparisons if one.workload == workload]


def geometric_mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean of what is known; NaN of nothing, 0 where one is 0."""
    known = [ratio for ratio in ratios if not math.isnan(ratio)]
    if not known:
        return math.nan
    return math.exp(math.fsum(map(math.log, known)) / len(known)) if min(known) > 0 else 0.0


def save(record: Record, path: Path) -> None:
    """Write a record."""
    path.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> Record:
    """Read a record that ``save`` wrote."""
    body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for one in body["comparisons"]:
        for role in ("weft", "disaggregated", "aggregated", "matched"):
            one[role] = None if one.get(role) is None else Contender(**one[role])
    body["comparisons"] = [Comparison(**one) for one in body["comparisons"]]
    return Record(**body)
