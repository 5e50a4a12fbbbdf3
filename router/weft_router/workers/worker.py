"""One worker as the other processes see it: its engine's watch, its prefill queue, its heartbeat."""

from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import TYPE_CHECKING

import orjson

from weft_core.heartbeat import WorkerRecord
from weft_core.layouts import Role, WorkerRole
from weft_core.parallelism import batches_of, parallelism_of
from weft_core.worker_roles import has_duty
from weft_router.background import Background
from weft_router.config import RouterConfig, Settings
from weft_router.engines.adapter import port_of
from weft_router.engines.catalogue import adapter_of
from weft_router.engines.watch import STALLED, Engine
from weft_router.errors import SHUTTING_DOWN, WORKER_LOST
from weft_router.http.pool import ConnectionPool
from weft_router.limits.quarantine import Quarantine
from weft_router.openai.inference import Inference
from weft_router.state.heartbeat import Heartbeat
from weft_router.state.kv_paths import KvPaths, Prove
from weft_router.state.registry import Registry
from weft_router.state.store import Store
from weft_router.telemetry.metrics import Metrics
from weft_router.workers.adapters import AdapterLoader
from weft_router.workers.batch import DecodeBatch
from weft_router.workers.kv_disk_watch import KvDiskWatch
from weft_router.workers.prefill_queue import PrefillQueue, queue_rule

if TYPE_CHECKING:
    from weft_router.kv_events.engine_cache import EngineCache

ENGINE_KEEPALIVE_S = 3.0
"""vLLM's server drops idle connections after 5 s; ours end first."""
NOT_THE_ENGINE = frozenset({SHUTTING_DOWN, WORKER_LOST, STALLED, "closed", "reply-too-large"})
"""How a leg may end that is not counted against its engine: this process ended it, or it is counted already."""

NO_REMOTE_PREFILLS = "this worker does not accept remote prefills: its role is decode"
Describe = Callable[[WorkerRecord], WorkerRecord]


_NO_SIBLINGS: Mapping[str, "Worker"] = {}


class LiveRounds:
    """A counter of the rounds in progress, used as a context manager."""

    __slots__ = ("count", "quiet_since")

    def __init__(self) -> None:
        self.count = 0
        self.quiet_since = monotonic()
        """When the last one left."""

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if not self.count:
            self.quiet_since = monotonic()


class Worker:
    """An engine and what this process knows of it."""

    def __init__(
        self, settings: Settings, *, store: Store, registry: Registry, engines: ConnectionPool, metrics: Metrics,
        siblings: Mapping[str, "Worker"] = _NO_SIBLINGS,
    ) -> None:  # fmt: skip
        """Watch an engine; ``siblings`` are the workers of this process, by name."""
        self.settings = settings
        self.name = settings.worker
        self._registry = registry
        self._background = Background()
        self._describe: list[Describe] = []
        self.role: WorkerRole = role_of(settings)
        """The role in force."""
        self.leaving = False
        """Whether it hands over its sessions, as it is to have a role without them."""
        self.draining = False
        """Whether it hands over all that it has, as its process ends."""
        self.live = LiveRounds()
        """Counts a round, or a prefill for another worker, as long as it is served here."""
        self.batch = DecodeBatch()
        """The rounds that its engine decodes now."""
        self.kv_intake = 0
        """Tokens whose KV came into the engine's cache since this process began, computed or read."""
        self._siblings = siblings
        self.heartbeat = Heartbeat(store, self.record)
        self._quarantine = Quarantine(settings.token, settings.config.limits.quarantine_seconds)
        routing = settings.config.routing
        adapter = adapter_of(settings.config)
        self.engine = Engine(
            engines, settings.engine_url, on_change=self._engine_changed, may_rest=self._replaceable,
            keeps_resting=self._keeps_resting, probe=("/v1/completions", _probe(settings)),
            on_rest=lambda reason: metrics.ejections.labels(self.role, reason).inc(),
            on_back=lambda: metrics.readmissions.labels(self.role).inc(), gaps=self.batch.gaps, gauges=adapter.gauges,
            plugin_page=adapter.plugin_page, proof=settings.engine_proof, ranks=parallelism_of(settings.degree).dp,
        )  # fmt: skip
        self.adapters = AdapterLoader(self.engine, settings.config, metrics=metrics, on_change=self.heartbeat.hurry)
        """Loads the engine's LoRA adapters."""
        self.kv_cache = _kv_cache(settings, metrics)
        """What its engine's KV events say; None where it sends none."""
        self.disk = KvDiskWatch(
            engines, settings.kv_disk_port, serves=lambda: self.engine.healthy, metrics=metrics.kv_disk,
            on_change=self.heartbeat.hurry, forget=None if self.kv_cache is None else self.kv_cache.forget_files,
        )  # fmt: skip
        self.paths = KvPaths(
            settings.kv_port, self._meets, serves=lambda: self.engine.healthy,
            proves=lambda: has_duty(self.role, "decode"), proven_again_s=settings.config.engine.proof_seconds,
        )  # fmt: skip
        self.queue = PrefillQueue(
            profile=settings.profile,
            degree=settings.degree,
            concurrency=routing.prefill_concurrency * batches_of(settings.degree),
            limit=routing.prefill_queue_limit,
            rule=queue_rule(settings.config),
            ttft_slo=settings.config.slo.ttft,
            batch=self.batch if has_duty(self.role, "decode") else None,
        )

    def reload(self, config: RouterConfig) -> None:
        """Apply another configuration's queue order and adapters; waiting prefills keep their arrival times."""
        self.queue.reload(queue_rule(config))
        self.adapters.reload(config)

    def describe(self, more: Describe) -> None:
        """Let ``more`` add to what the heartbeat says."""
        self._describe.append(more)

    @property
    def kv_capacity(self) -> int:
        """Return the tokens of KV the engine holds: its own figure, else the profile's."""
        return self.engine.load.capacity_tokens or self.settings.kv_capacity_tokens

    @property
    def kv_used(self) -> int:
        """Return the tokens of KV in use, by the engine's own gauge."""
        return round(self.engine.load.kv_usage * self.kv_capacity)

    def count_intake(self, tokens: int) -> None:
        """Count tokens whose KV came into the engine's cache."""
        self.kv_intake += tokens

    async def keeps_kv(self, until: float) -> bool:
        """Return whether the engine keeps KV that was promised to readers ``until`` then, on the monotonic clock.

        Its own gauge says so while nothing runs: a cached prefix that nobody was promised counts as free. An engine
        without that gauge is believed to keep everything until then, one that is gone keeps nothing.
        """
        if monotonic() >= until or not await self.engine.weigh():
            return False
        load = self.engine.load
        return load.kv_usage > 0 or not load.tells_usage

    def record(self, seq: int) -> WorkerRecord:
        """Return this worker's heartbeat."""
        s = self.settings
        record = WorkerRecord(
            worker=s.worker,
            role=self.role,
            url=s.url,
            degree=s.degree,
            capacity=self.kv_capacity,
            pool=s.pool,
            revision=s.revision,
            node=s.node,
            instance_id=s.instance_id,
            seq=seq,
            ready=self.engine.healthy and self.adapters.settled,
            draining=self.draining or self.leaving,
            queue=self.queue.entries(),
            slowdown=self.queue.slowdown,
            kv_used=self.kv_used,
            live_rounds=self.live.count,
            kv_tokens=self.kv_used,
            idle_seconds=0.0 if self.live.count else monotonic() - self.live.quiet_since,
            engine_port=port_of(s.engine_url),
            engine_plugin=self.engine.plugin_word,
            engine_version=self.engine.version,
            quarantined=self._quarantine.entries(),
            kv_intake=self.kv_intake,
        )
        for more in (self.paths.describe, self.adapters.describe, self.disk.describe, *self._describe):
            record = more(record)
        return record if self.kv_cache is None else self.kv_cache.describe(record)

    def ready(self) -> str | None:
        """Return None when the engine is healthy and others can know of it."""
        if not self.engine.healthy:
            return "the engine is not healthy"
        if not self.adapters.settled:
            return "the engine loads adapters"
        return None if self.heartbeat.written else "no heartbeat was written yet"

    async def start(self, prove: Prove | None = None) -> None:
        """Start polling the engine, the heartbeat, and trying the KV paths; ``prove`` carries KV over one."""
        await self.engine.poll()
        self._background.start(self.engine.run(), self.heartbeat.run(), self.paths.run(prove))
        self._background.start(self.adapters.run(), self.disk.run())
        if self.kv_cache is not None:
            self._background.start(self.kv_cache.run())

    async def stop(self) -> None:
        """End background work and leave the list of workers."""
        await self._background.stop()

    def hold_back(self, tenant: str, inference: Inference) -> None:
        """Tell all coordinators of a request that ended an engine."""
        self._quarantine.add(tenant, inference)
        self.heartbeat.hurry()

    def doubt(self, tenant: str, inference: Inference, death: str) -> None:
        """Report a request under which an engine died for an unknown reason to all coordinators."""
        self._quarantine.doubt(tenant, inference, death)
        self.heartbeat.hurry()

    @property
    def takes_rounds(self) -> bool:
        """Return whether rounds may begin here."""
        return has_duty(self.role, "decode") and not self.leaving and not self.draining

    @property
    def sends_sessions(self) -> bool:
        """Return whether sessions go on elsewhere: no round may begin here, or the engine serves none."""
        return not self.takes_rounds or not self.engine.healthy

    @property
    def takes_prefills(self) -> bool:
        """Return whether prefills for other workers may begin here."""
        return has_duty(self.role, "prefill") and not self.draining

    def set_role(self, role: WorkerRole, *, leaving: bool) -> None:
        """Take a role, or begin to leave one, and announce it at once.

        Without the duty to prefill nothing of it waits here: another worker serves it sooner.
        """
        self.role = role
        self.leaving = leaving
        if has_duty(role, "decode"):
            # It stays when the role is left: rounds that are not over decode on beside prefills.
            self.queue.batch = self.batch
        if not has_duty(role, "prefill"):
            self.queue.reject_remote(NO_REMOTE_PREFILLS)
        self.heartbeat.hurry()

    def drain(self) -> None:
        """Announce that this worker takes nothing new, and send away the prefills of others that wait."""
        self.draining = self.engine.deaths.leaves = True
        self.queue.reject_remote("this worker is draining")
        self.heartbeat.hurry()

    def _engine_changed(self) -> None:
        if self.kv_cache is not None and not self.engine.healthy:
            self.kv_cache.lost()
        self.adapters.wake()
        self.heartbeat.hurry()

    def _replaceable(self) -> bool:
        """Return whether this worker may be taken out of use: at most half of its pool may be.

        The only prefill worker may, too: its rounds are prefilled by decode workers then.
        """
        others = [r for r in self._pool() if r.worker != self.name]
        if not others:
            return self.role == "prefill" and bool(self._registry.ready("decode"))
        out = sum(not self._in_use(record) for record in others)
        return 2 * (out + 1) <= len(others) + 1

    def _keeps_resting(self) -> bool:
        """Return whether this worker stays out of use: several may have decided so at the same time, and half may."""
        pool = self._pool()
        resting = sorted({r.worker for r in pool if not self._in_use(r)} | {self.name})
        return len(pool) <= 1 or self.name in resting[: len(pool) // 2]

    def _in_use(self, record: WorkerRecord) -> bool:
        """Return whether a worker of the pool is used: one of this process tells sooner than its heartbeat."""
        sibling = self._siblings.get(record.worker)
        return record.ready if sibling is None else sibling.engine.healthy

    def _meets(self) -> list[WorkerRecord]:
        """Return the ready workers whose engines this one's reads KV from."""
        found: dict[str, WorkerRecord] = {}
        if has_duty(self.role, "decode"):
            found.update((r.worker, r) for r in self._registry.ready("prefill"))
        if has_duty(self.role, "prefill"):
            found.update((r.worker, r) for r in self._registry.ready("decode"))
        return [r for r in found.values() if r.revision == self.settings.revision and r.worker != self.name]

    def _pool(self) -> list[WorkerRecord]:
        """Return the workers of its pool that do what it does."""
        pool = self.settings.pool
        duty: Role = "prefill" if self.role == "prefill" else "decode"
        return [r for r in self._registry.known(duty) if r.pool == pool and not r.draining]


def role_of(settings: Settings) -> WorkerRole:
    """Return the role that a worker starts with.

    Raises:
        ValueError: the process is no worker.
    """
    role = settings.role
    if role == "coordinator" or role == "standalone" or role == "epp":
        raise ValueError(f"{role}: not the role of a worker")
    return role


def _kv_cache(settings: Settings, metrics: Metrics) -> "EngineCache | None":
    if not settings.kv_events_port:
        return None
    from weft_router.kv_events.engine_cache import EngineCache  # ZeroMQ, which other processes need not load

    return EngineCache(port=settings.kv_events_port, ranks=parallelism_of(settings.degree).dp, metrics=metrics)


def count_plugins(metrics: Metrics, workers: Iterable[Worker]) -> None:
    """Count the engines with the plug-in, those without, and those for which it is unknown."""
    found = [worker.engine.plugin for worker in workers if worker.engine.has_plugin_page]
    for state, known in (("active", True), ("absent", False), ("unknown", None)):
        metrics.engine_plugins.labels(state).set(sum(one is known for one in found))


def count_adapters(metrics: Metrics, workers: Iterable[Worker]) -> None:
    """Count the adapters that engines have, and those that they still are to load."""
    found = [worker.adapters.count() for worker in workers]
    for place, state in enumerate(("loaded", "missing")):
        metrics.adapters.labels(state).set(sum(counts[place] for counts in found))


def _probe(settings: Settings) -> bytes:
    return orjson.dumps({"model": settings.config.model.name, "prompt": "a", "max_tokens": 1})
