"""Write one JSON line for every round that a decode worker serves: lengths and times, never texts or token ids.

The format is described in docs/reference/request-log.md; the planner fits workloads to it. Lines are written by a
thread of its own, because a slow disk must not hold up answers.
"""

import logging
import sys
from datetime import UTC, datetime, timedelta
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from queue import SimpleQueue
from time import monotonic

import orjson

from weft_router.config import RequestLogConfig
from weft_router.rounds.round import Round

COMPLAIN_EVERY_S = 60.0

log = logging.getLogger(__name__)


class RequestLog:
    """The log of one worker; without a target it writes nothing."""

    def __init__(self, config: RequestLogConfig, *, worker: str) -> None:
        self._worker = worker
        self._records: SimpleQueue[logging.LogRecord] | None = None
        self._listener: QueueListener | None = None
        target = _target(config)
        if target is not None:
            self._records = SimpleQueue()
            self._sender = QueueHandler(self._records)
            self._listener = QueueListener(self._records, target)
            self._listener.start()

    def write(self, rnd: Round, *, worker: str = "", now: float | None = None) -> None:
        """Write one round, finished or failed; ``now`` is the monotonic clock."""
        if self._records is None:
            return
        now = monotonic() if now is None else now
        line = orjson.dumps(entry(rnd, worker=worker or self._worker, now=now)).decode()
        self._records.put(logging.LogRecord("weft.rounds", logging.INFO, "", 0, line, None, None))

    def close(self) -> None:
        """Write what is left and close the file."""
        if self._listener is not None:
            self._listener.stop()
            for handler in self._listener.handlers:
                handler.close()


def entry(rnd: Round, *, worker: str, now: float) -> dict[str, object]:
    """Return the fields of a round's line."""
    facts = rnd.facts
    decode = _whole(facts.get("completion_tokens"))
    prompt = _whole(facts.get("prompt_tokens"))
    history = min(_whole(facts.get("history")), max(0, prompt - 1))
    first = None if rnd.first_at is None else rnd.first_at - rnd.started
    itl = (now - rnd.first_at) / (decode - 1) if rnd.first_at is not None and decode > 1 else None
    begun = datetime.now(UTC) - timedelta(seconds=now - rnd.started)
    return {
        "event": "round",
        "time": begun.isoformat(timespec="milliseconds"),
        "session": rnd.session,
        "round": rnd.outlook.index,
        "worker": worker,
        "outcome": "ok" if decode > 0 and prompt > 0 else "failed",
        "prompt_tokens": prompt,
        "history_tokens": history,
        "increment_tokens": prompt - history,
        "cached_tokens": facts.get("cached_tokens"),
        "decode_tokens": decode,
        "ttft_seconds": None if first is None else round(first, 4),
        "itl_seconds": None if itl is None else round(itl, 5),
        "seconds": round(now - rnd.started, 4),
        "route": rnd.route,
        "reason": rnd.reason,
        "prefill_worker": rnd.prefill_worker or None,
    }


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _target(config: RequestLogConfig) -> logging.Handler | None:
    if config.to == "off":
        return None
    if config.to == "stdout":
        return _Standard(sys.stdout)
    return _File(config.to, maxBytes=config.max_bytes, backupCount=config.files - 1, delay=True, encoding="utf-8")


class _Complaining(logging.Handler):
    """Says in the process's own log that lines are lost, once a minute, instead of printing tracebacks."""

    _lost = 0
    _said = -COMPLAIN_EVERY_S

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        """Count a lost line."""
        del record
        self._lost += 1
        if monotonic() - self._said >= COMPLAIN_EVERY_S:
            self._said = monotonic()
            log.error("request_log_not_written", extra={"lines": self._lost, "error": repr(sys.exc_info()[1])})


class _Standard(_Complaining, logging.StreamHandler):  # type: ignore[type-arg]
    pass


class _File(_Complaining, RotatingFileHandler):
    pass
