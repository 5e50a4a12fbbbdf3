"""Hold what a run is made of: sessions, their rounds, and the engines that serve them."""

import itertools
import math
from dataclasses import dataclass, field

NAN = math.nan


@dataclass(eq=False)
class Session:
    kind: int
    prefix: float
    reserve: float
    arrival: float
    hash: float
    rounds: list["Round"] = field(default_factory=list)
    worker: "Engine | None" = None
    kept: float = 0.0
    kept_before: float = 0.0
    below: float = 0.0
    below_size: float = 0.0
    late: bool = False
    idle_since: float | None = None
    """None while a round is there."""


@dataclass(eq=False)
class Round:
    session: Session
    history: float
    increment: float
    tokens: int
    gap: float
    noise: float
    chunk_noise: float
    read_sends: int
    back_sends: int
    arrival: float = NAN
    ttft: float = NAN
    finished: float = NAN
    emitted: list[float] = field(default_factory=list)
    state: int = 0
    route: int = -2
    reason: int = -1
    # its prefill task
    cached: float = 0.0
    compute: float = 0.0
    done: float = 0.0
    seconds: float = 0.0
    back: float = 0.0
    whole: bool = False
    ready: bool = True
    reading: bool = False
    postponed: int = 0
    at: "Engine | None" = None
    holds: float = 0.0
    part: int = 0
    unread: float = 0.0
    present: float = 0.0
    kept: float = 0.0
    kept_at: float = NAN
    starts: bool = False
    preempted: bool = False
    # its session's KV before it arrives
    kept_until: float = 0.0
    evicted: bool = False

    @property
    def first(self) -> bool:
        return self.history == 0

    @property
    def place(self) -> int:
        """Which of its session's rounds it is, from 0."""
        return self.session.rounds.index(self)

    @property
    def home(self) -> "Engine":
        """The engine that its session is bound to."""
        assert self.session.worker is not None
        return self.session.worker

    @property
    def context(self) -> float:
        return self.history + self.increment + len(self.emitted)

    @property
    def token_gaps(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.emitted)]


@dataclass(eq=False)
class Engine:
    number: int
    prefills: bool
    both: bool
    pre: tuple[float, ...]
    step: tuple[float, ...]
    capacity: float
    places: float
    tokens: float
    queue: list[Round] = field(default_factory=list)
    waiting: list[Round] = field(default_factory=list)
    joining: list[Round] = field(default_factory=list)
    fetching: list[Round] = field(default_factory=list)
    kept: list[Round] = field(default_factory=list)
    assigned: int = 0
    batch: list[Round] = field(default_factory=list)
    idle: list[Round] = field(default_factory=list)
    current: Round | None = None
    ahead: Round | None = None
    busy: bool = False
    chunk: int = 0
    running: int = 0
    mates: list["Engine"] = field(default_factory=list)
    stages: list[float] = field(default_factory=list)
    pending: tuple[str, float] | None = None
    inside: list[Round] = field(default_factory=list)
    slice_from: float = -math.inf
    waking: bool = False
    cached: set[int] = field(default_factory=set)
    ttfts: list[tuple[float, float]] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    chosen: float = -1e9
    out: float = 0.0
    into: float = 0.0
    below: list[list[Session]] = field(default_factory=list)
    loads_until: list[float] = field(default_factory=list)
