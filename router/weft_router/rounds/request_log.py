"""Write one JSON line for every round that a decode worker serves: lengths and times, never texts or token ids.

The format is described in docs/reference/request-log.md; the planner fits workloads to it.
"""

import asyncio
import contextlib
import logging
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from time import monotonic, time

import orjson

from weft_router.config import RequestLogConfig
from weft_router.sessions.round import Round
from weft_router.telemetry.access_log import rounded
from weft_router.telemetry.log_sink import LogSink
from weft_router.telemetry.log_targets import Descriptor, RotatedFile

COMPLAIN_EVERY_S = 60.0

log = logging.getLogger(__name__)


class RequestLog:
    """The log of one worker; without a target it writes nothing."""

    def __init__(self, config: RequestLogConfig, *, worker: str) -> None:
        self._worker = worker
        self._complained = -COMPLAIN_EVERY_S
        self._started = False
        self._sink: LogSink | None = None
        if config.to == "stdout":
            self._sink = LogSink(Descriptor(1), note=self._complain)
        elif config.to != "off":
            target = RotatedFile(Path(config.to), max_bytes=config.max_bytes, files=config.files)
            self._sink = LogSink(target, note=self._complain)

    def write(self, rnd: Round, *, worker: str = "", now: float | None = None) -> None:
        """Write one round of a worker, finished or failed; ``now`` is the monotonic clock."""
        sink = self._sink
        if sink is None:
            return
        if not self._started:
            self._started = True
            with contextlib.suppress(RuntimeError):  # without a loop the lines go out at the end
                sink.start(asyncio.get_running_loop())
        now = monotonic() if now is None else now
        sink.write(
            orjson.dumps(log_entry(rnd, worker=worker or self._worker, now=now), option=orjson.OPT_APPEND_NEWLINE)
        )

    def close(self) -> None:
        """Write what is left and close the file."""
        if self._sink is not None:
            self._sink.close()

    def _complain(self, lines: int) -> None:
        """Say in the process's own log that lines are lost, once a minute: this log is for rounds alone."""
        if self._sink is not None and monotonic() - self._complained >= COMPLAIN_EVERY_S:
            self._complained = monotonic()
            log.error("request_log_not_written", extra={"lines": lines, "error": str(self._sink.error or "not read")})


def log_entry(rnd: Round, *, worker: str, now: float) -> dict[str, object]:
    """Return the fields of a round's line."""
    facts, started, first_at = rnd.facts, rnd.started, rnd.first_at if rnd.first_seen else None
    decode = _whole(facts.get("completion_tokens"))
    prompt = _whole(facts.get("prompt_tokens"))
    history = min(_whole(facts.get("history")), max(0, prompt - 1))
    return {
        "event": "round",
        "time": _stamp(time() - (now - started)),
        "session": rnd.session,
        "round": rnd.prefix_match.index,
        "worker": worker,
        "outcome": "ok" if decode > 0 and prompt > 0 else "failed",
        "prompt_tokens": prompt,
        "history_tokens": history,
        "increment_tokens": prompt - history,
        "cached_tokens": facts.get("cached_tokens"),
        "decode_tokens": decode,
        "ttft_seconds": None if first_at is None else rounded(first_at - started),
        "itl_seconds": round((now - first_at) / (decode - 1), 5) if first_at is not None and decode > 1 else None,
        "seconds": rounded(now - started),
        "route": rnd.route,
        "reason": rnd.reason,
        "prefill_worker": rnd.prefill_worker or None,
    }


@lru_cache(maxsize=8)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")


def _stamp(at: float) -> str:
    second = int(at)
    return f"{_second(second)}{int((at - second) * 1000):03d}+00:00"


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
