"""What was measured of each round, and the file form of a whole replay."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal, cast

Phase = Literal["first", "later"]
# How a round ended. Only "ok" is a success. "refused" (an HTTP error with a body that says why) and "stream_error"
# (an error event in the stream) are clear; the others left the client to find out by itself.
Outcome = Literal["ok", "refused", "stream_error", "truncated", "connection", "deadline", "malformed", "not_sent"]
CLEAR_FAILURES: frozenset[Outcome] = frozenset({"refused", "stream_error"})


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One model call as the client saw it; times in seconds, ``sent_s`` since the start of the replay."""

    session: str
    index: int
    phase: Phase
    added_tokens: int
    decode_tokens: int
    sent_s: float
    total_s: float
    outcome: Outcome
    error: str | None = None
    status: int | None = None
    ttft_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    route: str | None = None
    worker: str | None = None
    reason: str | None = None

    @property
    def ok(self) -> bool:
        """Return whether the whole answer arrived."""
        return self.outcome == "ok"


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """Whether the measuring itself was in the way: CPU shares are of one core, lags in seconds."""

    cpu_cores: float
    machine_busy_cores: float | None
    machine_cores: int
    lag_p99_s: float
    lag_max_s: float


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Everything a replay measured."""

    records: tuple[RoundRecord, ...]
    started_at: str
    wall_s: float
    load: ClientLoad
    deadline_hit: bool = False
    notes: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[RoundRecord, ...]:
        """Return the rounds that did not succeed, rounds that could not be sent included."""
        return tuple(r for r in self.records if not r.ok)


def save(result: ReplayResult, path: Path) -> None:
    """Write the result as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(result), separators=(",", ":")) + "\n")


def read(path: Path) -> ReplayResult:
    """Read what ``save`` wrote; fields that are not known are refused."""
    data = json.loads(path.read_text())
    records = tuple(_record(row) for row in data.pop("records"))
    load = ClientLoad(**data.pop("load"))
    return ReplayResult(records=records, load=load, notes=tuple(data.pop("notes")), **data)


_FIELDS = frozenset(f.name for f in fields(RoundRecord))


def _record(row: Mapping[str, object]) -> RoundRecord:
    unknown = set(row) - _FIELDS
    if unknown:
        raise ValueError(f"a record has unknown fields: {', '.join(sorted(unknown))}")
    values = dict(row)
    values["gaps_s"] = tuple(cast(Sequence[float], values["gaps_s"]))
    return RoundRecord(**values)  # type: ignore[arg-type]  # a JSON row that was written by save()
