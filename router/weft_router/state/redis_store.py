"""Keep the shared state in Redis, under ``weft:{<namespace>/<service>}:`` so that a cluster keeps it together.

Redis is not trusted: whoever else can write there can make no record of this service (weft_core.records), and what is
not a record, or of another type, spoils itself alone.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from typing import cast

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError, WatchError

from weft_core.heartbeat import (
    DEMAND_EXPIRY_S,
    HEARTBEAT_EXPIRY_S,
    MAX_NAME,
    WorkerRecord,
    demand_key,
    key_prefix,
    worker_key,
    workers_key,
)
from weft_core.records import (
    MAX_VALUE_BYTES,
    Opened,
    open_heartbeats,
    open_value,
    seal_mark,
    seal_record,
    seal_value,
)
from weft_router.state.call_batcher import CallBatcher
from weft_router.state.redis_values import is_wrong_type, read_values, read_workers
from weft_router.state.store import Snapshot, StoreDownError

TIMEOUT_S = 0.5
"""A local Redis answers within a millisecond; beyond half a second the snapshot is the better answer."""
ABSENT_S = 2.0 * HEARTBEAT_EXPIRY_S
"""A name without a heartbeat for so long is taken off the list; a worker that is there lists itself again."""
MOST_REMOVED = 1000
"""Names that are taken off at once."""
Question = tuple[str, str, str, int]
"""A session, the worker it shall be bound to, the one that this may replace, and for how many seconds."""
_TRIES = 2
"""How often it is tried to replace a binding that others change at the same time."""
_REPLACED_AT_ONCE = 16
"""Bindings that are replaced at once: each takes a connection."""


class RedisStore:
    """The Store on Redis; one lost answer is one StoreDownError, never a wait."""

    def __init__(self, url: str, *, namespace: str, service: str, key: bytes) -> None:
        """``key`` authenticates all that is kept: weft_core.keys.derive(token, "state")."""
        self._namespace = namespace
        self._service = service
        self._key = key
        self._prefix = key_prefix(namespace, service)
        self._workers = workers_key(namespace, service)
        self._worker = partial(worker_key, namespace, service)
        self._demand = demand_key(namespace, service)
        self._opened: Opened = {}
        self._absent: dict[bytes, float] = {}
        """Listed names without a heartbeat to be believed, and since when."""
        self._redis = redis.Redis.from_url(
            url,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            max_connections=256,
        )
        self._binds: CallBatcher[Question, str] = CallBatcher(self._bind)

    async def heartbeat(self, record: WorkerRecord) -> None:
        """Publish a worker and list its name."""
        name = self._worker(record.worker)
        sealed = seal_record(record, key=self._key, name=name, now=time.time())
        async with self._errors():
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.set(name, sealed, ex=HEARTBEAT_EXPIRY_S)
                pipe.sadd(self._workers, record.worker)
                written, listed = cast(tuple[object, object], tuple(await pipe.execute(raise_on_error=False)))
            if isinstance(written, RedisError):
                raise written
            if isinstance(listed, ResponseError):  # something else is where the list should be
                await self._list_anew(record.worker)
            elif isinstance(listed, RedisError):
                raise listed

    async def _list_anew(self, *workers: str) -> None:
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.delete(self._workers)
            if workers:
                pipe.sadd(self._workers, *workers)
            await pipe.execute()

    async def withdraw(self, worker: str) -> None:
        """Remove a worker and its name."""
        async with self._errors(), self._redis.pipeline(transaction=False) as pipe:
            pipe.delete(self._worker(worker))
            pipe.srem(self._workers, worker)
            await pipe.execute(raise_on_error=False)

    async def snapshot(self) -> Snapshot:
        """Return all live heartbeats; the first reader of an empty store gives it a new epoch.

        Names that are listed without a heartbeat are taken off the list, and so is a list that is none.
        """
        async with self._errors():
            epoch = await self._epoch()
            reply = await read_workers(self._redis, self._workers, self._prefix + "worker:")
            found = open_heartbeats(
                reply,
                key=self._key,
                namespace=self._namespace,
                service=self._service,
                now=time.time(),
                opened=self._opened,
            )
            if found.kind not in ("set", "none"):
                await self._list_anew()
            if endless := [name for name, _ in found.refused if len(name) > MAX_NAME]:
                await self._redis.srem(self._workers, *endless[:MOST_REMOVED])
            await self._remove([*found.absent, *(name for name, _ in found.refused if len(name) <= MAX_NAME)])
        refused = [(name[:MAX_NAME].decode("ascii", "backslashreplace"), reason) for name, reason in found.refused]
        if found.kind not in ("set", "none"):
            refused.append(("", "type"))
        return Snapshot(tuple(found.records), epoch=epoch, refused=tuple(refused))

    async def _epoch(self) -> str:
        """Return the epoch. One that is gone between two commands was evicted or flushed: as good as a new one."""
        key, fresh = self._prefix + "epoch", secrets.token_hex(8)
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.set(key, fresh, nx=True)
            pipe.getrange(key, 0, len(fresh) - 1)
            _, found = cast(tuple[object, object], tuple(await pipe.execute(raise_on_error=False)))
        if isinstance(found, ResponseError):  # another type is there
            await self._redis.set(key, fresh)
        elif isinstance(found, RedisError):
            raise found
        return found.decode("ascii", "replace") if isinstance(found, bytes) and found else fresh

    async def _remove(self, names: list[bytes]) -> None:
        """Take off the list who has had no heartbeat to be believed for ABSENT_S."""
        now = monotonic()
        known, self._absent = self._absent, {}
        gone: list[bytes] = []
        for name in names:
            since = known.get(name, now)
            if now - since < ABSENT_S or len(gone) >= MOST_REMOVED:
                self._absent[name] = since
            else:
                gone.append(name)
        if gone:
            await self._redis.srem(self._workers, *gone)

    async def demand(self) -> None:
        """Say that requests wait for a worker."""
        async with self._errors():
            mark = seal_mark(key=self._key, name=self._demand, now=time.time())
            await self._redis.set(self._demand, mark, ex=DEMAND_EXPIRY_S)

    async def bind(self, session: str, worker: str, *, replaces: str, ttl_s: int) -> str:
        """Bind in one step, so that two coordinators agree on one owner."""
        return await self._binds.ask((session, worker, replaces, ttl_s)) or worker

    async def _bind(self, asked: list[Question]) -> list[str]:
        """Return the owners of sessions that were free, or bound to who is replaced, or else are another's.

        An owner that nobody who has the key wrote counts as none, and is replaced.
        """
        orders = [self._order(*one) for one in asked]
        async with self._errors():
            async with self._redis.pipeline(transaction=False) as pipe:
                for name, sealed, _, ttl_s in orders:
                    pipe.set(name, sealed, nx=True, get=True, ex=ttl_s)
                stored = cast(list[object], await pipe.execute(raise_on_error=False))
            owners = [self._owner(order, found) for order, found in zip(orders, stored, strict=True)]
            again = [i for i, owner in enumerate(owners) if owner is None]
            for start in range(0, len(again), _REPLACED_AT_ONCE):
                part = again[start : start + _REPLACED_AT_ONCE]
                replaced = await asyncio.gather(*(self._replace(orders[i]) for i in part))
                for i, owner in zip(part, replaced, strict=True):
                    owners[i] = owner
        return [owner or "" for owner in owners]

    def _order(self, session: str, worker: str, replaces: str, ttl_s: int) -> Question:
        """Return the key of a binding and what is, and may be, stored there."""
        name = self._prefix + "bind:" + session
        sealed = seal_value(worker, key=self._key, name=name)
        return name, sealed, seal_value(replaces, key=self._key, name=name) if replaces else "", ttl_s

    def _owner(self, order: Question, stored: object) -> str | None:
        """Return the owner of a session where this was stored before; None where that is to be replaced."""
        name, sealed, replaces, _ = order
        if isinstance(stored, RedisError) and not is_wrong_type(stored):
            raise stored
        if stored is None or stored == sealed.encode():
            return sealed.partition(" ")[0]
        if replaces and stored == replaces.encode():
            return None
        return open_value(stored, key=self._key, name=name)

    async def _replace(self, order: Question) -> str:
        """Replace what is to be replaced unless another one does at the same time, whose owner it is then."""
        name, sealed, _, ttl_s = order
        async with self._redis.pipeline() as pipe:
            for _ in range(_TRIES):
                await pipe.watch(name)
                try:
                    stored: object = await pipe.getrange(name, 0, MAX_VALUE_BYTES)
                except ResponseError as error:
                    stored = error
                owner = self._owner(order, stored)
                if owner is not None:
                    return owner
                pipe.multi()  # type: ignore[no-untyped-call]
                pipe.set(name, sealed, ex=ttl_s)
                try:
                    await pipe.execute()
                    break
                except WatchError:
                    continue
        # Where others change it all the time: this coordinator's own choice.
        return sealed.partition(" ")[0]

    async def bind_all(self, bindings: Sequence[tuple[str, str]], *, ttl_s: int) -> None:
        """Publish lost bindings in batches."""
        for start in range(0, len(bindings), 500):
            async with self._errors(), self._redis.pipeline(transaction=False) as pipe:
                for session, worker in bindings[start : start + 500]:
                    name = self._prefix + "bind:" + session
                    pipe.set(name, seal_value(worker, key=self._key, name=name), nx=True, ex=ttl_s)
                await pipe.execute()

    async def unbind(self, session: str) -> str | None:
        """Forget a binding."""
        name = self._prefix + "bind:" + session
        async with self._errors():
            async with self._redis.pipeline() as pipe:
                pipe.getrange(name, 0, MAX_VALUE_BYTES)
                pipe.delete(name)
                owner, gone = cast(tuple[object, object], tuple(await pipe.execute(raise_on_error=False)))
            for answer in (owner, gone):
                if isinstance(answer, RedisError) and not is_wrong_type(answer):
                    raise answer
        return open_value(owner, key=self._key, name=name)

    async def unbind_all(self, sessions: Sequence[str], heads: Sequence[str]) -> None:
        """Forget bindings and prefix hashes."""
        names = [self._prefix + "bind:" + session for session in sessions]
        names += [self._prefix + "head:" + head for head in heads]
        for start in range(0, len(names), 500):
            async with self._errors():
                await self._redis.unlink(*names[start : start + 500])

    async def sessions_of(self, heads: Sequence[str]) -> list[str | None]:
        """Return the session of each prefix hash."""
        if not heads:
            return []
        names = [self._prefix + "head:" + head for head in heads]
        async with self._errors():
            values = await read_values(self._redis, names, most=MAX_VALUE_BYTES)
        return [open_value(value, key=self._key, name=name) for name, value in zip(names, values, strict=True)]

    async def put_head(self, head: str, session: str, *, ttl_s: int) -> None:
        """Remember the session of a prefix hash."""
        name = self._prefix + "head:" + head
        async with self._errors():
            await self._redis.set(name, seal_value(session, key=self._key, name=name), ex=ttl_s)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        try:
            yield
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreDownError(str(error) or type(error).__name__) from error
