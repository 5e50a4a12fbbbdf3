"""Simulate layouts with rising load: sessions per second that meet the SLO, under one policy or the best of some.

All see the same sessions, which are none of those that Weft planned with.
"""

from collections.abc import Sequence
from statistics import fmean

from bench.planner_peers.cells import Cell, Slo, Traffic
from bench.planner_peers.peer import Configuration
from bench.planner_peers.planning import request

from weft_core.cost import CostProfile
from weft_core.plan import PlannedGroup
from weft_planner.evaluation.candidates import Candidate, runnable_policies
from weft_planner.evaluation.goodput_search import STEP, finalists, goodputs
from weft_planner.evaluation.trials import Trials
from weft_planner.programs.inputs import prepare_inputs
from weft_planner.simulation import PolicyChoice

SEED = 1
ROUTERS = ("cache-aware", "remote-jsq")
"""Rules for aiconfigurator's prefill and decode workers: where the prompt's prefix is cached while loads are even, as
vllm-router and sglang-router do; and the shortest queue."""
BINDING = "least-requests"
START = STEP**-2
"""Where the search begins, as a multiple of the rate that Weft planned for."""


class Judge:
    """Simulations of one cell, SLO and workload."""

    def __init__(
        self,
        cell: Cell,
        slo: Slo,
        traffic: Traffic,
        profile: CostProfile,
        *,
        rate: float,
        groups: Sequence[PlannedGroup],
    ) -> None:
        """Prepare for these groups' strategies; ``rate`` in sessions per second only sets the ladder."""
        strategies = list(dict.fromkeys(group.degree for group in groups))
        self._rate, self._gpus = rate, cell.gpus
        self._trials = {
            both: Trials(
                prepare_inputs(
                    request(
                        cell, slo, traffic, profile, rate=rate, strategies=strategies, bidirectional=both, seed=SEED
                    )
                )
            )
            for both in (True, False)
        }
        self._asked = request(cell, slo, traffic, profile, rate=rate, strategies=strategies, seed=SEED)

    def goodput(self, candidate: Candidate, *, bidirectional: bool = True) -> float:
        """Return sessions per second and GPU that meet the SLO; 0 where none do at any rate.

        Without ``bidirectional`` a decode worker's KV never returns: a later round's prefill computes what its worker's
        prefix cache lacks.
        """
        trials, goal = self._trials[bidirectional], self._asked.slo.attainment
        (one,) = finalists(trials, [candidate], rate=self._rate, goal=goal, start=START, count=1)
        return fmean(goodputs(trials, candidate, one.bracket, rate=self._rate, goal=goal)) / self._gpus

    def of_routers(self, found: Configuration) -> tuple[float, str]:
        """Return a configuration's goodput as people run it, and the rule: the best of several; engines alone."""
        if found.kind == "colocated":
            tries = {"colocated": _colocated(found, BINDING)}
        else:
            tries = {name: _candidate(found, name) for name in ROUTERS}
        every = {name: self.goodput(one, bidirectional=False) for name, one in tries.items()}
        name = max(every, key=lambda name: every[name])
        return every[name], name

    def rerouted(self, found: Configuration) -> float:
        """Return a configuration's goodput under the best of Weft's policies, KV returning to prefill workers."""
        if found.kind == "colocated":
            return self.goodput(_colocated(found, "kv-headroom"))
        tries = [Candidate(found.kind, found.groups, policy) for policy in runnable_policies(self._asked)]
        return max(self.goodput(one) for one in tries)


def _colocated(found: Configuration, binding: str) -> Candidate:
    return Candidate(found.kind, found.groups, PolicyChoice("colocated", "", binding, "fcfs"))


def _candidate(found: Configuration, route: str) -> Candidate:
    return Candidate(found.kind, found.groups, PolicyChoice(route, "", BINDING, "fcfs"))
