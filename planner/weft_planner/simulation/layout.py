"""Describe a simulated deployment: workers, layout, policies and SLO classes."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft_core.layouts import LAYOUTS, LayoutKind, PlannedGroup, WorkerRole, layout_name
from weft_core.parallelism import Degree, batches_of, gpus_of

LARGEST_LAYOUT = 4096
"""Workers of one simulation at most: twice the size of any published deployment, and a bound on memory."""


class SimulationError(ValueError):
    """Report inputs that cannot be simulated; the message names the field and the fix."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One model replica of a degree in a pool; a part of one where a layout counts batches (``Layout.of_batches``).

    Workers with the same ``node`` share a server (-1: shares with none), so their KV takes the faster link. ``both``:
    a decode worker that prefills for sessions of others, too; all of a symmetric layout do. ``batch``: which batch of
    its replica it stands for, from 0: one of each data-parallel rank, then further ones of each.
    """

    degree: Degree
    pool: str = "gpu"
    node: int = -1
    both: bool = False
    batch: int = 0

    def __post_init__(self) -> None:
        if gpus_of(self.degree) < 1:
            raise SimulationError(f"degree: {self.degree} is no degree; give 1 or more GPUs")


@dataclass(frozen=True, slots=True)
class Layout:
    """The workers that only prefill, and those that decode; co-located and symmetric layouts lack the first.

    Of a hybrid layout some workers have both roles. A worker's index, in outcomes and changes, counts the prefill
    workers first, then the decode workers. ``by_batch``: each worker stands for one batch of a real one, if that runs
    several at a time.
    """

    prefill: tuple[Worker, ...]
    decode: tuple[Worker, ...]
    kind: LayoutKind = "disaggregated"
    by_batch: bool = False

    def __post_init__(self) -> None:
        if self.kind not in LAYOUTS:
            raise SimulationError(f"kind: {self.kind!r} is none of {', '.join(LAYOUTS)}")
        if not self.decode:
            raise SimulationError("decode: a layout needs at least one decode worker; sessions live there")
        if len(self.prefill) + len(self.decode) > LARGEST_LAYOUT:
            raise SimulationError(f"workers: more than {LARGEST_LAYOUT} in one layout; simulate a part of it")
        if self.kind in ("colocated", "symmetric") and self.prefill:
            raise SimulationError(f"prefill: a {self.kind} layout has no prefill workers of its own; leave it empty")
        if self.kind == "disaggregated" and not self.prefill:
            raise SimulationError("prefill: a disaggregated layout needs at least one prefill worker")
        both = sum(worker.both for worker in self.decode)
        if self.kind == "hybrid" and not 0 < both < len(self.workers):
            raise SimulationError("decode: of a hybrid layout some workers, and not all, have both roles; mark them so")
        if self.kind in ("disaggregated", "colocated") and both:
            raise SimulationError("decode: workers with both roles make a hybrid or a symmetric layout; say so in kind")

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Return all workers, prefill first: a worker's place here is its index everywhere."""
        return self.prefill + self.decode

    def role(self, place: int) -> WorkerRole:
        """Return the role of the worker with this index."""
        if place < len(self.prefill):
            return "prefill"
        return "both" if self.kind == "symmetric" or self.decode[place - len(self.prefill)].both else "decode"

    @property
    def gpus(self) -> int:
        """Return how many GPUs the layout takes."""
        gpus: Counter[Degree] = Counter(worker.degree for worker in self.workers)
        return sum(gpus_of(degree) * count // self.parts_of(degree) for degree, count in gpus.items())

    def parts_of(self, degree: Degree) -> int:
        """Return how many workers here stand for one real worker of a degree."""
        return batches_of(degree) if self.by_batch else 1

    def of_batches(self) -> "Layout":
        """Return the layout with a worker for each batch, of which a worker of stages or ranks runs several at a time.

        Each batch has its share of the KV memory, and what waits for the worker goes to the batch that the policy
        prefers, as engines give it to the least busy rank. The batches of one worker's ranks step together, and
        all of its batches share its pipeline stages.
        """
        if self.by_batch or all(batches_of(worker.degree) == 1 for worker in self.workers):
            return self

        def each(workers: tuple[Worker, ...]) -> tuple[Worker, ...]:
            return tuple(
                replace(worker, batch=batch) for worker in workers for batch in range(batches_of(worker.degree))
            )

        return replace(self, prefill=each(self.prefill), decode=each(self.decode), by_batch=True)

    def __str__(self) -> str:
        """Return the papers' notation: P4x2 D8x1 (degree x replicas)."""
        counted = Counter((self.role(place), worker.degree) for place, worker in enumerate(self.workers))
        groups = [
            PlannedGroup(role, degree, count // self.parts_of(degree), "") for (role, degree), count in counted.items()
        ]
        return layout_name(groups, self.kind)


def layout_of(
    kind: LayoutKind,
    *,
    prefill: Mapping[Degree, int] | None = None,
    decode: Mapping[Degree, int],
    pool: str = "gpu",
    gpus_per_node: int = 0,
) -> Layout:
    """Build a layout from replicas per degree, largest degrees first; ``gpus_per_node`` fills nodes in that order.

    With 0 every transfer crosses nodes. A worker larger than a node shares a node with none.
    """
    filled = 0

    def place(degree: Degree) -> int:
        nonlocal filled
        gpus = gpus_of(degree)
        if gpus_per_node <= 0 or gpus > gpus_per_node:
            return -1
        if filled % gpus_per_node + gpus > gpus_per_node:
            filled += gpus_per_node - filled % gpus_per_node
        filled += gpus
        return (filled - 1) // gpus_per_node

    def group(counts: Mapping[Degree, int]) -> tuple[Worker, ...]:
        return tuple(
            Worker(degree, pool, place(degree))
            for degree in sorted(counts, reverse=True)
            for _ in range(counts[degree])
        )

    return Layout(prefill=group(prefill or {}), decode=group(decode), kind=kind)


@dataclass(frozen=True, slots=True)
class SloClass:
    """Thresholds in seconds of one session class, and its priority (0 is ordinary, higher is more important)."""

    ttft_s: float
    itl_s: float
    name: str = "all"
    priority: int = 0

    def __post_init__(self) -> None:
        for what, value in (("ttft_s", self.ttft_s), ("itl_s", self.itl_s)):
            if not (math.isfinite(value) and value > 0):
                raise SimulationError(f"{what}: {value!r} of class {self.name!r} is not a finite time above 0 seconds")


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The policies of a simulation, by the names of ``weft_core.policies.registry``.

    ``params`` overrides parameters of the routing policy by name. ``window`` is Algorithm 2's look-ahead; ``cap`` is
    how often ``moore-hodgson`` may pass over the oldest task, by default ``DEFAULT_CAP`` of the registry.
    ``chunk_share`` is the share of the ITL SLO that a step with a chunk may take, by default ``chunk_fraction`` of the
    options.
    """

    route: str = "weft"
    mode: str = "imd"
    binding: str = "kv-headroom"
    order: str = "moore-hodgson"
    params: Mapping[str, float] = field(default_factory=dict)
    window: int = 3
    cap: int | None = None
    chunk_share: float | None = None

    def __str__(self) -> str:
        name = f"{self.route}/{self.mode}" if self.route == "weft" else self.route
        slices = "" if self.chunk_share is None else f", slices within {self.chunk_share:.0%} of the ITL SLO"
        return f"{name}+{self.order}{slices}"


AMPD = PolicyChoice(route="ampd", mode="", binding="kv-headroom", order="ampd-window")
"""The published baseline: Algorithm 1, Algorithm 2 with window 3, binding by KV headroom."""


def check_slo(slo: Sequence[SloClass], classes: int) -> tuple[SloClass, ...]:
    """Return the SLO of every session class.

    Raises:
        SimulationError: there are fewer SLO classes than the sample's sessions name.
    """
    if len(slo) < classes:
        raise SimulationError(f"slo: {len(slo)} classes for sessions of {classes}; give one SLO per session class")
    return tuple(slo)
