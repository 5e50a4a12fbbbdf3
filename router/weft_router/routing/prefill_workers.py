"""Tell which workers may prefill for one decode worker, and how busy they are."""

from collections.abc import Callable, Mapping

from weft_core.heartbeat import WorkerRecord
from weft_core.layouts import WorkerRole
from weft_core.policies.snapshot import NOTHING, PrefillTask, PrefillWorkerView
from weft_router.config import CanaryConfig, Settings
from weft_router.engines.handles import KvHandle
from weft_router.routing.canary import Canary
from weft_router.routing.in_flight_prefills import InFlightPrefills
from weft_router.routing.prefix_cache_ages import PrefixCacheAges
from weft_router.sessions.session import CachedPrompt
from weft_router.state.registry import Registry

_NOBODY: list[WorkerRecord] = []


class PrefillWorkers:
    """The prefill workers of one decode worker.

    They are ready, of its revision, and their KV can be read by its engine; beside a canary they are of its own side.
    A worker with the role ``both`` is among those of others, never among its own: for itself it prefills locally.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        registry: Registry,
        in_flight: InFlightPrefills,
        closed: Callable[[], frozenset[str]],
        role: Callable[[], WorkerRole],
    ) -> None:
        """Look for them in the registry.

        ``closed`` names those whose KV its engine has no way to; ``role`` is the decode worker's role in force.
        """
        self.in_flight = in_flight
        self.revision = settings.revision
        self._registry = registry
        self._closed = closed
        self._name = settings.worker
        self._prefill: list[WorkerRecord] = _NOBODY
        self._without: frozenset[str] = frozenset()
        self._ages = PrefixCacheAges()
        self._found: list[WorkerRecord] = []
        self._some_decode = False
        self._canary = Canary(settings.config.routing.canary)
        self._place = settings.degree, settings.pool, settings.revision
        self._role = role
        self._profile_of = settings.profile_of

    def reload(self, canary: CanaryConfig | None) -> None:
        """Apply another canary from the next round on."""
        self._canary = Canary(canary)
        self._prefill = _NOBODY

    def ready(self) -> list[WorkerRecord]:
        """Return those that may be given work now: the same list as long as nothing changed."""
        prefill = self._registry.ready("prefill")
        closed = self._closed()
        # As long as nothing changed, the same objects.
        if prefill is not self._prefill or closed is not self._without:
            self._prefill, self._without = prefill, closed
            self._ages.observe(self._registry.known("prefill"))
            found = [record for record in prefill if record.worker != self._name]
            found = self._canary.prefill_for(found, mine=self._canary.names(self._role(), *self._place))
            mine = (r for r in found if r.revision == self.revision and r.worker not in closed)
            self._found = [r for r in mine if r.degree in self._profile_of(r.pool).degrees]
            self._some_decode = any(record.has_duty("decode") for record in self._found)
        return self._found

    def cached(self, prompts: Mapping[str, CachedPrompt]) -> Mapping[str, int]:
        """Return, of a session's prompts, the tokens that workers must still have in their prefix caches."""
        if not prompts:
            return NOTHING
        self.ready()
        return self._ages.cached(prompts)

    def with_room(self, tokens: int, handle: KvHandle | None = None, *, adapter: str = "") -> list[WorkerRecord]:
        """Return those that could hold ``tokens``, and can read the KV of a handle, where there is one.

        The worker that holds the KV cannot read it from itself. ``adapter``: the version of one that they must have.
        """
        found = self.ready()
        if handle is not None and handle.holder:
            found = [record for record in found if record.worker != handle.holder]
        if adapter:
            found = [record for record in found if record.has_adapter(adapter)]
        return self.in_flight.with_room(found, tokens) if self._some_decode else found

    def origin(self, worker: str, *, adapter: str = "") -> WorkerRecord | None:
        """Return the worker that a session left, if it can prefill the session's next round; whatever its role is."""
        record = self._registry.reachable(worker)
        if record is None or not record.ready or record.revision != self.revision or worker in self._closed():
            return None
        return record if record.has_adapter(adapter) else None

    def views(self, task: PrefillTask, adapter: str = "") -> tuple[PrefillWorkerView, ...]:
        """Return those that could hold a task's KV and have its adapter, as policies see them."""
        return self.in_flight.views(self.with_room(task.history + task.increment, adapter=adapter))

    def least_queued(
        self, tried: set[str], task: PrefillTask, handle: KvHandle | None = None, *, adapter: str = ""
    ) -> str | None:
        """Return the one with the shortest queue besides those that were tried.

        It can hold and read a task's KV, and has its adapter.
        """
        found = self.with_room(task.history + task.increment, handle, adapter=adapter)
        views = [self.in_flight.view(r) for r in found if r.worker not in tried]
        best = min(views, key=lambda view: (view.queued, view.worker), default=None)
        return best.worker if best is not None else None
