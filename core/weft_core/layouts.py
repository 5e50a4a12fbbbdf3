"""What a plan is made of: groups of workers, how they share the work, and the rules that direct it."""

from dataclasses import dataclass
from typing import Literal

from weft_core.parallelism import Degree, gpus_of

Role = Literal["prefill", "decode"]
ROLES: tuple[Role, ...] = ("prefill", "decode")

WorkerRole = Literal["prefill", "decode", "both"]
WORKER_ROLES: tuple[WorkerRole, ...] = ("prefill", "decode", "both")
"""The roles that a worker can be assigned; ``both``: it prefills for any session and decodes its own."""

LayoutKind = Literal["disaggregated", "colocated", "symmetric", "hybrid"]
LAYOUTS: tuple[LayoutKind, ...] = ("disaggregated", "colocated", "symmetric", "hybrid")
"""Who prefills: its own workers; every worker for its own sessions; any worker for any session; or both of the first.

Without workers of their own for prefill (``colocated``, ``symmetric``) all groups have the role decode.
"""


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
