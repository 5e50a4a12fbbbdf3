"""Hold what was measured to the aims: no regret in any cell, and how far ahead of peers and of AMPD's rule. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bench.live.contenders import AMPD, DEFAULT, PEERS
from bench.live.record import Record
from bench.live.search import Goodput, Ratio, geometric_mean, goodput_of, ratio

NO_REGRET, PEER_AIM, AMPD_AIM = 0.95, 1.25, 2.0
"""Of the best contender in every cell; of the best peer, and of AMPD's rule, as geometric means over the cells."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """One cell: each contender's goodput, best first, and the default's as a multiple of others'.

    ``best`` and ``peer`` are the best contender beside the default and the best peer; None where there is none.
    """

    cell: str
    goodputs: Mapping[str, Goodput]
    best: str | None
    peer: str | None
    of_best: Ratio | None
    of_peer: Ratio | None
    of_ampd: Ratio | None


@dataclass(frozen=True, slots=True)
class Aim:
    """One aim, what came of it, and whether it is met; what was not measured is not met."""

    words: str
    wanted: float
    found: float
    note: str = ""

    @property
    def met(self) -> bool:
        """Tell whether the figure is there and high enough."""
        return self.found >= self.wanted


def result_of(record: Record, cell: str) -> CellResult:
    """Return what a cell shows."""
    found = {one: goodput_of(record.shares(cell, one)) for one in record.contenders(cell)}
    ranked = dict(sorted(found.items(), key=lambda item: (item[1].bound == "<", -item[1].rate)))
    default = found.get(DEFAULT)

    def first(names: list[str]) -> str | None:
        return next(iter(names), None)

    def over(name: str | None) -> Ratio | None:
        return None if default is None or name is None or name not in found else ratio(default, found[name])

    best = first([one for one in ranked if one != DEFAULT])
    peer = first([one for one in ranked if one in PEERS])
    return CellResult(cell, ranked, best, peer, over(best), over(peer), over(AMPD))


def aims_of(results: list[CellResult]) -> list[Aim]:
    """Return the aims; cells where a contender cannot run do not count for its aim."""
    regrets = {one.cell: one.of_best.value if one.of_best is not None else math.nan for one in results}
    worst = min(regrets, key=lambda cell: math.inf if math.isnan(regrets[cell]) else regrets[cell], default="")
    unknown = any(math.isnan(value) for value in regrets.values())
    peers = [one.of_peer.value for one in results if one.of_peer is not None]
    ampd = [one.of_ampd.value for one in results if one.of_ampd is not None]
    return [
        Aim(
            "default / best other contender, least over the cells",
            NO_REGRET,
            math.nan if unknown or not regrets else regrets[worst],
            worst,
        ),
        Aim("default / best peer, geometric mean", PEER_AIM, geometric_mean(peers), f"{len(peers)} cells"),
        Aim("default / `ampd`, geometric mean", AMPD_AIM, geometric_mean(ampd), f"{len(ampd)} cells"),
    ]
