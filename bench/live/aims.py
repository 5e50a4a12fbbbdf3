"""Hold what was measured to the aims: no regret in any cell, and how far ahead of peers and of AMPD's rule. Pure."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.live.cells import CELLS
from bench.live.contenders import AMPD, DEFAULT, PEERS
from bench.live.record import Record
from bench.live.search import Bound, Goodput, Ratio, Shares, geometric_mean, goodput_of, ratio, seeds_of, with_seeds
from bench.live.shift import shift_ratio

NO_REGRET, PEER_AIM, AMPD_AIM, WRONG_PROFILE = 0.95, 1.25, 2.0, 0.9
"""Of the best contender in every cell; of the best peer, and of AMPD's rule, as geometric means over the cells; of the
best contender where the routers' profile is wrong."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """One cell: each contender's goodput, best first, and the default's as a multiple of others'.

    ``best`` and ``peer`` are the best contender beside the default and the best peer, by the seeds that each has in
    common with the default; None where there is none. So are the ratios: some contenders ran with one seed only. The
    best was chosen by what it showed, which flatters it, so further seeds alone compare it where they have the goal of
    both between two rates: by all their runs, as those that are near the goal decide too much by chance.
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
    """One aim, what came of it, and whether it is met; what was not measured, or not bracketed, is not met.

    ``bounds`` are those of the ratios behind the figure.
    """

    words: str
    wanted: float
    found: float
    note: str = ""
    bounds: frozenset[Bound] = frozenset()

    @property
    def met(self) -> bool:
        """Tell whether the figure is there, and high enough whatever was not bracketed."""
        return self.found >= self.wanted and "<" not in self.bounds

    @property
    def missed(self) -> bool:
        """Tell whether the figure is there, and too low whatever was not bracketed."""
        return self.found < self.wanted and ">" not in self.bounds


def result_of(record: Record, cell: str) -> CellResult:
    """Return what a cell shows."""
    found = {one: _goodput(record.shares(cell, one), set(record.further)) for one in record.contenders(cell)}
    ranked = dict(sorted(found.items(), key=lambda item: (item[1].bound == "<", -item[1].rate)))
    default = found.get(DEFAULT)
    further = set(record.further)

    def over(name: str | None) -> Ratio | None:
        if default is None or name is None or name not in found:
            return None
        mine, other = record.shares(cell, DEFAULT), record.shares(cell, name)
        common = (seeds_of(mine) & seeds_of(other)) - further
        if not common:
            return None
        return ratio(*(goodput_of(with_seeds(shares, common)) for shares in (mine, other)))

    def by_further(name: str | None) -> Ratio | None:
        if name is None:
            return None
        tried = [with_seeds(record.shares(cell, one), further) for one in (DEFAULT, name)]
        whole = [_whole(shares) for shares in tried]
        firm = all(whole) and not any(goodput_of(shares).bound for shares in whole)
        return shift_ratio(*tried) if firm else None

    def strongest(names: list[str]) -> str | None:
        """Return who may be the best: one that held the goal at no rate tried counts with the lowest of these."""
        known = {one: against.value for one in names if (against := over(one)) is not None}
        return min(known, key=lambda one: known[one], default=next(iter(names), None))

    best = strongest([one for one in ranked if one != DEFAULT])
    peer = strongest([one for one in ranked if one in PEERS])
    return CellResult(cell, ranked, best, peer, by_further(best) or over(best), over(peer), over(AMPD))


def _whole(shares: Shares) -> Shares:
    """Return the rates that were tried with all seeds, of those that were tried with any."""
    every = seeds_of(shares)
    return {step: of for step, of in shares.items() if of.keys() == every}


def _goodput(shares: Shares, further: Collection[int]) -> Goodput:
    """Return the goodput by further seeds, whose runs are longer, where these have the goal between two rates."""
    longer = with_seeds(shares, further)
    found = goodput_of(longer) if longer else None
    if found is not None and not found.bound:
        return found
    return goodput_of(with_seeds(shares, seeds_of(shares) - set(further)) or shares)


def aims_of(results: list[CellResult]) -> list[Aim]:
    """Return the aims; cells where a contender cannot run do not count for its aim."""
    wrong = [one for one in results if CELLS[one.cell].profile_error != 1]
    right = [one for one in results if one not in wrong]
    return [
        _least("default / best other contender, least over the cells", NO_REGRET, right),
        _mean("default / best peer, geometric mean", PEER_AIM, [one.of_peer for one in right]),
        _mean("default / `ampd`, geometric mean", AMPD_AIM, [one.of_ampd for one in right]),
        _least("the first, where the routers' cost profile is wrong by 2 x", WRONG_PROFILE, wrong),
    ]


def _least(words: str, wanted: float, results: Sequence[CellResult]) -> Aim:
    known = {one.cell: one.of_best for one in results if one.of_best is not None}
    worst = min(known, key=lambda cell: known[cell].value, default="")
    least = known[worst].value if known and len(known) == len(results) else math.nan
    return Aim(words, wanted, least, worst, _bounds(known.values()))


def _mean(words: str, wanted: float, ratios: Sequence[Ratio | None]) -> Aim:
    known = [one for one in ratios if one is not None]
    cells = f"{len(known)} cell{'' if len(known) == 1 else 's'}"
    return Aim(words, wanted, geometric_mean([one.value for one in known]), cells, _bounds(known))


def _bounds(ratios: Iterable[Ratio]) -> frozenset[Bound]:
    return frozenset(one.bound for one in ratios if one.bound)
