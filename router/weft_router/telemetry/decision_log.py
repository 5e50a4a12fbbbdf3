"""Record the latest routing decisions with their alternatives.

A record costs less than a microsecond: it holds the objects of the decision; what they say is worked out when it is
read. The options that were not taken are known of the latest 128; what was chosen, and how it went, of all.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from time import monotonic, time
from typing import Final
from urllib.parse import parse_qs

import orjson

from weft_core.policies.snapshot import Decision, PrefillTask
from weft_router.errors import InvalidRequestError

LIMIT = 1024
SHOWN = 100
EXPLAINED: Final = 128
"""The latest ones keep what they were made from, which includes two numbers for every stream of the worker then."""
FIELDS = ("n", "reason", "session", "class", "trace")


class DecisionRecord:
    """One decision; ``ttft`` and ``outcome`` are set later."""

    __slots__ = (
        "_chunked", "_predicted", "_remote", "_task", "at", "class_", "evidence", "outcome", "policy",
        "reason", "session", "trace", "ttft", "worker",
    )  # fmt: skip

    def __init__(
        self, at: float, session: str, class_: str, policy: str, worker: str, task: PrefillTask, decision: Decision,
        trace: str,
    ) -> None:  # fmt: skip
        self.at = at
        self.session = session
        self.class_ = class_
        self.policy = policy
        self.worker = worker
        self.trace = trace
        self._task = task
        self._remote = decision.remote
        self._chunked = decision.chunked
        self._predicted = decision.ttft_s
        self.reason = decision.reason
        self.evidence = decision.evidence
        self.ttft: float | None = None
        """Seconds from the request's arrival to its first token, as observed."""
        self.outcome = ""
        """Why it went another way than decided in the end, where it did."""

    def facts(self, *, epoch: float = 0.0) -> dict[str, object]:
        """Return the record in words and numbers; ``epoch`` is the wall clock's lead over the monotonic one."""
        local = "local-chunked" if self._chunked else "local"
        options = self.evidence.alternatives() if self.evidence is not None else ()
        return {
            "time": datetime.fromtimestamp(epoch + self.at, UTC).isoformat(timespec="milliseconds"),
            "trace": self.trace,
            "session": self.session,
            "class": self.class_,
            "policy": self.policy,
            "worker": self.worker,
            "history": self._task.history,
            "increment": self._task.increment,
            "chosen": self._remote if self._remote is not None else local,
            "reason": self.reason,
            "predicted_ttft": _rounded(self._predicted),
            "observed_ttft": _rounded(self.ttft),
            "outcome": self.outcome or None,
            "alternatives": [
                {
                    "option": one.option,
                    "ttft": _rounded(one.ttft_s),
                    "itl_cost": _rounded(one.itl_cost),
                    "cost": _rounded(one.cost),
                }
                for one in options
            ],
        }


class DecisionLog:
    """The latest decisions of a process."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._explained = min(EXPLAINED, limit)
        self._ring: list[DecisionRecord] = []
        """The record of decision ``n`` is at ``n % limit``."""
        self.total = 0
        """Decisions since the start."""

    def add(
        self, now: float, session: str, class_: str, policy: str, worker: str, task: PrefillTask, decision: Decision,
        trace: str = "",
    ) -> DecisionRecord:  # fmt: skip
        """Remember a decision made at ``now`` (monotonic clock) for a session bound to ``worker``."""
        record = DecisionRecord(now, session, class_, policy, worker, task, decision, trace)
        ring, limit, number = self._ring, self._limit, self.total
        if number >= self._explained:
            ring[(number - self._explained) % limit].evidence = None
        if number < limit:
            ring.append(record)
        else:
            ring[number % limit] = record
        self.total = number + 1
        return record

    def latest(self, n: int, **wanted: str) -> Iterator[DecisionRecord]:
        """Return at most ``n`` records, the latest first; those of a reason, session, class or trace, if wanted."""
        left, ring, newest = n, self._ring, self.total - 1
        for number in range(newest, newest - len(ring), -1):
            if left <= 0:
                return
            record = ring[number % self._limit]
            if all(_field(record, name) == value for name, value in wanted.items()):
                left -= 1
                yield record

    def answer(self, query: bytes = b"") -> bytes:
        """Return the JSON for ``/debug/decisions?n=…&reason=…&session=…&class=…&trace=…``, the latest first.

        Raises:
            InvalidRequestError: a field is unknown, given twice, or ``n`` is not a number of records.
        """
        n, wanted = _parsed(query, most=self._limit)
        epoch = time() - monotonic()
        shown = [record.facts(epoch=epoch) for record in self.latest(n, **wanted)]
        return orjson.dumps({"total": self.total, "kept": len(self._ring), "decisions": shown})


def _parsed(query: bytes, *, most: int) -> tuple[int, dict[str, str]]:
    try:
        fields = parse_qs(query.decode("latin-1"), keep_blank_values=True, max_num_fields=16)
    except ValueError as error:
        raise InvalidRequestError(f"too many fields; use {', '.join(FIELDS)}") from error
    for name, values in fields.items():
        if name not in FIELDS:
            raise InvalidRequestError(f"there is no such field; use {', '.join(FIELDS)}", param=name[:32])
        if len(values) > 1:
            raise InvalidRequestError(f"{name}: give it once", param=name)
    wanted = {name: values[0] for name, values in fields.items() if values[0]}
    n = wanted.pop("n", str(min(SHOWN, most)))
    if not (n.isascii() and n.isdigit() and 1 <= int(n[:9]) <= most):
        raise InvalidRequestError(f"n: give a number from 1 to {most}", param="n")
    return int(n), wanted


def _field(record: DecisionRecord, name: str) -> str:
    return str(getattr(record, "class_" if name == "class" else name))


def _rounded(value: float | None) -> float | None:
    return None if value is None or value != value else round(value, 6)
