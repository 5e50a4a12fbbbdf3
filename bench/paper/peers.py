"""Goodput of what people run today, routers that know of no sessions, beside Weft's simplest rule and AMPD's."""

from dataclasses import dataclass

from bench.paper.cells import SETTINGS, Cell, Length
from bench.paper.choosing import weft
from bench.paper.goodputs import MEAN, Bench, Carried
from bench.paper.uplift import FIRST_GUESS

from weft_planner.simulation import AMPD, PolicyChoice

PEERS = ("cache-aware", "sticky-least-loaded", "consistent-hash", "power-of-two", "round-robin")
BINDING = "least-requests"
"""How those routers choose a new session's decode worker, as far as a rule without prefixes can say."""
CONTENDERS: dict[str, PolicyChoice] = {
    **{name: PolicyChoice(route=name, mode="", binding=BINDING, order="fcfs") for name in PEERS},
    "ampd": AMPD,
    "remote-jsq": PolicyChoice(route="remote-jsq", mode="", order="fcfs"),
    "weft, remote-jsq": weft("remote-jsq", MEAN),
    "weft, ia": weft("ia", MEAN),
    "weft, imd": weft("imd", MEAN),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One cell on its published layout: what each contender carries, None where it holds the goal at no rate."""

    cell: str
    layout: str
    carried: dict[str, Carried | None]

    def ratio(self, contender: str) -> float:
        """Return a contender's goodput over that of the best router without sessions."""
        best = max(self.rate(name) for name in PEERS)
        return self.rate(contender) / best if best > 0 else float("inf" if self.rate(contender) > 0 else "nan")

    def rate(self, contender: str) -> float:
        """Return sessions per second, 0 where the goal is held nowhere."""
        found = self.carried[contender]
        return 0.0 if found is None else found.rate


def row(cell: Cell, length: Length) -> Row:
    """Search each contender's goodput in the first setting, by the sessions' mean ITL."""
    bench = Bench(cell, SETTINGS[0], length)
    carried: dict[str, Carried | None] = {}
    guess = FIRST_GUESS
    for name, policy in CONTENDERS.items():
        carried[name] = found = bench.goodput(cell.layout, policy, MEAN, guess=guess)
        guess = found.rate if found is not None else guess
    return Row(str(cell), str(cell.layout), carried)
