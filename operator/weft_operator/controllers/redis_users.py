"""Make a Redis user for each service, make it again where Redis lost it, and delete it with the service.

The operator alone holds a URL with the right to do so. The names of the users that it made are in Redis itself, under a
key that no service's user may touch: only those are ever deleted, so that operators, and clusters, may share a Redis.
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
"""How soon users are back after a restart of a Redis that lost them; routers serve from memory meanwhile."""
REWRITE_S = 60.0
"""How soon a user is back that somebody deleted or changed, or that a server lost whose restart cannot be told."""
SWEEP_S = 600.0
"""How often it is looked for users of services that were deleted while no operator led."""
PAUSE_S = 10.0
"""After a failure no pass waits for Redis for so long; the poll goes on."""
AT_ONCE = 200
"""Users written with one request: a few milliseconds of Redis' time."""

RedisUserState = Literal["Unknown", "Made", "Refused"]
"""Whether Redis lets users be made: not known as long as it does not answer."""

_NO_COMMAND = ("unknown command", "unknown subcommand", "not supported", "not allowed", "disabled")
"""What servers and services say that have no ACL commands, or keep them for themselves."""
_STATES = ("OOM", "MISCONF", "BUSY", "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "TRYAGAIN")
"""What a message begins with that tells of the server's state and not of a right: it passes, and decides nothing."""

log = logging.getLogger(__name__)


class _RefusedError(RedisError):
    """Redis answered ACL SETUSER that it makes no users."""


class RedisUserStore(Protocol):
    """What passes ask of it."""

    refusal: str

    @property
    def state(self) -> RedisUserState:
        """Tell whether Redis lets users be made."""

    async def keep(self, service: ServiceKey, token: bytes) -> None:
        """Make the user of a service."""

    def leave(self, service: ServiceKey) -> None:
        """Look after the user no more."""

    def drop(self, service: ServiceKey) -> None:
        """Delete the user soon."""


class NoRedisUsers:
    """A store without users."""

    state: RedisUserState = "Unknown"
    refusal = ""

    async def keep(self, service: ServiceKey, token: bytes) -> None:
        """Make nothing."""

    def leave(self, service: ServiceKey) -> None:
        """Nothing was made."""

    def drop(self, service: ServiceKey) -> None:
        """Nothing was made."""


class RedisUsers:
    """Keeps the users of services; while Redis does not answer, what is to be done is remembered."""

    def __init__(
        self,
        url: str,
        *,
        owner: Callable[[], Awaitable[str]],
        is_there: Callable[[ServiceKey], Awaitable[bool]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Create it.

        ``owner`` returns what tells this operator from all others, also of other clusters ("": then none is recorded,
        and users of services that were deleted meanwhile stay); ``is_there`` tells whether a service exists. Both may
        raise ApiError.
        """
        self._redis = reader(url)
        self._owner = owner
        self._is_there = is_there
        self._sleep = sleep
        self._kept: dict[ServiceKey, RedisUser] = {}
        self._written: set[str] = set()
        """Names of users that are in Redis as far as is known."""
        self._deleted: set[str] = set()
        """Names of users that are to be deleted."""
        self._left: set[str] = set()
        """Names of users that are another operator's now."""
        self._record = ""
        """The key of the set of the users that this operator made."""
        self._greeting = True
        self._run_id: object = None
        self._answered: RedisUserState = "Unknown"
        self._again = 0.0
        self.refusal = ""
        """Why Redis refused to make users, in its own words."""

    @property
    def state(self) -> RedisUserState:
        """Tell whether Redis lets users be made."""
        return self._answered

    async def keep(self, service: ServiceKey, token: bytes) -> None:
        """Make the user of a service, now or as soon as Redis answers; nothing is asked when it is there."""
        user = redis_user(service, token)
        before = self._kept.get(service)
        if before is not None and before.name != user.name:
            self._deleted.add(before.name)
        self._kept[service] = user
        self._deleted.discard(user.name)
        self._left.discard(user.name)
        if user.name not in self._written and asyncio.get_running_loop().time() >= self._again:
            await self._tend()

    def leave(self, service: ServiceKey) -> None:
        """Look after the user of a service no more, which another operator does now."""
        user = self._kept.pop(service, None)
        if user is not None:
            self._left.add(user.name)
            self._written.discard(user.name)

    def drop(self, service: ServiceKey) -> None:
        """Delete the user of a service that is gone, soon."""
        user = self._kept.pop(service, None)
        if user is not None:
            self._deleted.add(user.name)
            self._written.discard(user.name)

    async def run(self) -> None:
        """Keep users until cancelled."""
        loop = asyncio.get_running_loop()
        rewrite = sweep = loop.time() + REWRITE_S
        while True:
            await self._sleep(POLL_S)
            if loop.time() >= rewrite:
                self._written.clear()
                rewrite = loop.time() + REWRITE_S
            await self._tend(poll=True)
            if loop.time() >= sweep:
                await self.sweep()
                sweep = loop.time() + SWEEP_S

    async def close(self) -> None:
        """Close the connections; the users stay."""
        await self._redis.aclose()

    async def sweep(self) -> None:
        """Delete the users that this operator made for services that are not there any more."""
        try:
            if not await self._recorded():
                return
            found = cast(set[bytes], await self._redis.smembers(self._record))
            kept = {user.name: service for service, user in self._kept.items()}
            for name in sorted({item.decode(errors="replace") for item in found} - kept.keys()):
                service = service_of(name)
                # One of a service that is kept is of a token before.
                if service is not None and (service in self._kept or await self._is_gone(service)):
                    self._deleted.add(name)
            await self._delete()
        except (RedisError, OSError) as error:
            log.info("redis_users_not_swept", extra={"error": repr(error)})

    async def _is_gone(self, service: ServiceKey) -> bool:
        try:
            return not await self._is_there(service)
        except ApiError:
            return False  # it may not be read, or not now

    async def _tend(self, *, poll: bool = False) -> None:
        """Write the users that Redis lacks and delete those that are to go; failures are logged and retried."""
        try:
            if poll:
                await self._look_for_a_restart()
            await self._write([user for user in self._kept.values() if user.name not in self._written])
            if self._answered == "Made":
                await self._delete()
        except (RedisError, OSError) as error:
            refused = isinstance(error, _RefusedError)
            self._again = asyncio.get_running_loop().time() + (REWRITE_S if refused else PAUSE_S)
            if refused and self._answered != "Refused":
                self._answered, self.refusal = "Refused", str(error)
                log.error("redis_users_refused", extra={"error": str(error)})
            elif not refused:
                log.info("redis_users_not_written", extra={"error": repr(error)})

    async def _look_for_a_restart(self) -> None:
        """Forget what was written where another server answers than before: it may have lost its users."""
        try:
            told = cast(dict[str, object], await self._redis.info("server"))
        except ResponseError:
            return  # it may not be asked; users are written again from time to time
        if told.get("run_id") != self._run_id:
            self._run_id = told.get("run_id")
            self._written.clear()

    async def _write(self, users: list[RedisUser]) -> None:
        if not users or (self._answered == "Refused" and asyncio.get_running_loop().time() < self._again):
            return
        await self._recorded()
        for start in range(0, len(users), AT_ONCE):
            part = users[start : start + AT_ONCE]
            try:
                await self._set(part)
            except ResponseError as error:
                if not self._greeting or "modifier" not in str(error):
                    raise
                self._greeting = False  # a server before 7.2
                await self._set(part)
            # One that was dropped meanwhile is deleted in a moment.
            self._written |= {user.name for user in part if self._kept.get(user.service) == user}
            await self._record_names([user.name for user in part])
        if self._answered != "Made":
            log.info("redis_users_made", extra={"users": len(users)})
        self._answered, self.refusal = "Made", ""
        await self._save()

    async def _set(self, users: Iterable[RedisUser]) -> None:
        async with self._redis.pipeline(transaction=False) as pipe:
            for user in users:
                pipe.execute_command("ACL SETUSER", user.name, *user.rules(greeting=self._greeting))
            # Raised here and not there, where the words would repeat the rules.
            for answer in await pipe.execute(raise_on_error=False):
                if isinstance(answer, Exception):
                    too_old = self._greeting and "modifier" in str(answer)
                    raise _RefusedError(str(answer)) if _is_refusal(answer) and not too_old else answer

    async def _record_names(self, names: list[str]) -> None:
        """Record users as this operator's. A full Redis takes no names, but users: it is tried again each minute."""
        if not self._record:
            return
        try:
            await self._redis.sadd(self._record, *names)
        except ResponseError as error:
            log.warning("redis_users_not_recorded", extra={"error": str(error)})

    async def _delete(self) -> None:
        kept = {user.name for user in self._kept.values()}
        gone, left = self._deleted - kept, self._left - kept
        if not gone and not left:
            return
        if gone:
            await self._redis.acl_deluser(*sorted(gone))
        if self._record:
            await self._redis.srem(self._record, *sorted(gone | left))
        self._deleted -= gone
        self._left -= left
        if gone:
            await self._save()

    async def _save(self) -> None:
        """Have the users in the file of a server that has one, so that they outlive its restart without an operator."""
        try:
            await self._redis.acl_save()
        except ResponseError as error:
            log.debug("redis_users_not_saved", extra={"error": str(error)})

    async def _recorded(self) -> bool:
        """Find out where the users are recorded that this operator made; tell whether they are."""
        if not self._record:
            try:
                owner = await self._owner()
            except ApiError:
                return False
            self._record = f"weft:users:{owner}" if owner else ""
        return bool(self._record)


def _is_refusal(answer: Exception) -> bool:
    """Tell whether an answer to ACL SETUSER says that this URL makes no users, whatever state the server is in."""
    if isinstance(answer, NoPermissionError):
        return True
    if not isinstance(answer, ResponseError) or isinstance(answer, OutOfMemoryError | ReadOnlyError | ClusterDownError):
        return False
    words = str(answer)
    return not words.startswith(_STATES) and any(word in words.lower() for word in _NO_COMMAND)
