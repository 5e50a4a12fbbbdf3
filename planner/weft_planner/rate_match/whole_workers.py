"""Find the whole workers of a service's GPUs that carry most within the SLO at steady rates.

Context workers share one queue, as behind a router that knows their loads; a layout carries what its weaker side does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from weft_core.layouts import LayoutKind, Role, kind_of, layout_name
from weft_core.parallelism import Degree, gpus_of
from weft_core.plan import PlannedGroup
from weft_planner.programs.group_options import PlanLimits, keeps_limits
from weft_planner.programs.limits import limits_of, limits_of_kind
from weft_planner.programs.smallest import places
from weft_planner.rate_match.curves import (
    ContextPoint,
    GenerationPoint,
    aggregated_point,
    context_prefills,
    generation_point,
)
from weft_planner.rate_match.matching import Servers
from weft_planner.rate_match.queueing import MOST_BUSY, Prefills
from weft_planner.rate_match.rounds import RoundShape
from weft_planner.rate_match.servers import Server
from weft_planner.request.engines import layouts_of
from weft_planner.request.reading import Request

BUSY = 0.9
"""Share of their time that context workers compute at most, as in aiconfigurator: each waits between prompts."""
FULL = 0.92
"""Share of their most tokens that generation workers give, as in aiconfigurator: batches are not always full."""


@dataclass(frozen=True, slots=True)
class WholeWorkers:
    """Groups of workers with the load of each; without ``context`` they do both.

    ``rounds_per_s`` is what all of them carry, ``tokens_per_s_gpu`` the output tokens of that over the service's GPUs.
    """

    groups: tuple[PlannedGroup, ...]
    generation: GenerationPoint
    context: ContextPoint | None
    ttft_s: float
    rounds_per_s: float
    tokens_per_s_gpu: float

    @property
    def kind(self) -> LayoutKind:
        """Return whether the workers are disaggregated or co-located."""
        return kind_of(self.groups)

    @property
    def gpus(self) -> int:
        """Return how many GPUs the workers take."""
        return sum(group.gpus for group in self.groups)

    def __str__(self) -> str:
        """Return the layout's name: P4x2 D8x1."""
        return layout_name(self.groups, self.kind)


def best_whole_workers(servers: Servers, rounds: RoundShape, request: Request) -> WholeWorkers | None:
    """Return the layout of the request's GPUs that carries most within its SLO and limits; None where none does."""
    search = _Search(servers, rounds, request)
    allowed = layouts_of(request.engine)
    found = [search.disaggregated()] if "disaggregated" in allowed else []
    found += [*search.aggregated()] if "colocated" in allowed else []
    known = [one for one in found if one is not None]
    return max(known, key=lambda one: one.rounds_per_s, default=None)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Context workers, and as many generation workers as GPUs are left for; ``bound`` is what they carry at most."""

    context: PlannedGroup
    generation: PlannedGroup
    bound: float


class _Search:
    """The servers of a request, asked for their best loads once each."""

    def __init__(self, servers: Servers, rounds: RoundShape, request: Request) -> None:
        self._rounds, self._request, self._slo = rounds, request, request.slo
        self._context = _by_degree(servers.context)
        self._generation = _by_degree(servers.generation)
        self._aggregated = _by_degree(servers.aggregated)
        self._degrees = {pool.name: sorted(set(pool.usable_degrees)) for pool in request.capacity.pools}
        self._limits = limits_of(request, self._degrees)
        self._prefills: dict[Degree, Prefills] = {}
        self._loads: dict[tuple[Degree, int], ContextPoint | None] = {}

    def disaggregated(self) -> WholeWorkers | None:
        """Return the best of all pairs of strategies and numbers of workers: the most promising are looked at first."""
        points = {n: _most(server, partial(self._generates, server)) for n, server in self._generation.items()}
        best: WholeWorkers | None = None
        for pair in sorted(self._pairs(points), key=lambda one: -one.bound):
            if best is not None and pair.bound <= best.rounds_per_s:
                break
            context = self._load(pair.context)
            generation = points[pair.generation.degree]
            groups = _largest_that_fits(pair.context, pair.generation, self._limits)
            if context is None or generation is None or groups is None:
                continue
            carried = min(
                context.rounds_per_s * groups[0].replicas, FULL * generation.rounds_per_s * groups[1].replicas
            )
            if best is None or carried > best.rounds_per_s:
                best = self._carrying(groups, carried, generation, context, context.ttft_s)
        return best

    def aggregated(self) -> Iterator[WholeWorkers]:
        """Yield for each strategy as many workers that do both as there is room for."""
        limits = limits_of_kind(self._limits, "colocated")
        pools = {pool.name for pool in self._request.capacity.pools if set(pool.roles) == {"prefill", "decode"}}
        for pool, degree in places(self._request, self._degrees, "decode"):
            server = self._aggregated.get(degree)
            if server is None or pool.name not in pools or not server.serving_concurrencies:
                continue
            group = PlannedGroup("decode", degree, self._most_workers(pool.name, degree, "decode"), pool.name)
            while group.replicas and not keeps_limits((group,), limits, kv_tokens=0.0):
                group = replace(group, replicas=group.replicas - 1)
            if not group.replicas:
                continue
            point = _most(server, partial(self._serves, server, group.replicas))
            if point is not None:
                ttft = self._ttft_beside(server, point, group.replicas)
                yield self._carrying((group,), point.rounds_per_s * group.replicas, point, None, ttft)

    def _pairs(self, points: Mapping[Degree, GenerationPoint | None]) -> Iterator[_Pair]:
        for a, n in places(self._request, self._degrees, "prefill"):
            if n not in self._context:
                continue
            fastest = self._prefills_of(n).rounds_per_s(BUSY)
            for b, m in places(self._request, self._degrees, "decode"):
                point = points.get(m)
                if point is None:
                    continue
                most = self._most_workers(b.name, m, "decode")
                for count in range(1, self._most_workers(a.name, n, "prefill") + 1):
                    left = min(most, (self._limits.gpus - count * gpus_of(n)) // gpus_of(m))
                    if left < 1:
                        break
                    yield _Pair(
                        PlannedGroup("prefill", n, count, a.name),
                        PlannedGroup("decode", m, left, b.name),
                        min(count * fastest, FULL * left * point.rounds_per_s),
                    )

    def _most_workers(self, pool: str, degree: Degree, role: Role) -> int:
        most = self._limits.workers[role][1]
        room = min(self._limits.room_for(pool, degree), self._limits.gpus_of(pool) // gpus_of(degree))
        return room if most is None else min(room, most)

    def _prefills_of(self, degree: Degree) -> Prefills:
        if degree not in self._prefills:
            both_ways = self._request.engine.bidirectional
            self._prefills[degree] = context_prefills(self._context[degree], self._rounds, bidirectional=both_ways)
        return self._prefills[degree]

    def _load(self, group: PlannedGroup) -> ContextPoint | None:
        """Return the most load of each of these context workers within the TTFT SLO."""
        key = group.degree, group.replicas
        if key not in self._loads:
            prefills = self._prefills_of(group.degree)
            load = prefills.most_load(BUSY, lambda u: self._ttft(prefills, u, group.replicas) <= self._slo.ttft)
            self._loads[key] = (
                None
                if load is None
                else ContextPoint(
                    group.degree, load, prefills.rounds_per_s(load), self._ttft(prefills, load, group.replicas)
                )
            )
        return self._loads[key]

    def _ttft(self, prefills: Prefills, utilisation: float, workers: int) -> float:
        return prefills.ttft_s(
            utilisation, self._rounds, percentile=self._slo.percentile, queues=workers * prefills.batches
        )

    def _generates(self, server: Server, concurrency: int) -> GenerationPoint | None:
        point = generation_point(server, self._rounds, concurrency, waiting_s=self._slo.ttft)
        return point if point is not None and point.itl_s <= self._slo.itl else None

    def _serves(self, server: Server, workers: int, concurrency: int) -> GenerationPoint | None:
        point = aggregated_point(server, self._rounds, concurrency)
        if point is None or point.itl_s > self._slo.itl:
            return None
        return point if self._ttft_beside(server, point, workers) <= self._slo.ttft else None

    def _ttft_beside(self, server: Server, point: GenerationPoint, workers: int) -> float:
        """Return the TTFT of prompts that workers compute beside their batches; infinite where the queue grows."""
        prefills = server.serving_prefills(point.concurrency, self._rounds)
        utilisation = point.rounds_per_s / prefills.rounds_per_s(1.0)
        return self._ttft(prefills, utilisation, workers) if utilisation <= MOST_BUSY else float("inf")

    def _carrying(
        self,
        groups: tuple[PlannedGroup, ...],
        carried: float,
        generation: GenerationPoint,
        context: ContextPoint | None,
        ttft_s: float,
    ) -> WholeWorkers:
        tokens = carried * self._rounds.output_tokens / self._limits.gpus
        return WholeWorkers(groups, generation, context, ttft_s, carried, tokens)


def _by_degree(servers: Sequence[Server]) -> dict[Degree, Server]:
    return {server.degree: server for server in servers}


def _most(server: Server, point_of: Callable[[int], GenerationPoint | None]) -> GenerationPoint | None:
    """Return the last point that there is, by halving: with more sequences steps are longer and memory is fuller."""
    low, high, best = 0, server.concurrencies[-1] + 1, None
    while high - low > 1:
        middle = (low + high) // 2
        point = point_of(middle)
        low, high, best = (low, middle, best) if point is None else (middle, high, point)
    return best


def _largest_that_fits(
    context: PlannedGroup, generation: PlannedGroup, limits: PlanLimits
) -> tuple[PlannedGroup, PlannedGroup] | None:
    """Return both groups with as many generation workers as the limits and the nodes allow; None where they do not."""
    for count in range(generation.replicas, 0, -1):
        groups = context, replace(generation, replicas=count)
        if keeps_limits(groups, limits, kv_tokens=0.0):
            return groups
    return None
