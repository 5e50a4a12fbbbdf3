"""What form B chooses among and finds: kinds of workers, their latency at rising loads, and layouts that mix them."""

from dataclasses import dataclass

from weft_core.parallelism import Degree
from weft_core.plan import PlannedGroup, Role


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """One load in sessions per second of one worker, and its latency there as a share of the SLO."""

    load: float
    share: float


@dataclass(frozen=True, slots=True)
class WorkerOption:
    """Workers of one role, pool and degree, with the loads they may carry, rising."""

    role: Role
    pool: str
    degree: Degree
    levels: tuple[LoadLevel, ...]
    kv_tokens: int = 0

    def __str__(self) -> str:
        return f"{self.role},{self.pool},{self.degree}"


@dataclass(frozen=True, slots=True)
class MixedLayout:
    """What form B chooses: groups, and the worst latency of each role as a share of its SLO."""

    groups: tuple[PlannedGroup, ...]
    prefill_share: float
    decode_share: float

    @property
    def shares(self) -> tuple[float, float]:
        """Return both shares."""
        return self.prefill_share, self.decode_share

    @property
    def gpus(self) -> int:
        """Return how many GPUs all groups take."""
        return sum(group.gpus for group in self.groups)
