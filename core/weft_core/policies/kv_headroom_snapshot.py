"""Bind a new session to the decode worker with the most free KV memory (AMPD section 3, step 1)."""

from collections.abc import Sequence

from weft_core.policies.snapshot import DecodeWorkerView


def bind(decode: Sequence[DecodeWorkerView], *, need: int) -> str | None:
    """Return the worker with the largest KV headroom after ``need`` tokens, None when none has room.

    Ties go to the worker with fewest sessions, then to the first name.
    """
    roomy = [worker for worker in decode if worker.kv_capacity - worker.kv_used >= need]
    if not roomy:
        return None
    return min(roomy, key=lambda w: (w.kv_used - w.kv_capacity, w.sessions, w.worker)).worker
