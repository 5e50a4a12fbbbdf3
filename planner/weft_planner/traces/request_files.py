"""Request files: one call a line with arrival, input and output tokens, and perhaps prefix-block hashes.

Read as calls of sessions of one round each. ``link`` puts calls together whose blocks continue an earlier call's:
that is an inference, and the trace says so.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from weft_planner.traces.fields import LineError, Row, required_seconds, tokens
from weft_planner.traces.records import Round, Session

BLOCK = 512
"""Tokens of one block hash in Mooncake's traces."""

KEYS: tuple[tuple[str, str, str], ...] = (
    ("arrival_s", "input", "decode"),
    ("timestamp", "input_length", "output_length"),
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
)
"""Names of arrival, input and output: as kept here (seconds), Mooncake's own (milliseconds), Azure's own (dates)."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One model call; ``blocks`` are the ids of its prompt's blocks, each of which stands for all up to it."""

    arrival_s: float
    input_tokens: int
    decode_tokens: int
    blocks: tuple[int, ...] = ()


def call_of(row: Row) -> ModelCall:
    """Return the call of one line.

    Raises:
        LineError: a field is missing or wrong.
    """
    when, sent, written = next((keys for keys in KEYS if keys[1] in row), KEYS[0])
    return ModelCall(
        arrival_s=_arrival(row, when),
        input_tokens=tokens(row, sent),
        decode_tokens=tokens(row, written),
        blocks=_blocks(row),
    )


def _arrival(row: Row, name: str) -> float:
    if name == "timestamp":
        return required_seconds(row, name, per_second=1000)
    if name == "TIMESTAMP":
        try:
            return datetime.fromisoformat(str(row.get(name))).timestamp()
        except (ValueError, OverflowError) as error:
            raise LineError(name, f"must be a date and time, not {row.get(name)!r}") from error
    return required_seconds(row, name)


def _blocks(row: Row) -> tuple[int, ...]:
    value = row.get("hash_ids")
    if value is None:
        return ()
    if not isinstance(value, list) or any(not isinstance(x, int) or isinstance(x, bool) for x in value):
        raise LineError("hash_ids", "must be a list of whole numbers")
    return tuple(value)


def single_rounds(calls: Sequence[ModelCall]) -> tuple[Session, ...]:
    """Return every call as a session of its own, in order of arrival."""
    ordered = sorted(enumerate(calls), key=lambda item: (item[1].arrival_s, item[0]))
    first = ordered[0][1].arrival_s if ordered else 0.0
    return tuple(
        Session(
            name=f"request-{k}",
            rounds=(Round(call.input_tokens, call.decode_tokens, gap_s=0.0),),
            arrival_s=call.arrival_s - first,
        )
        for k, call in ordered
    )


def shared_prefix(calls: Sequence[ModelCall]) -> int:
    """Return the tokens of the leading blocks that at least half of all calls have in common."""
    counts: Counter[tuple[int, int]] = Counter(
        (k, block) for call in calls for k, block in enumerate(call.blocks[: call.input_tokens // BLOCK])
    )
    shared = [k for (k, _), count in counts.items() if 2 * count >= len(calls) > 1]
    return BLOCK * (max(shared) + 1) if shared else 0


def linked(calls: Sequence[ModelCall]) -> tuple[Session, ...]:
    """Put calls into sessions: a call continues the latest one whose whole prompt its own begins with.

    Only full blocks can be compared. A call of which nothing but the shared prefix is known continues none, and
    so does one that is shorter than the other's prompt and answer; of two that continue the same call the earlier does.
    """
    common = shared_prefix(calls) // BLOCK
    order = sorted(range(len(calls)), key=lambda k: (calls[k].arrival_s, k))
    ends: dict[tuple[int, int], int] = {}
    chains: dict[int, list[int]] = {}
    for k in order:
        call = calls[k]
        parent = _parent(call, calls, ends, common)
        chain = chains.pop(parent) if parent is not None else []
        chains[k] = [*chain, k]
        full = min(call.input_tokens // BLOCK, len(call.blocks))
        if full > common:
            ends[full, call.blocks[full - 1]] = k
    first = calls[order[0]].arrival_s if order else 0.0
    listed = sorted(chains.values(), key=lambda chain: (calls[chain[0]].arrival_s, chain[0]))
    return tuple(_session([calls[k] for k in chain], name=f"linked-{chain[0]}", zero=first) for chain in listed)


def _parent(call: ModelCall, calls: Sequence[ModelCall], ends: dict[tuple[int, int], int], common: int) -> int | None:
    for size in range(min(call.input_tokens // BLOCK, len(call.blocks)), common, -1):
        key = (size, call.blocks[size - 1])
        earlier = ends.get(key)
        if earlier is None:
            continue
        before = calls[earlier]
        if before.arrival_s < call.arrival_s and before.input_tokens + before.decode_tokens < call.input_tokens:
            del ends[key]
            return earlier
        return None
    return None


def _session(chain: Sequence[ModelCall], *, name: str, zero: float) -> Session:
    rounds = [Round(chain[0].input_tokens, chain[0].decode_tokens, gap_s=0.0)]
    for before, call in pairwise(chain):
        added = call.input_tokens - before.input_tokens - before.decode_tokens
        interval = call.arrival_s - before.arrival_s
        rounds.append(Round(added, call.decode_tokens, gap_s=None, interval_s=interval))
    return Session(name=name, rounds=tuple(rounds), arrival_s=chain[0].arrival_s - zero)


def is_request(row: Mapping[str, object]) -> bool:
    """Return whether a line is a call of a request file."""
    return any(set(keys[1:]) <= row.keys() for keys in KEYS)
