"""Refuse replayed heartbeats: a worker's records are new by its instance id, their number and what came before."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from weft_core.heartbeat import WorkerRecord
from weft_core.records import MAX_SKEW_S

REMEMBERED_S: Final = 2 * MAX_SKEW_S + 10.0
"""How long a worker that is gone is remembered: its last record may come from a clock that is MAX_SKEW_S ahead, and is
believed until that much after its time."""
LIVES: Final = 8
"""Earlier lives of a worker that are remembered; each record of one older than these is older than MAX_SKEW_S, as long
as a worker does not start more often."""


@dataclass(slots=True)
class _Seen:
    instance_id: str
    seq: int
    at: float
    before: deque[str] = field(default_factory=lambda: deque(maxlen=LIVES))


class ReplayFilter:
    """The latest heartbeat that was seen of each worker."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def __len__(self) -> int:
        """Return how many workers are remembered."""
        return len(self._seen)

    def is_new(self, record: WorkerRecord, now: float) -> bool | None:
        """Note a heartbeat; True: it is a new one, False: the latest one again, None: an earlier one than that."""
        seen = self._seen.get(record.worker)
        if seen is None:
            self._seen[record.worker] = _Seen(record.instance_id, record.seq, now)
            return True
        if record.instance_id != seen.instance_id:
            if record.instance_id in seen.before:
                return None
            seen.before.append(seen.instance_id)
            seen.instance_id = record.instance_id
        elif record.seq == seen.seq:
            return False
        elif record.seq < seen.seq:
            return None
        seen.seq = record.seq
        seen.at = now
        return True

    def expire(self, now: float) -> None:
        """Forget workers of which nothing new came for REMEMBERED_S."""
        for name in [name for name, seen in self._seen.items() if now - seen.at > REMEMBERED_S]:
            del self._seen[name]
