"""Tell which workers may prefill for one decode worker, and how busy they are."""

from collections.abc import Callable, Mapping

from weft_core.heartbeat import WorkerRecord
from weft_core.policies.snapshot import NOTHING, PrefillTask, PrefillWorkerView
from weft_router.config import CanaryConfig, Settings
from weft_router.routing.canary import Canary
from weft_router.routing.in_flight_prefills import InFlightPrefills, workers_with_capacity
from weft_router.routing.prefix_cache_ages import PrefixCacheAges
from weft_router.sessions.session import CachedPrompt
from weft_router.state.registry import Registry

_NOBODY: list[WorkerRecord] = []


class PrefillWorkers:
    """The prefill workers of one decode worker.

    They are ready, of its revision, and their KV can be read by its engine; beside a canary they are of its own side.
    In a symmetric service the other decode workers are among them.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        registry: Registry,
        in_flight: InFlightPrefills,
        closed: Callable[[], frozenset[str]],
    ) -> None:
        """Look for them in the registry; ``closed`` names those whose KV its engine has no way to."""
        self.in_flight = in_flight
        self.revision = settings.revision
        self._registry = registry
        self._closed = closed
        self._name = settings.worker
        self._prefill: list[WorkerRecord] = _NOBODY
        self._decode: list[WorkerRecord] = _NOBODY
        self._without: frozenset[str] = frozenset()
        self._ages = PrefixCacheAges()
        self._found: list[WorkerRecord] = []
        self._symmetric = settings.config.routing.symmetric
        self._canary = Canary(settings.config.routing.canary)
        self._place = settings.degree, settings.pool, settings.revision
        self._profile_of = settings.profile_of

    def reload(self, canary: CanaryConfig | None) -> None:
        """Apply another canary from the next round on."""
        self._canary = Canary(canary)
        self._prefill = self._decode = _NOBODY

    def ready(self) -> list[WorkerRecord]:
        """Return those that may be given work now: the same list as long as nothing changed."""
        prefill = self._registry.ready("prefill")
        decode = self._registry.ready("decode") if self._symmetric else _NOBODY
        closed = self._closed()
        # As long as nothing changed, the same objects.
        if prefill is not self._prefill or decode is not self._decode or closed is not self._without:
            self._prefill, self._decode, self._without = prefill, decode, closed
            self._ages.observe(
                self._registry.known("prefill") + (self._registry.known("decode") if self._symmetric else [])
            )
            found = prefill + [record for record in decode if record.worker != self._name]
            found = self._canary.prefill_for(found, mine=self._canary.names("decode", *self._place))
            mine = (r for r in found if r.revision == self.revision and r.worker not in closed)
            self._found = [r for r in mine if r.degree in self._profile_of(r.pool).degrees]
        return self._found

    def cached(self, prompts: Mapping[str, CachedPrompt]) -> Mapping[str, int]:
        """Return, of a session's prompts, the tokens that workers must still have in their prefix caches."""
        if not prompts:
            return NOTHING
        self.ready()
        return self._ages.cached(prompts)

    def views(self, task: PrefillTask) -> tuple[PrefillWorkerView, ...]:
        """Return those that could hold a task's KV, as policies see them."""
        found = self.ready()
        if self._symmetric:
            found = workers_with_capacity(found, tokens=task.history + task.increment)
        return self.in_flight.views(found)

    def least_queued(self, tried: set[str]) -> str | None:
        """Return the one with the shortest queue besides those that were tried."""
        views = [self.in_flight.view(r) for r in self.ready() if r.worker not in tried]
        best = min(views, key=lambda view: (view.queued, view.worker), default=None)
        return best.worker if best is not None else None
