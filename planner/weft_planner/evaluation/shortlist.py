"""Prune: the layouts worth simulating, from both integer programs, on all GPUs and for less money."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

from weft_core.layouts import kind_of
from weft_core.parallelism import Degree
from weft_core.plan import Objective, PlannedGroup, Role
from weft_planner.evaluation.candidates import (
    MOSTLY_REMOTE,
    current_groups,
    may_stay,
    other_kinds,
    runnable_policies,
)
from weft_planner.programs import tables
from weft_planner.programs.group_options import GroupOption, LayoutPair, PlanLimits, money
from weft_planner.programs.inputs import PlanInputs
from weft_planner.programs.pairs import LayoutPairs
from weft_planner.programs.search import LayoutSearch
from weft_planner.programs.slo_capacity import SloCapacity

BEST = 6
"""Layouts of form A on all GPUs that are simulated: beyond, the phases' latencies rank them far behind."""
PROMISING = 12
"""Layouts that promise the highest goodput, with another split or other degrees than form A's."""
PROMISING_FEWER = 2
"""The same on fewer or more GPUs than there are, to tell how many would do."""
OF_A_PAIR = 2
"""Of them with the same pair of degrees and pools: the estimate ranks splits better than degrees."""
NEAR = 2
"""Layouts at the least budget that holds the SLO, and one step of a GPU to either side of it."""
MIXED = 2
MIXED_FROM = 257
"""GPUs from which form B is asked too: its tables do not grow with the cluster."""
TOLERANCE = 0.03
"""Share by which the GPUs that would do may be more than the fewest: each halving takes runs of every seed."""

Groups = tuple[PlannedGroup, ...]


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """What the programs choose among, and how to ask them: answers are remembered."""

    inputs: PlanInputs
    search: LayoutSearch
    sides: dict[Role, list[GroupOption]]
    limits: PlanLimits
    pairs: LayoutPairs
    _found: dict[Objective, list[LayoutPair]] = field(default_factory=dict)

    def best(self, count: int, *, objective: Objective = "latency") -> list[LayoutPair]:
        """Return the best layouts of form A on all GPUs; for ``cost`` the cheapest that hold the SLO by the phases."""
        known = self._found.get(objective, [])
        if len(known) < count:
            known = self._found[objective] = self.search.pairs(
                self.sides["prefill"], self.sides["decode"], limits=self.limits, objective=objective, count=count
            )
        return known[:count]

    def within(self, count: int, *, budget: float | None = None, gpus: int | None = None) -> list[Groups]:
        """Return the layouts of the best latencies within a budget (money, or GPUs without prices) or fewer GPUs."""
        limits = self.limits
        if budget is not None:
            limits = replace(limits, budget=budget if limits.budget is None else min(budget, limits.budget))
        if gpus is not None:
            limits = replace(limits, gpus=min(gpus, limits.gpus))
        return [layout.groups for layout in islice(self.pairs.best(limits=limits, objective="latency"), count)]

    def promising(self, count: int) -> list[Groups]:
        """Return layouts that should carry the most within the SLO, at most OF_A_PAIR for each pair of degrees.

        Rules that leave prefills to their workers make other splits good than rules that share them; where both kinds
        may run, each gets half of the places.
        """
        remote = {p.route in MOSTLY_REMOTE or p.mode in MOSTLY_REMOTE for p in runnable_policies(self.inputs.request)}
        promise = SloCapacity(self.inputs)
        found: list[Groups] = []
        for only_remote in sorted(remote):
            carried = promise.carried(self.sides["prefill"], self.sides["decode"], shared=not only_remote)
            found += self._few_of_a_pair(self.pairs.by(-carried, limits=self.limits), count // len(remote))
        return found

    @staticmethod
    def _few_of_a_pair(ranked: Iterable[LayoutPair], count: int) -> list[Groups]:
        found: list[Groups] = []
        kept: dict[tuple[str, Degree, str, Degree], int] = {}
        for layout in ranked:
            a, b = layout.prefill, layout.decode
            pair = a.pool, a.degree, b.pool, b.degree
            kept[pair] = kept.get(pair, 0) + 1
            if kept[pair] <= OF_A_PAIR:
                found.append(layout.groups)
            if len(found) == count:
                break
        return found


def prune(inputs: PlanInputs, search: LayoutSearch) -> SearchSpace | None:
    """Return what the programs choose among, None when no layout keeps every limit.

    Without a pair of groups there may still be workers for both phases, or groups that mix degrees or pools.
    """
    sides: dict[Role, list[GroupOption]] = {
        "prefill": tables.group_options(inputs, "prefill"),
        "decode": tables.group_options(inputs, "decode"),
    }
    pairs = LayoutPairs(sides["prefill"], sides["decode"])
    for limits in (inputs.limits, replace(inputs.limits, kv_tokens=0.0)):
        if next(pairs.best(limits=limits, objective="latency"), None) is not None:
            if limits is not inputs.limits:
                search.notes.append("no layout of these GPUs holds the KV of all running rounds at once")
            return SearchSpace(inputs, search, sides, limits, pairs)
    others = SearchSpace(inputs, search, sides, inputs.limits, pairs)
    if any(one.runnable for one in other_kinds(inputs, ())) or _mixed(others):
        return others
    return None


def layouts(space: SearchSpace) -> list[Groups]:
    """Return the layouts to simulate on all GPUs: the best of form A and of form B where it applies, and what runs now.

    Beside them the layouts that promise the highest goodput.
    """
    found = [layout.groups for layout in space.best(BEST)]
    return list(dict.fromkeys(found + _mixed(space) + _current(space) + space.promising(PROMISING)))


def cheapest_layouts(space: SearchSpace, holds: Callable[[Groups], bool]) -> list[Groups]:
    """Return layouts around the least budget whose best layout holds the SLO, found by halving; none when none does.

    ``holds`` simulates. A budget step is one of the cheapest GPU.
    """
    unit = space.limits.unit
    dearest = max(space.limits.price(pool) for pool in space.limits.nodes)
    most = round(space.limits.gpus * dearest / unit)
    least = _least(most, lambda steps: space.within(1, budget=steps * unit), holds)
    if least is None:
        return []
    near = [groups for steps in (least, least - 1, least + 1) for groups in space.within(NEAR, budget=steps * unit)]
    if space.inputs.request.objective == "cost":
        near += [layout.groups for layout in space.best(NEAR, objective="cost")]
    return list(dict.fromkeys(near))


def least_gpus(space: SearchSpace, holds: Callable[[Groups], bool]) -> int | None:
    """Return about the fewest GPUs of which a layout holds the SLO, None when none does; ``holds`` simulates.

    Tried are the layout of the best latency and those that promise the highest goodput: one alone may suit no rule.
    """

    def best(gpus: int) -> list[Groups]:
        fewer = replace(space, limits=replace(space.limits, gpus=min(gpus, space.limits.gpus)))
        return list(dict.fromkeys([*space.within(1, gpus=gpus), *fewer.promising(PROMISING_FEWER)]))

    return _least(space.limits.gpus, best, holds, tolerance=TOLERANCE)


def _least(
    most: int, best: Callable[[int], list[Groups]], holds: Callable[[Groups], bool], *, tolerance: float = 0.0
) -> int | None:
    """Return the least size at which one of the best layouts holds, by halving; None when not even the largest does.

    It may be more by the share ``tolerance``.
    """

    def enough(size: int) -> bool:
        return any(holds(groups) for groups in best(size))

    if not enough(most):
        return None
    low, high = 0, most
    while high - low > max(1.0, tolerance * high):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _mixed(space: SearchSpace) -> list[Groups]:
    """Return layouts of form B: where a role may mix degrees or pools, or the cluster is large."""
    inputs, request = space.inputs, space.inputs.request
    if not (request.engine.mixed_degrees or len(request.capacity.pools) > 1 or space.limits.gpus >= MIXED_FROM):
        return []
    rate = request.workload.arrival_rate
    found = space.search.mixed(
        tables.worker_options(inputs), rate=rate, limits=space.limits, objective=request.objective, count=MIXED
    )
    return [mixed.groups for mixed in found]


def _current(space: SearchSpace) -> list[Groups]:
    """Return what runs now, when it is disaggregated and may keep running."""
    groups = current_groups(space.inputs)
    return [groups] if groups and kind_of(groups) == "disaggregated" and may_stay(space.inputs, groups) else []


def price_of(space: SearchSpace, groups: Groups) -> float:
    """Return what groups cost: money for an hour, or GPUs where no prices are known."""
    return money(groups, space.limits)
