"""Change workers' roles under load on a loopback stack: who changes, how long it takes, and what it did to sessions."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from weft_core.layouts import WorkerRole
from weft_core.profile_json import profile_from_json
from weft_core.worker_roles import has_duty
from weft_e2e.checks import check_no_failures
from weft_e2e.checks.drains import check_no_lost_sessions
from weft_e2e.checks.failed import CheckFailed
from weft_e2e.metrics import growth
from weft_e2e.replay.client import SessionTranscript
from weft_e2e.replay.records import RoundRecord
from weft_e2e.replay.sessions import PlannedRound
from weft_e2e.scenarios.background import Background, background_sessions
from weft_e2e.scenarios.draining import costs
from weft_e2e.stack import Stack, StackConfig, StackWorker, running
from weft_e2e.waiting import until

Says = Callable[[str], None]

AT_ONCE_S = 3.0
"""Longest time of a change that hands no sessions over, from the assignment to the heartbeat with the new role."""
DRAIN_S = 10.0
STEP_S = 0.05
WORKERS: tuple[tuple[str, WorkerRole], ...] = (
    ("w-0", "prefill"), ("w-1", "prefill"), ("w-2", "decode"), ("w-3", "decode"), ("w-4", "both"),
)  # fmt: skip
SWAPS: tuple[tuple[tuple[str, WorkerRole], tuple[str, WorkerRole]], ...] = (
    (("w-0", "decode"), ("w-2", "prefill")),
    (("w-1", "both"), ("w-4", "prefill")),
    (("w-4", "decode"), ("w-3", "prefill")),
    (("w-2", "decode"), ("w-0", "prefill")),
    (("w-3", "both"), ("w-1", "prefill")),
)
"""Who decodes comes first in each pair: the service never has fewer decode workers than before."""
LONG = (PlannedRound(600, 10, 0.0), *(PlannedRound(100, 10, 0.4) for _ in range(11)))
SHORT = (PlannedRound(150, 8, 0.0), PlannedRound(60, 8, 0.3), PlannedRound(40, 6, 0.3))


@dataclass(frozen=True, slots=True)
class RoleChange:
    """One change as a reader of heartbeats saw it, in seconds from the assignment."""

    worker: str
    before: WorkerRole
    after: WorkerRole
    seconds: float

    @property
    def hands_over(self) -> bool:
        """Return whether sessions had to go first."""
        return has_duty(self.before, "decode") and not has_duty(self.after, "decode")


@dataclass(frozen=True, slots=True)
class RoleResults:
    """What was seen over all changes."""

    changes: tuple[RoleChange, ...]
    records: tuple[RoundRecord, ...]
    transcripts: tuple[SessionTranscript, ...]
    moved: float
    """Sessions that other workers took over."""
    processes: frozenset[int]
    """Processes that were gone, or new, after the changes."""


def run(count: int, folder: Path, *, streams: int = 24, say: Says = lambda _: None) -> RoleResults:
    """Carry out so many changes under load, check them, and return what was seen.

    Raises:
        CheckFailed: a check says what was expected and what was found.
    """
    config = StackConfig(
        profile=profile_from_json(costs(STEP_S)), workers=tuple(StackWorker(name, role, 1) for name, role in WORKERS),
        policy="remote-jsq", binding="round-robin", drain_s=DRAIN_S, handle_ttl_s=60.0, kv_lease_s=20.0, ttft_s=5.0,
        itl_s=4 * STEP_S, movable=True,
    )  # fmt: skip
    changes: list[RoleChange] = []
    with running(config, folder) as stack:
        pids, before = stack.pids, stack.metrics_pages()
        load = Background(stack.target, lanes=streams, rounds=LONG, others=(SHORT,), round_deadline_s=60.0)
        with background_sessions(load):
            load.wait_served(2 * streams, timeout_s=60.0)
            for worker, role in _wanted(stack):
                changes.append(change(stack, worker, role))
                one = changes[-1]
                say(f"{len(changes):3d} {worker} {one.before} -> {role} in {one.seconds:.2f} s")
                if len(changes) == count:
                    break
            load.wait_served(2 * streams, timeout_s=60.0)
        moved = growth(before, stack.metrics_pages()).total("weft_router_sessions_moved_total")
        replaced = frozenset(pids) ^ frozenset(stack.pids)
    seen = RoleResults(tuple(changes), tuple(load.records), tuple(load.transcripts), moved, replaced)
    check(seen)
    return seen


def change(stack: Stack, worker: str, role: WorkerRole) -> RoleChange:
    """Assign a role, and wait for the heartbeat that acknowledges it."""
    before = next(record.role for record in stack.records() if record.worker == worker)
    start = time.monotonic()
    stack.assign(worker, role)

    def taken() -> bool:
        return any(r.worker == worker and r.role == role and not r.draining for r in stack.records())

    until(taken, what=f"{worker} to be {role}", timeout_s=DRAIN_S + AT_ONCE_S, every_s=0.02)
    return RoleChange(worker, before, role, time.monotonic() - start)


def check(seen: RoleResults) -> None:
    """Check that no request failed and no session was lost, that no process restarted, and how long changes took."""
    check_no_failures(seen.records)
    check_no_lost_sessions(seen.transcripts)
    check_changes(seen)


def check_changes(seen: RoleResults) -> None:
    """Check the changes themselves: their times, the processes, and that sessions moved."""
    if seen.processes:
        raise CheckFailed(f"{len(seen.processes)} processes ended or began: a change of role restarts none")
    for one in seen.changes:
        most = AT_ONCE_S + (DRAIN_S if one.hands_over else 0.0)
        if one.seconds > most:
            words = f"{one.worker} took {one.seconds:.1f} s from {one.before} to {one.after}, {most:g} s at most"
            raise CheckFailed(words)
    if not seen.moved and any(one.hands_over for one in seen.changes):
        raise CheckFailed("no session moved with its state, though workers ceased to decode")


def times(changes: Sequence[RoleChange], *, hands_over: bool) -> list[float]:
    """Return the seconds of the changes that hand sessions over, or of the others, in order."""
    return sorted(one.seconds for one in changes if one.hands_over is hands_over)


def _wanted(stack: Stack) -> Iterator[tuple[str, WorkerRole]]:
    """Yield workers and roles that they do not have now."""
    for swap in cycle(SWAPS):
        for worker, role in swap:
            if any(record.worker == worker and record.role != role for record in stack.records()):
                yield worker, role
