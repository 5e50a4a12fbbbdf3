"""Create a Redis user for each service, create it again where Redis lost it, and delete it with the service.

Only the operator has a URL that may do so. The names of the users that it created are in Redis, under a key that no
service's user may access. Only those are ever deleted, so that operators, and clusters, can share a Redis.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal, Protocol, cast

from redis.exceptions import (
    ClusterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from weft_operator.api.objects import ServiceKey
from weft_operator.errors import ApiError
from weft_operator.metrics.redis_client import reader
from weft_operator.render.redis_user import RedisUser, redis_user, service_of

POLL_S = 2.0
"""Interval of checks for a restart of Redis, which loses users; routers serve from memory until they are back."""
REWRITE_S = 60.0
"""Interval of rewriting all users, for those that were deleted, changed, or lost in a restart that was not detected."""
SWEEP_S = 600.0
"""Interval of deleting the users of services that were deleted while no operator led."""
PAUSE_S = 10.0
"""After a failure passes do not wait for Redis for this time; polling goes on."""
AT_ONCE = 200
"""Users written with one request: a few milliseconds of Redis' time."""

RedisUserState = Literal["Unknown", "Made", "Refused"]
"""Whether Redis accepts users; Unknown while it does not answer."""

_NO_COMMAND = ("unknown command", "unknown subcommand", "not supported", "not allowed", "disabled")
"""Phrases in errors of servers without ACL commands, or whose provider disables them."""
_STATES = ("OOM", "MISCONF", "BUSY", "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "TRYAGAIN")
"""Prefixes of errors about the server's state, which is temporary, rather than about permissions."""

log = logging.getLogger(__name__)


class _RefusedError(RedisError):
    """Redis refused ACL SETUSER."""


class RedisUserStore(Protocol):
    """The Redis users of services, as passes use them."""

    refusal: str

    @property
    def state(self) -> RedisUserState:
        """Return whether Redis accepts users."""

    async def ensure(self, service: ServiceKey, token: bytes) -> None:
        """Create the user of a service."""

    def release(self, service: ServiceKey) -> None:
        """Leave the user to another operator."""

    def delete(self, service: ServiceKey) -> None:
        """Delete the user soon."""


class NoRedisUsers:
    """A store without users."""

    state: RedisUserState = "Unknown"
    refusal = ""

    async def ensure(self, service: ServiceKey, token: bytes) -> None:
        """Create nothing."""

    def release(self, service: ServiceKey) -> None:
        """Do nothing."""

    def delete(self, service: ServiceKey) -> None:
        """Do nothing."""


class RedisUsers:
    """Keeps the Redis users of services up to date; changes wait while Redis does not answer."""

    def __init__(
        self,
        url: str,
        *,
        owner: Callable[[], Awaitable[str]],
        exists: Callable[[ServiceKey], Awaitable[bool]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Create it.

        ``owner`` returns an id of this operator, unique among clusters ("": names are not recorded, and users of
        services that were deleted without an operator stay); ``exists`` tells whether a service exists. Both may raise
        ApiError.
        """
        self._redis = reader(url)
        self._owner = owner
        self._exists = exists
        self._sleep = sleep
        self._users: dict[ServiceKey, RedisUser] = {}
        self._written: set[str] = set()
        """Names of users that are in Redis, as far as is known."""
        self._deleted: set[str] = set()
        """Names of users that are to be deleted."""
        self._released: set[str] = set()
        """Names of users that another operator has now."""
        self._record = ""
        """The Redis key of the set of this operator's users."""
        self._with_greeting = True
        self._run_id: object = None
        self._state: RedisUserState = "Unknown"
        self._retry_at = 0.0
        self.refusal = ""
        """Redis' error, where it refused to create users."""

    @property
    def state(self) -> RedisUserState:
        """Return whether Redis accepts users."""
        return self._state

    async def ensure(self, service: ServiceKey, token: bytes) -> None:
        """Create the user of a service, now or as soon as Redis answers; known users cause no request."""
        user = redis_user(service, token)
        before = self._users.get(service)
        if before is not None and before.name != user.name:
            self._deleted.add(before.name)
        self._users[service] = user
        self._deleted.discard(user.name)
        self._released.discard(user.name)
        if user.name not in self._written and asyncio.get_running_loop().time() >= self._retry_at:
            await self._sync()

    def release(self, service: ServiceKey) -> None:
        """Leave the user of a service to another operator."""
        user = self._users.pop(service, None)
        if user is not None:
            self._released.add(user.name)
            self._written.discard(user.name)

    def delete(self, service: ServiceKey) -> None:
        """Delete the user of a deleted service soon."""
        user = self._users.pop(service, None)
        if user is not None:
            self._deleted.add(user.name)
            self._written.discard(user.name)

    async def run(self) -> None:
        """Keep the users up to date until cancelled."""
        loop = asyncio.get_running_loop()
        rewrite = sweep = loop.time() + REWRITE_S
        while True:
            await self._sleep(POLL_S)
            if loop.time() >= rewrite:
                self._written.clear()
                rewrite = loop.time() + REWRITE_S
            await self._sync(poll=True)
            # A connection that breaks at the moment of a cancellation can hide it; the task still knows of it.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError
            if loop.time() >= sweep:
                await self.sweep()
                sweep = loop.time() + SWEEP_S

    async def close(self) -> None:
        """Close the connections; the users stay."""
        await self._redis.aclose()

    async def sweep(self) -> None:
        """Delete this operator's users of services that no longer exist."""
        try:
            if not await self._recorded():
                return
            found = cast(set[bytes], await self._redis.smembers(self._record))
            kept = {user.name: service for service, user in self._users.items()}
            for name in sorted({item.decode(errors="replace") for item in found} - kept.keys()):
                service = service_of(name)
                # A second user of a known service is of an earlier token.
                if service is not None and (service in self._users or await self._is_gone(service)):
                    self._deleted.add(name)
            await self._delete()
        except (RedisError, OSError) as error:
            log.info("redis_users_not_swept", extra={"error": repr(error)})

    async def _is_gone(self, service: ServiceKey) -> bool:
        try:
            return not await self._exists(service)
        except ApiError:
            return False  # not known

    async def _sync(self, *, poll: bool = False) -> None:
        """Write the users that Redis lacks and delete others; failures are logged and retried."""
        try:
            if poll:
                await self._check_restart()
            await self._write([user for user in self._users.values() if user.name not in self._written])
            if self._state == "Made":
                await self._delete()
        except (RedisError, OSError) as error:
            refused = isinstance(error, _RefusedError)
            self._retry_at = asyncio.get_running_loop().time() + (REWRITE_S if refused else PAUSE_S)
            if refused and self._state != "Refused":
                self._state, self.refusal = "Refused", str(error)
                log.error("redis_users_refused", extra={"error": str(error)})
            elif not refused:
                log.info("redis_users_not_written", extra={"error": repr(error)})

    async def _check_restart(self) -> None:
        """Mark all users as unwritten after a restart of the server, which may have lost them."""
        try:
            info = cast(dict[str, object], await self._redis.info("server"))
        except ResponseError:
            return  # INFO is not permitted; users are rewritten from time to time
        if info.get("run_id") != self._run_id:
            self._run_id = info.get("run_id")
            self._written.clear()

    async def _write(self, users: list[RedisUser]) -> None:
        if not users or (self._state == "Refused" and asyncio.get_running_loop().time() < self._retry_at):
            return
        await self._recorded()
        for start in range(0, len(users), AT_ONCE):
            part = users[start : start + AT_ONCE]
            try:
                await self._set(part)
            except ResponseError as error:
                if not self._with_greeting or "modifier" not in str(error):
                    raise
                self._with_greeting = False  # a server before 7.2
                await self._set(part)
            # A user that was deleted meanwhile is removed in the next sync.
            self._written |= {user.name for user in part if self._users.get(user.service) == user}
            await self._record_names([user.name for user in part])
        if self._state != "Made":
            log.info("redis_users_made", extra={"users": len(users)})
        self._state, self.refusal = "Made", ""
        await self._save()

    async def _set(self, users: Iterable[RedisUser]) -> None:
        async with self._redis.pipeline(transaction=False) as pipe:
            for user in users:
                pipe.execute_command("ACL SETUSER", user.name, *user.rules(greeting=self._with_greeting))
            # Raised here: the client's own error would contain the rules, and with them the password.
            for answer in await pipe.execute(raise_on_error=False):
                if isinstance(answer, Exception):
                    too_old = self._with_greeting and "modifier" in str(answer)
                    raise _RefusedError(str(answer)) if _is_refusal(answer) and not too_old else answer

    async def _record_names(self, names: list[str]) -> None:
        """Record users as this operator's; a full Redis accepts users but no names, so this is retried each minute."""
        if not self._record:
            return
        try:
            await self._redis.sadd(self._record, *names)
        except ResponseError as error:
            log.warning("redis_users_not_recorded", extra={"error": str(error)})

    async def _delete(self) -> None:
        kept = {user.name for user in self._users.values()}
        gone, left = self._deleted - kept, self._released - kept
        if not gone and not left:
            return
        if gone:
            await self._redis.acl_deluser(*sorted(gone))
        if self._record:
            await self._redis.srem(self._record, *sorted(gone | left))
        self._deleted -= gone
        self._released -= left
        if gone:
            await self._save()

    async def _save(self) -> None:
        """Save the users to the server's ACL file, if it has one, so that they survive its restart."""
        try:
            await self._redis.acl_save()
        except ResponseError as error:
            log.debug("redis_users_not_saved", extra={"error": str(error)})

    async def _recorded(self) -> bool:
        """Find the key under which this operator's users are recorded; return whether there is one."""
        if not self._record:
            try:
                owner = await self._owner()
            except ApiError:
                return False
            self._record = f"weft:users:{owner}" if owner else ""
        return bool(self._record)


def _is_refusal(answer: Exception) -> bool:
    """Return whether an answer to ACL SETUSER is a permanent refusal, not a temporary state of the server."""
    if isinstance(answer, NoPermissionError):
        return True
    if not isinstance(answer, ResponseError) or isinstance(answer, OutOfMemoryError | ReadOnlyError | ClusterDownError):
        return False
    words = str(answer)
    return not words.startswith(_STATES) and any(word in words.lower() for word in _NO_COMMAND)
