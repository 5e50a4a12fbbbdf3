"""The sub-reconciler of Redis users: a service's pods use a user of their own, or the operator's."""

from weft_operator.api.conditions import ConditionValue
from weft_operator.api.objects import ServiceKey
from weft_operator.controllers.context import ReconcileContext
from weft_operator.controllers.redis_users import RedisUserStore
from weft_operator.kube.observe import Observed
from weft_operator.render.identity import held_redis_url
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.redis_user import is_own
from weft_operator.settings import Settings
from weft_operator.status.events import shared_redis_events
from weft_operator.status.writer import StatusClient, record_events


class RedisAccess:
    """Ensures the Redis users of services; its only state is the services with an Event about a shared user."""

    def __init__(self, users: RedisUserStore, *, settings: Settings, cluster: StatusClient) -> None:
        self._users = users
        self._settings = settings
        self._cluster = cluster
        self._sharing: set[ServiceKey] = set()

    def is_shared(self, key: ServiceKey, observed: Observed) -> bool:
        """Return whether a service's pods use the operator's Redis user.

        While Redis does not answer, nothing changes: pods must not be restarted for a user that is refused later. A
        service never goes back from a user of its own to the operator's, which can access the keys of all services.
        """
        settings = self._settings
        if settings.redis_users != "auto":
            return settings.redis_users == "off"
        if self._users.state == "Made":
            return False
        held = held_redis_url(observed.named("Secret", f"{key.name}-token"))
        if self._users.state == "Unknown":
            return held == settings.redis_url
        return held is None or not is_own(held, key, at=settings.redis_url)

    async def reconcile(self, ctx: ReconcileContext, record: PlanRecord | None) -> None:
        """Create the Redis user of a service that has a plan, if Redis answers."""
        if record is None or self._settings.redis_users == "off":
            return
        await self._users.ensure(ctx.key, ctx.token)
        ctx.shares_redis_user = self.is_shared(ctx.key, ctx.observed)
        if ctx.shares_redis_user and ctx.key not in self._sharing:
            await record_events(self._cluster, ctx.key, ctx.service, shared_redis_events(self._users.refusal))
        (self._sharing.add if ctx.shares_redis_user else self._sharing.discard)(ctx.key)

    def refusal(self) -> ConditionValue | None:
        """Return the failure where services must have Redis users of their own and Redis refuses to create them."""
        if self._settings.redis_users != "required" or self._users.state != "Refused":
            return None
        words = f"Redis refuses a user for the service ({self._users.refusal})"
        return ConditionValue("False", "RedisUserRefused", words)

    def release(self, key: ServiceKey) -> None:
        """Leave the user of a service to another operator."""
        self._users.release(key)

    def delete(self, key: ServiceKey) -> None:
        """Delete the user of a deleted service."""
        self._users.delete(key)

    def forget(self, key: ServiceKey) -> None:
        """Drop the state of a service."""
        self._sharing.discard(key)
