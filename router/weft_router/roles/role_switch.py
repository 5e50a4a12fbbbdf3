"""Follow the role that a worker is assigned: read its file, take the role, hand sessions over where it has none."""

import asyncio
import logging
from pathlib import Path
from time import monotonic

from weft_core.worker_roles import RoleState
from weft_router.background import guarded
from weft_router.config import ConfigError
from weft_router.config.role_file import read_role
from weft_router.rounds.decode_service import DecodeService
from weft_router.telemetry.metrics import Metrics
from weft_router.workers.worker import Worker

log = logging.getLogger(__name__)

PERIOD_S = 1.0
"""How often the file is read."""
LOOK_S = 0.1
"""How often a worker that hands over its sessions looks whether any are left; it reads the file as often."""


class RoleSwitch:
    """The changes of one worker's role."""

    def __init__(
        self, worker: Worker, decoding: DecodeService, *, path: Path, drain_s: float, metrics: Metrics,
        field: str = "WEFT_ROLE_FILE",
    ) -> None:  # fmt: skip
        """Follow the file ``path``, which ``field`` names; sessions are waited for ``drain_s`` at most."""
        self._worker = worker
        self._decoding = decoding
        self._path = path
        self._field = field
        self._drain_s = drain_s
        self._metrics = metrics
        self._state = RoleState(worker.role, worker.role, monotonic())
        self._refused = ""

    async def run(self) -> None:
        """Follow the file until cancelled."""
        while True:
            await guarded(self.update)
            await asyncio.sleep(LOOK_S if self._state.leaving else PERIOD_S)

    async def update(self) -> None:
        """Read the file once, and carry out what is due; a process that ends keeps its role."""
        if self._worker.draining:
            return
        now = monotonic()
        self._assign(now)
        state = self._state
        if state.leaving and (self._decoding.handed_over or now >= state.since + self._drain_s):
            self._take(state.handed_over(), now)

    def _assign(self, now: float) -> None:
        try:
            role = read_role(self._path, field=self._field)
        except ConfigError as error:
            self._refuse(str(error))
            return
        self._refused = ""
        state = self._state.assign(role, now)
        if state is not self._state:
            self._take(state, now)

    def _refuse(self, why: str) -> None:
        """Keep the role; the same fault is counted and logged once."""
        if why != self._refused:
            self._refused = why
            self._metrics.role_errors.inc()
            log.warning("role_refused", extra={"worker": self._worker.name, "role": self._worker.role, "error": why})

    def _take(self, state: RoleState, now: float) -> None:
        """Announce a state, and record what changed."""
        worker, before, self._state = self._worker, self._state, state
        worker.set_role(state.role, leaving=state.leaving)
        facts = {"worker": worker.name, "from": before.role, "to": state.assigned}
        if state.leaving:
            log.info("role_change_started", extra={**facts, "seconds": self._drain_s})
        elif state.role == before.role:
            log.info("role_change_abandoned", extra={**facts, "to": before.assigned})
        else:
            seconds = now - before.since if before.assigned == state.role else 0.0
            self._metrics.role_changes.labels(before.role, state.role).inc()
            self._metrics.role_change_seconds.labels(before.role, state.role).observe(seconds)
            left = {"rounds_left": self._decoding.live.count, "sessions_left": len(self._decoding.sessions)}
            moved = self._decoding.session_export.moved
            log.info("role_changed", extra={
                **facts, "seconds": round(seconds, 2), **left, "moved_by_handle": moved["handle"],
                "moved_by_cache": moved["cache"], "moved_by_prefill": moved["prefill"],
            })  # fmt: skip
