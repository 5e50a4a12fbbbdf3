"""Decode batches of KV events, as vLLM and SGLang publish them; refuse what cannot be one.

A message has three frames: topic, number of the batch (8 bytes, big-endian), payload. The payload is MessagePack as
msgspec writes it: ``[time, events, data-parallel rank]``. Since version 0.24 vLLM writes each event as a map whose key
``type`` names it; before, and in SGLang, it is an array that begins with the name (vllm/distributed/kv_events.py,
sglang/srt/disaggregation/kv_events.py). Both are read, and fields that newer versions add are ignored.

Hashes of blocks are numbers or bytes; of bytes the last 8 count, as where vLLM makes numbers of them itself.
"""

from typing import Annotated, Any, Final, NamedTuple

import msgspec

from weft_core.kv_block_keys import extra_bytes, id_bytes

MAX_PAYLOAD: Final = 16 * 2**20
"""Bytes. A step of 128k tokens in blocks of 16 has about 1.5 MB of events."""
MAX_BLOCK_TOKENS: Final = 65_536
TIER_OF_MEDIUM: Final = {
    "GPU": 0, "CPU": 1, "CPU_PINNED": 1, "CPU_TIER1": 1, "STORAGE": 2, "DISK": 2, "CPU_TIER2": 2, "EXTERNAL": 3,
}  # fmt: skip
"""Tiers of weft_core.kv_index by the names that vLLM and SGLang have for them."""
REMOTE: Final = 3
_NAMES: Final = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})
_MASK: Final = 2**64 - 1

Hash = bytes | int
_Token = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOCK_TOKENS)]


class MalformedError(ValueError):
    """Report a message that is no batch of KV events; what it said is lost."""


class Stored(NamedTuple):
    """Blocks that follow one another in a tier, with the token ids of all; no ids: only their hashes are known."""

    tier: int | None
    """None: of a kind that is not known."""
    hashes: list[int]
    parent: int | None
    ids: bytes
    block_tokens: int
    extras: tuple[bytes, ...] | None
    """What else counts for the KV of each block; None: cannot be said of each."""
    group: int
    """Of layers that share blocks: a model with windows has several."""


class Removed(NamedTuple):
    """Blocks that left a tier."""

    tier: int | None
    hashes: list[int]
    group: int


class Cleared(NamedTuple):
    """The whole cache was dropped."""


Event = Stored | Removed | Cleared


class Batch(NamedTuple):
    """The events of one step of an engine, or of one of its ranks."""

    events: list[Event]
    rank: int | None
    unknown: int
    """Events of kinds that are not known."""


class _Batch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


class _Stored(msgspec.Struct, tag="BlockStored", gc=False):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[_Token]
    block_size: _Size
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    locality: str | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved", gc=False):
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    pass


class _StoredArray(msgspec.Struct, tag="BlockStored", array_like=True, gc=False):
    """``lora_name``: SGLang has metadata in its place, a map that may name the salt."""

    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[_Token]
    block_size: _Size
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | dict[str, Any] | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None


class _RemovedArray(msgspec.Struct, tag="BlockRemoved", array_like=True, gc=False):
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None


class _ClearedArray(msgspec.Struct, tag="AllBlocksCleared", array_like=True, gc=False):
    pass


_BATCH: Final = msgspec.msgpack.Decoder(_Batch)
_MAPS: Final = msgspec.msgpack.Decoder(_Stored | _Removed | _Cleared)
_ARRAYS: Final = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)


def decode(payload: bytes) -> Batch:
    """Return a payload's events.

    Raises:
        MalformedError: it is none, or has an event of a known kind that cannot be read.
    """
    if len(payload) > MAX_PAYLOAD:
        raise MalformedError(f"{len(payload)} bytes; at most {MAX_PAYLOAD} are read")
    try:
        batch = _BATCH.decode(payload)
        events = [_event(raw) for raw in batch.events]
    except (msgspec.MsgspecError, OverflowError, TypeError, UnicodeError, RecursionError) as error:
        raise MalformedError(str(error)[:200]) from error
    known = [event for event in events if event is not None]
    return Batch(known, batch.data_parallel_rank, len(events) - len(known))


def number_of(frame: bytes) -> int:
    """Return the number of a batch; -1 ends a replay.

    Raises:
        MalformedError: the frame has another length.
    """
    if len(frame) != 8:
        raise MalformedError(f"the number of a batch has 8 bytes, not {len(frame)}")
    return int.from_bytes(frame, "big", signed=True)


def _event(raw: msgspec.Raw) -> Event | None:
    """Return an event; None for one of an unknown kind."""
    first = memoryview(raw)[0]
    listed = 0x90 <= first <= 0x9F or first in (0xDC, 0xDD)
    try:
        found = _ARRAYS.decode(raw) if listed else _MAPS.decode(raw)
    except msgspec.ValidationError:
        name = _name(raw)
        if name in _NAMES or not isinstance(name, str):
            raise
        return None
    if isinstance(found, _Stored):
        tier = _tier(found.medium, found.locality)
        return _stored(found, tier, _extras(found.extra_keys, found.lora_name, len(found.block_hashes)))
    if isinstance(found, _StoredArray):
        name = found.lora_name
        if isinstance(name, dict):
            return _stored(found, _tier(found.medium, None), _salted(name, found.parent_block_hash is None))
        return _stored(found, _tier(found.medium, None), _extras(found.extra_keys, name, len(found.block_hashes)))
    if isinstance(found, _Removed):
        return Removed(_tier(found.medium, found.locality), _hashes(found.block_hashes), found.group_idx or 0)
    if isinstance(found, _RemovedArray):
        return Removed(_tier(found.medium, None), _hashes(found.block_hashes), found.group_idx or 0)
    return Cleared()


def _stored(found: _Stored | _StoredArray, tier: int | None, extras: tuple[bytes, ...] | None) -> Stored:
    parent = found.parent_block_hash
    return Stored(
        tier,
        _hashes(found.block_hashes),
        None if parent is None else _hash(parent),
        id_bytes(found.token_ids),
        found.block_size,
        extras,
        found.group_idx or 0,
    )


def _extras(keys: list[list[Any] | None] | None, adapter: str | None, blocks: int) -> tuple[bytes, ...] | None:
    """Return the extras of each block: as listed, else those of the adapter."""
    if keys is None:
        return (extra_bytes((adapter,)),) if adapter else ()
    if len(keys) != blocks:
        return None
    return () if not any(keys) else tuple(map(extra_bytes, keys))


def _salted(metadata: dict[str, Any], begins: bool) -> tuple[bytes, ...] | None:
    """Return the extras by SGLang's metadata: a salt counts in the first block; None where there is anything else."""
    salt = metadata.get("cache_salt")
    if not isinstance(salt, str | None) or metadata.keys() - {"cache_salt"}:
        return None
    return (extra_bytes((salt,)), b"") if salt and begins else ()


def _tier(medium: str | None, locality: str | None) -> int | None:
    if locality == "REMOTE":
        return REMOTE
    return 0 if medium is None else TIER_OF_MEDIUM.get(medium)


def _hashes(hashes: list[Hash]) -> list[int]:
    return list(map(_hash, hashes))


def _hash(value: Hash) -> int:
    return (value if isinstance(value, int) else int.from_bytes(value[-8:], "big")) & _MASK


def _name(raw: msgspec.Raw) -> object:
    """Return what an event calls itself."""
    body: Any = msgspec.msgpack.decode(raw)
    if isinstance(body, dict):
        return body.get("type")
    return body[0] if isinstance(body, list) and body else None
