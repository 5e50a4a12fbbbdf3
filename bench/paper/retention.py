"""Goodput by how engines keep the KV of idle sessions: vLLM's eviction, Continuum's time to live, Weft's layouts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench.paper.cells import GPUS_PER_NODE, SETTINGS, Cell, Length
from bench.paper.choosing import weft
from bench.paper.goodputs import MEAN, Bench, Carried
from bench.paper.published import BEST_LAYOUTS
from bench.paper.uplift import FIRST_GUESS

from weft_core.parallelism import gpus_of
from weft_core.policies.retention import Retention
from weft_planner.simulation import Layout, PolicyChoice, layout_of

KV_SHARES = (1.0, 0.03, 0.02)
"""Shares of the KV memory that the GPUs have: with less, idle sessions are evicted."""
COLOCATED = PolicyChoice(route="colocated", mode="", order="fcfs")
CONTENDERS: Mapping[str, tuple[bool, Retention]] = {
    "vLLM": (False, "lru"),
    "Continuum": (False, "ttl"),
    "weft": (True, "lru"),
    "weft, ttl": (True, "ttl"),
}
"""By name: whether it has AMPD's layout and Weft's rule (else one engine does both), and how it keeps KV."""


@dataclass(frozen=True, slots=True)
class RetentionRow:
    """One cell with a share of its KV memory: what each contender carries, None where it holds the goal at no rate."""

    cell: str
    kv_share: float
    carried: Mapping[str, Carried | None]

    def ratio(self, contender: str, base: str) -> float:
        """Return a contender's goodput over another's; NaN where neither holds the goal."""
        mine, theirs = self.rate(contender), self.rate(base)
        if theirs > 0:
            return mine / theirs
        return float("inf" if mine > 0 else "nan")

    def rate(self, contender: str) -> float:
        """Return sessions per second, 0 where the goal is held nowhere."""
        found = self.carried[contender]
        return 0.0 if found is None else found.rate


def colocated(cell: Cell) -> Layout:
    """Return all of a cell's GPUs as workers that prefill for their own sessions, of the published decode degree."""
    degree = max(BEST_LAYOUTS[cell.model, cell.trace][1], key=gpus_of)
    return layout_of("colocated", decode={degree: cell.gpus // gpus_of(degree)}, gpus_per_node=GPUS_PER_NODE)


def rows(cell: Cell, length: Length) -> list[RetentionRow]:
    """Search each contender's goodput in the first setting, by the sessions' mean ITL."""
    found = []
    for share in KV_SHARES:
        carried: dict[str, Carried | None] = {}
        guess = FIRST_GUESS
        for name, (disaggregated, retention) in CONTENDERS.items():
            bench = Bench(cell, replace(SETTINGS[0], kv_share=share, retention=retention), length)
            layout, policy = (cell.layout, weft("imd", MEAN)) if disaggregated else (colocated(cell), COLOCATED)
            carried[name] = one = bench.goodput(layout, policy, MEAN, guess=guess)
            guess = one.rate if one is not None else guess
        found.append(RetentionRow(str(cell), share, carried))
    return found
