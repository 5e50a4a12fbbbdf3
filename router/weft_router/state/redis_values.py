"""Read what a service keeps in Redis by plain commands, each value as far as it can be one.

No script: one that does not end stops Redis for all who share it.
"""

from collections.abc import Sequence
from typing import cast

import redis.asyncio as redis
from redis.exceptions import RedisError, ResponseError

from weft_core.heartbeat import MAX_NAME
from weft_core.records import MAX_MEMBERS, MAX_RECORD_BYTES, MAX_REPLY_BYTES

_PAGE = 1000
"""Names that are asked for at once."""
_AT_ONCE = MAX_REPLY_BYTES // MAX_RECORD_BYTES
"""Heartbeats that are asked for at once: their longest answer is MAX_REPLY_BYTES."""


def is_wrong_type(answer: object) -> bool:
    """Return whether another type of value is under a key than the command is for."""
    return isinstance(answer, ResponseError) and str(answer).startswith("WRONGTYPE")


async def read_values(client: redis.Redis, keys: Sequence[str | bytes], *, most: int) -> list[object]:
    """Return the values of keys, cut after one byte more than ``most``.

    b"" where there is none, None where another type is there.
    """
    async with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.getrange(cast(str, key), 0, most)  # bytes go as they are
        answers = cast(list[object], await pipe.execute(raise_on_error=False))
    return [None if is_wrong_type(answer) else _believed(answer) for answer in answers]


async def read_workers(client: redis.Redis, names: str, begin: str) -> list[object]:
    """Return what weft_core.records.READ_WORKERS does: the type under the key ``names``, then names and heartbeats.

    But names are whole, and an empty heartbeat is none. Few workers take two round trips.
    """
    async with client.pipeline(transaction=False) as pipe:
        pipe.type(names)
        pipe.sscan(names, 0, count=_PAGE)
        kind, page = cast(tuple[object, object], tuple(await pipe.execute(raise_on_error=False)))
    if _believed(kind) != b"set" or is_wrong_type(page):
        return [kind]
    # A page may repeat names of one before.
    listed: dict[bytes, None] = {}
    while True:
        cursor, found = cast(tuple[int, list[bytes]], _believed(page))
        listed.update(dict.fromkeys(found))
        if not cursor or len(listed) >= MAX_MEMBERS:
            break
        page = await client.sscan(names, cursor, count=_PAGE)
    whole = list(listed)[:MAX_MEMBERS]
    reply: list[object] = [kind]
    for name in whole:
        if len(name) > MAX_NAME:
            reply += [name, -2]
    workers = [name for name in whole if len(name) <= MAX_NAME]
    size = 0
    for start in range(0, len(workers), _AT_ONCE):
        part = workers[start : start + _AT_ONCE]
        values = await read_values(client, [begin.encode() + name for name in part], most=MAX_RECORD_BYTES)
        for name, value in zip(part, values, strict=True):
            length = len(value) if isinstance(value, bytes) else 0
            stored: object = -1 if value is None else value or None
            reply += [name, length if length > MAX_RECORD_BYTES else stored]
            size += length
        if size >= MAX_REPLY_BYTES:
            break
    return reply


def _believed(answer: object) -> object:
    if isinstance(answer, RedisError):
        raise answer
    return answer
