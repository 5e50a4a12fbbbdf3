"""Keep the shared state in Redis, under ``weft:{<namespace>/<service>}:`` so that a cluster keeps it together."""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import orjson
import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from weft_core.heartbeat import (
    DEMAND_EXPIRY_S,
    HEARTBEAT_EXPIRY_S,
    WorkerRecord,
    demand_key,
    key_prefix,
    read_fields,
    worker_key,
    workers_key,
)
from weft_router.state.gathered import Asked, Gathered
from weft_router.state.store import Question, Snapshot, StoreDownError

TIMEOUT_S = 0.5
"""A local Redis answers within a millisecond; beyond half a second the snapshot is the better answer."""

_BIND = """
local owners = {}
local asked = cjson.decode(ARGV[1])
for i, key in ipairs(KEYS) do
  local worker, replaces = asked[3 * i - 2], asked[3 * i - 1]
  local owner = redis.call('GET', key)
  if not owner or owner == replaces then
    redis.call('SET', key, worker, 'EX', asked[3 * i])
    owner = worker
  end
  owners[i] = owner
end
return cjson.encode(owners)
"""
"""Binds several sessions, each in one step. Workers and owners come as one text: the client handles lists by item."""


class RedisStore:
    """The Store on Redis; one lost answer is one StoreDownError, never a wait."""

    remote = True

    def __init__(self, url: str, *, namespace: str, service: str) -> None:
        self._prefix = key_prefix(namespace, service)
        self._workers = workers_key(namespace, service)
        self._worker = partial(worker_key, namespace, service)
        self._demand = demand_key(namespace, service)
        self._redis = redis.Redis.from_url(
            url,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            max_connections=256,
        )
        self._script = self._redis.register_script(_BIND)
        self._binds: Gathered[Question, str] = Gathered(self._bind)

    async def heartbeat(self, record: WorkerRecord) -> None:
        """Publish a worker and list its name."""
        async with self._errors(), self._redis.pipeline(transaction=False) as pipe:
            pipe.set(self._worker(record.worker), orjson.dumps(record.fields()), ex=HEARTBEAT_EXPIRY_S)
            pipe.sadd(self._workers, record.worker)
            await pipe.execute()

    async def withdraw(self, worker: str) -> None:
        """Remove a worker and its name."""
        async with self._errors(), self._redis.pipeline(transaction=False) as pipe:
            pipe.delete(self._worker(worker))
            pipe.srem(self._workers, worker)
            await pipe.execute()

    async def snapshot(self) -> Snapshot:
        """Return all live heartbeats; the first reader of an empty store gives it a new epoch."""
        fresh = secrets.token_hex(8)
        async with self._errors():
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.set(self._prefix + "epoch", fresh, nx=True)
                pipe.get(self._prefix + "epoch")
                pipe.smembers(self._workers)
                _, epoch, names = cast(tuple[object, bytes | None, set[bytes]], tuple(await pipe.execute()))
            keys = [self._worker(name.decode()) for name in sorted(names)]
            values = cast(list[bytes | None], await self._redis.mget(keys)) if keys else []
        records = (_read(value) for value in values if value is not None)
        # An epoch gone between the two commands was evicted or flushed: as good as a new one.
        found = epoch.decode() if epoch is not None else fresh
        return Snapshot(tuple(record for record in records if record is not None), epoch=found)

    async def demand(self) -> None:
        """Say that requests wait for a worker."""
        async with self._errors():
            await self._redis.set(self._demand, b"1", ex=DEMAND_EXPIRY_S)

    async def bind(self, session: str, worker: str, *, replaces: str, ttl_s: int) -> str:
        """Bind in one step, so that two coordinators agree on one owner."""
        asked = self._binds.put((session, worker, replaces, ttl_s))
        await asked
        return asked.found or worker

    def bind_soon(self, session: str, worker: str, *, ttl_s: int) -> Asked[Question, str]:
        """Begin to bind a session."""
        return self._binds.put((session, worker, "", ttl_s))

    async def _bind(self, asked: list[Question]) -> list[str]:
        """Return the owners of sessions that were free, or bound to who is replaced, or else are another's."""
        prefix = self._prefix + "bind:"
        keys, rest = [prefix + one[0] for one in asked], orjson.dumps([arg for one in asked for arg in one[1:]])
        async with self._errors():
            owners = await self._script(keys=keys, args=[rest])
        return cast(list[str], orjson.loads(cast(bytes, owners)))

    async def bind_all(self, bindings: Sequence[tuple[str, str]], *, ttl_s: int) -> None:
        """Publish lost bindings in batches."""
        for start in range(0, len(bindings), 500):
            async with self._errors(), self._redis.pipeline(transaction=False) as pipe:
                for session, worker in bindings[start : start + 500]:
                    pipe.set(self._prefix + "bind:" + session, worker, nx=True, ex=ttl_s)
                await pipe.execute()

    async def unbind(self, session: str) -> str | None:
        """Forget a binding."""
        async with self._errors():
            owner = await self._redis.getdel(self._prefix + "bind:" + session)
        return None if owner is None else cast(bytes, owner).decode()

    async def sessions_of(self, heads: Sequence[str]) -> list[str | None]:
        """Return the session of each prefix hash."""
        if not heads:
            return []
        async with self._errors():
            values = await self._redis.mget([self._prefix + "head:" + head for head in heads])
        return [value.decode() if value is not None else None for value in cast(list[bytes | None], values)]

    async def put_head(self, head: str, session: str, *, ttl_s: int) -> None:
        """Remember the session of a prefix hash."""
        async with self._errors():
            await self._redis.set(self._prefix + "head:" + head, session, ex=ttl_s)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        try:
            yield
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreDownError(str(error) or type(error).__name__) from error


def _read(raw: bytes) -> WorkerRecord | None:
    try:
        return read_fields(orjson.loads(raw))
    except orjson.JSONDecodeError:
        return None
