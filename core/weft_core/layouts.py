"""What a plan is made of: groups of workers, how they share the work, and the rules that direct it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from weft_core.parallelism import Degree, gpus_of, in_layout

Role = Literal["prefill", "decode"]
ROLES: tuple[Role, ...] = ("prefill", "decode")

WorkerRole = Literal["prefill", "decode", "both"]
WORKER_ROLES: tuple[WorkerRole, ...] = ("prefill", "decode", "both")
"""The roles that a worker can be assigned; ``both``: it prefills for any session and decodes its own."""

LayoutKind = Literal["disaggregated", "colocated", "symmetric", "hybrid"]
LAYOUTS: tuple[LayoutKind, ...] = ("disaggregated", "colocated", "symmetric", "hybrid")
"""Who prefills: prefill workers; every worker, for its own sessions; every worker, for any session; or some of both:
prefill workers and workers with both roles, or these beside decode workers.

All workers of a co-located layout have the role decode, all of a symmetric one the role both.
"""

_LETTERS: Mapping[WorkerRole, str] = {"prefill": "P", "decode": "D", "both": "B"}
_COLOCATED = "C"


def duties_of(role: WorkerRole) -> tuple[Role, ...]:
    """Return what a worker of a role does: one role, or both of them."""
    return ROLES if role == "both" else (role,)


@dataclass(frozen=True, slots=True, order=True)
class PlannedGroup:
    """Workers of one role and degree in one GPU pool."""

    role: WorkerRole
    degree: Degree
    replicas: int
    pool: str

    @property
    def gpus(self) -> int:
        """Return how many GPUs the group takes."""
        return gpus_of(self.degree) * self.replicas


def named_workers(role: WorkerRole) -> str:
    """Return what sentences call the workers of a role."""
    return "workers with both roles" if role == "both" else f"{role} workers"


def kind_of(groups: Iterable[PlannedGroup]) -> LayoutKind:
    """Return what kind of layout workers with these roles make; decode workers alone are co-located."""
    roles = {group.role for group in groups}
    if "both" in roles:
        return "symmetric" if len(roles) == 1 else "hybrid"
    return "disaggregated" if "prefill" in roles else "colocated"


def only_roles_differ(some: Iterable[PlannedGroup], others: Iterable[PlannedGroup]) -> bool:
    """Return whether both are made of the same workers, by pool and degree: roles change, and no worker starts."""

    def workers(groups: Iterable[PlannedGroup]) -> Counter[tuple[str, Degree]]:
        found: Counter[tuple[str, Degree]] = Counter()
        for group in groups:
            found[group.pool, group.degree] += group.replicas
        return found

    return workers(some) == workers(others)


def role_letters(kind: LayoutKind) -> Mapping[WorkerRole, str]:
    """Return the letter of each role in the names of layouts of a kind."""
    return {**_LETTERS, "decode": _COLOCATED} if kind == "colocated" else _LETTERS


def in_order(groups: Iterable[PlannedGroup]) -> tuple[PlannedGroup, ...]:
    """Return groups as plans list them: prefill, decode, both; of one role by pool, the largest workers first."""
    return tuple(sorted(groups, key=lambda g: (WORKER_ROLES.index(g.role), g.pool, -gpus_of(g.degree), str(g.degree))))


def layout_name(groups: Sequence[PlannedGroup], kind: LayoutKind, *, named: bool = False) -> str:
    """Return a layout as the papers write it, degree x workers: P4x2 D8x1; with several pools P4x2@h100 D8x1@h20.

    P are prefill workers, D decode workers, B workers with both roles, C co-located ones. The largest workers of a role
    come first. ``named``: pools stand behind where there is only one, too.
    """
    letters = role_letters(kind)
    pools = named or len({group.pool for group in groups}) > 1
    ordered = sorted(groups, key=lambda g: (WORKER_ROLES.index(g.role), -gpus_of(g.degree), str(g.degree), g.pool))
    return " ".join(
        f"{letters[g.role]}{in_layout(g.degree)}x{g.replicas}{f'@{g.pool}' if pools else ''}" for g in ordered
    )


@dataclass(frozen=True, slots=True)
class PlannedPolicy:
    """The rules that a prediction was made with: routing (and its mode), queue order, binding, and slicing of prompts.

    ``chunked``: local prefills ride along with decode steps in slices instead of pausing them. ``chunk_share``: such a
    step may take this share of the ITL SLO; None: the usual one.
    """

    route: str
    mode: str = ""
    order: str = "fcfs"
    binding: str = "kv-headroom"
    chunked: bool = False
    chunk_share: float | None = None

    def __str__(self) -> str:
        return f"{self.route} ({self.mode})" if self.mode else self.route
