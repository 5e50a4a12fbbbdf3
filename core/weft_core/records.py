"""Authenticate what a service keeps in Redis: a party that can only write there cannot forge a record.

A value is authenticated together with the key it is stored under. Copied to another key, of the same service or of
another one, it is refused.
"""

import hmac
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from weft_core.heartbeat import MAX_NAME, WorkerRecord, is_worker_name, read_fields, worker_key
from weft_core.keys import MAC_BYTES

MAX_RECORD_BYTES: Final = 256 * 2**10
"""A heartbeat with its longest queue (heartbeat.MAX_QUEUE) has less; what is longer is not read."""
MAX_VALUE_BYTES: Final = 1024
"""Of any other value: a binding, a head, a mark."""
MAX_MEMBERS: Final = 10_000
"""Names of workers that are read from a service's set; more than that are no workers."""
MAX_SKEW_S: Final = 60.0
"""How far a record's time may be from the reader's clock: clocks of the nodes have to agree to a minute."""

MAX_REPLY_BYTES: Final = 64 * 2**20
"""Of all heartbeats that are read at once."""

READ_WORKERS: Final = f"""
local kind = redis.call('TYPE', KEYS[1])['ok']
local found, names, bytes, cursor = {{kind}}, 0, 0, '0'
if kind ~= 'set' then return found end
repeat
  local page = redis.call('SSCAN', KEYS[1], cursor, 'COUNT', 1000)
  cursor = page[1]
  for _, name in ipairs(page[2]) do
    if names < {MAX_MEMBERS} and bytes < {MAX_REPLY_BYTES} then
      names = names + 1
      if #name > {MAX_NAME} then
        found[2 * names] = string.sub(name, 1, {MAX_NAME + 1})
        found[2 * names + 1] = -2
      else
        local key = ARGV[1] .. name
        local size = redis.pcall('STRLEN', key)
        found[2 * names] = name
        if type(size) == 'table' then
          found[2 * names + 1] = -1
        elseif size > {MAX_RECORD_BYTES} then
          found[2 * names + 1] = size
        else
          found[2 * names + 1] = redis.call('GET', key)
          bytes = bytes + size
        end
      end
    end
  end
until cursor == '0' or names >= {MAX_MEMBERS}
return found
"""
"""Reads all heartbeats of a service; changes nothing. The key is that of the set of names, the argument what keys of
heartbeats begin with. Returns the type of that key, then for each name the name and the heartbeat: nothing where there
is none, or a number where it is no text (-1), the name is no worker's (-2) or the heartbeat is so many bytes long."""

Refusal = Literal["key", "type", "size", "mac", "fields", "name", "time", "replay"]
"""Why a record is refused.

key: its name cannot be a worker's. type: another kind of value is under its key. size: it is too long. mac: nobody who
has the service's token made it for this key. fields: a field cannot be read. name: it is another worker's. time: its
writer's clock is more than MAX_SKEW_S away, or it is old. replay: a later one of the same worker was seen.
"""

_MAC = re.compile(rb"[0-9a-f]{64}")
_HEX: Final = 2 * MAC_BYTES
_VALUE = re.compile(rb"[!-~]+")


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """What is stored of a service's workers; names are as they were read."""

    records: list[WorkerRecord] = field(default_factory=list)
    refused: list[tuple[bytes, Refusal]] = field(default_factory=list)
    absent: list[bytes] = field(default_factory=list)
    """Listed workers without a heartbeat."""
    kind: str = "set"
    """The type of what is under the key of the set of names; ``none`` while there is nothing."""


class RecordRefusedError(Exception):
    """Report a stored record that is not to be believed; ``reason`` says why."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason)
        self.reason: Refusal = reason


def seal_record(record: WorkerRecord, *, key: bytes, name: str, now: float) -> bytes:
    """Return a heartbeat as it is stored under the Redis key ``name``; ``now`` is Unix time, ``key`` that of state."""
    body = json.dumps({**record.fields(), "time": now}, separators=(",", ":"), allow_nan=False).encode()
    return _full_mac(key, name, body) + b" " + body


def open_record(stored: object, *, key: bytes, name: str, worker: str, now: float) -> tuple[WorkerRecord, float]:
    """Return the heartbeat that ``worker`` stored under the Redis key ``name``, and its time.

    Raises:
        RecordRefusedError: it is not to be believed.
    """
    if not isinstance(stored, bytes):
        raise RecordRefusedError("type")
    if len(stored) > MAX_RECORD_BYTES:
        raise RecordRefusedError("size")
    mac, space, body = stored[:64], stored[64:65], stored[65:]
    if space != b" " or not _MAC.fullmatch(mac) or not hmac.compare_digest(mac, _full_mac(key, name, body)):
        raise RecordRefusedError("mac")
    try:
        fields: object = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RecordRefusedError("fields") from error
    record = read_fields(fields)
    if record is None:
        raise RecordRefusedError("fields")
    if record.worker != worker:
        raise RecordRefusedError("name")
    time = cast(dict[str, object], fields).get("time")
    if not fresh(time, now):
        raise RecordRefusedError("time")
    return record, float(cast(float, time))


Opened = dict[bytes, tuple[bytes, WorkerRecord, float]]
"""By name what was stored there last, the record that it is, and the record's time."""


def open_heartbeats(
    reply: object, *, key: bytes, namespace: str, service: str, now: float, opened: Opened | None = None
) -> Heartbeats:
    """Return what READ_WORKERS found, each record by itself: one that is refused spoils no other.

    ``opened`` is what the same reader opened before; a record that is there again is not opened again.
    """
    items = cast(Sequence[object], reply)
    kind = items[0].decode("ascii", "replace") if isinstance(items[0], bytes) else str(items[0])
    found = Heartbeats(kind=kind)
    # The last value is missing where it would be nothing.
    values = [*items[1:], None] if len(items) % 2 == 0 else items[1:]
    before = {} if opened is None else opened.copy()
    if opened is not None:
        opened.clear()
    for raw, stored in zip(values[::2], values[1::2], strict=True):
        name = raw if isinstance(raw, bytes) else b""
        known = before.get(name)
        if known is not None and known[0] == stored and fresh(known[2], now):
            if opened is not None:
                opened[name] = known
            found.records.append(known[1])
            continue
        worker = name.decode("utf-8", "replace")
        if not is_worker_name(worker):
            found.refused.append((name, "key"))
        elif stored is None:
            found.absent.append(name)
        elif isinstance(stored, int):
            found.refused.append((name, "type" if stored == -1 else "size"))
        else:
            try:
                place = worker_key(namespace, service, worker)
                record, time = open_record(stored, key=key, name=place, worker=worker, now=now)
                found.records.append(record)
                if opened is not None and isinstance(stored, bytes):
                    opened[name] = stored, record, time
            except RecordRefusedError as error:
                found.refused.append((name, error.reason))
    return found


def fresh(time: object, now: float) -> bool:
    """Return whether a time that a record gives is near enough to the reader's clock; both are Unix time."""
    if not isinstance(time, int | float) or isinstance(time, bool):
        return False
    return abs(time) < 2**53 and math.isfinite(time) and abs(time - now) <= MAX_SKEW_S


def seal_value(value: str, *, key: bytes, name: str) -> str:
    """Return a short value, printable ASCII without spaces, as it is stored under the Redis key ``name``."""
    return f"{value} {_short_mac(key, name, value.encode())}"


def open_value(stored: object, *, key: bytes, name: str) -> str | None:
    """Return a short value that was stored under the Redis key ``name``; None where it is not to be believed."""
    if not isinstance(stored, bytes) or len(stored) > MAX_VALUE_BYTES:
        return None
    value, space, mac = stored.rpartition(b" ")
    if not space or len(mac) != _HEX or not _VALUE.fullmatch(value):
        return None
    if not hmac.compare_digest(mac, _short_mac(key, name, value).encode()):
        return None
    return value.decode("ascii")


def seal_mark(*, key: bytes, name: str, now: float) -> str:
    """Return a mark that says no more than when it was made, for the Redis key ``name``."""
    return seal_value(str(int(now)), key=key, name=name)


def mark_holds(stored: object, *, key: bytes, name: str, now: float) -> bool:
    """Return whether a stored mark is to be believed, and no older than MAX_SKEW_S."""
    value = open_value(stored, key=key, name=name)
    return value is not None and value.isdecimal() and len(value) <= 15 and fresh(int(value), now)


def _full_mac(key: bytes, name: str, body: bytes) -> bytes:
    return hmac.digest(key, name.encode() + b"\0" + body, "sha256").hex().encode()


def _short_mac(key: bytes, name: str, value: bytes) -> str:
    return hmac.digest(key, name.encode() + b"\0" + value, "sha256")[:MAC_BYTES].hex()
