"""Load a service's LoRA adapters into one engine while it runs, and unload those that the service no longer has.

The engine is asked which adapters it has, so that one that started again gets them again. An adapter from another
source is another adapter: rounds of the old one finish first, and no KV is shared (``AdapterConfig.version``).
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from time import monotonic
from typing import Final

import orjson

from weft_core.adapters import adapter_name
from weft_core.heartbeat import WorkerRecord
from weft_router.background import guarded
from weft_router.config import AdapterConfig, RouterConfig
from weft_router.engines.watch import Engine
from weft_router.errors import UnavailableError, UpstreamFailedError
from weft_router.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

MODELS: Final = "/v1/models"
LOAD: Final = "/v1/load_lora_adapter"
UNLOAD: Final = "/v1/unload_lora_adapter"
"""vLLM's, where VLLM_ALLOW_RUNTIME_LORA_UPDATING is set."""
PERIOD_S = 1.0
LOAD_S = 600.0
"""An engine downloads an adapter of the hub before it answers."""
RETRY_S = 5.0
LONGEST_RETRY_S = 60.0
MAX_WORDS = 240
"""Characters of what an engine said, for logs and heartbeats."""


def changes(
    wanted: Mapping[str, str], loaded: Mapping[str, str], in_use: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return the names of adapters to unload, and then to load; both mappings have the source of each by name.

    What is in use is not unloaded. One that comes from another source is unloaded first, and loaded once it is gone.
    """
    unload = [name for name, source in loaded.items() if wanted.get(name) != source and name not in in_use]
    return unload, [name for name in wanted if name not in loaded or name in unload]


class AdapterLoader:
    """The adapters of one worker's engine."""

    def __init__(
        self, engine: Engine, config: RouterConfig, *, metrics: Metrics, on_change: Callable[[], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:  # fmt: skip
        """Manage the engine's adapters; ``on_change`` is called when heartbeats are to report a change."""
        self._engine = engine
        self._static = frozenset(config.model.adapters)
        self._metrics = metrics
        self._on_change = on_change
        self._clock = clock
        self._wake = asyncio.Event()
        self._wanted: dict[str, AdapterConfig] | None = None
        self._loaded: dict[str, str] = {}
        self._uses: Counter[str] = Counter()
        self._faults: dict[str, str] = {}
        self._retries: dict[str, tuple[float, float]] = {}
        """By version: when to try it again, and after how many seconds then."""
        self._reported: tuple[frozenset[str], tuple[tuple[str, str], ...]] = (frozenset(), ())
        """What rounds and heartbeats go by: the versions that are loaded, and what the engine said of others."""
        self.settled = False
        """Whether each adapter was tried since the engine started; until then its worker is not ready."""
        self.reload(config)

    def reload(self, config: RouterConfig) -> None:
        """Apply another configuration's adapters."""
        self._wanted = None if config.adapters is None else {one.name: one for one in config.adapters}
        if self._wanted is None:
            self.settled = True
        self._publish()
        self.wake()

    def wake(self) -> None:
        """Look at the engine now: it may have started again."""
        self._wake.set()

    def acquire(self, version: str) -> None:
        """Keep an adapter loaded until it is released; nothing stands for none.

        Raises:
            UnavailableError: the engine does not have it now.
        """
        if not version:
            return
        name = adapter_name(version)
        if version not in self._reported[0]:
            raise UnavailableError(f"this worker has not loaded the adapter {name!r}", retryable=True)
        self._uses[name] += 1

    def release(self, version: str) -> None:
        """Let an adapter go that a round or a prefill used."""
        if not version:
            return
        name = adapter_name(version)
        self._uses[name] -= 1
        if not self._uses[name]:
            del self._uses[name]

    def describe(self, record: WorkerRecord) -> WorkerRecord:
        """Add the adapters to a heartbeat."""
        if self._wanted is None:
            return record
        versions, faults = self._reported
        return replace(record, adapters=tuple(sorted(versions)), adapter_faults=faults)

    async def run(self) -> None:
        """Keep the engine's adapters as they are to be, until cancelled."""
        while True:
            await guarded(self.update)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._wake.wait()
            self._wake.clear()

    async def update(self) -> None:
        """Load and unload what is due once."""
        if self._wanted is None:
            return
        if not self._engine.healthy:
            self._forget()
            return
        page = await self._engine.page(MODELS)
        if page is None:
            return
        self._loaded = {name: source for name, source in adapters_of(page).items() if name not in self._static}
        self._publish()
        sources = {name: one.source for name, one in self._wanted.items()}
        unload, load = changes(sources, self._loaded, self._uses)
        for name in unload:
            if name not in self._uses:  # a round may have started meanwhile
                await self._unload(name)
        for name in load:
            if name not in self._loaded and (one := self._wanted.get(name)) is not None and self._due(one.version):
                await self._load(one)
        if not self.settled:
            self.settled = True
            self._on_change()

    def _forget(self) -> None:
        """Have no adapters: what answers next may be another engine, which is to load them all."""
        self._loaded, self._retries, self.settled = {}, {}, False
        self._publish()

    def _due(self, version: str) -> bool:
        return self._clock() >= self._retries.get(version, (0.0, 0.0))[0]

    async def _load(self, one: AdapterConfig) -> None:
        body = orjson.dumps({"lora_name": one.name, "lora_path": one.source})
        self._engine.pause_watch()
        try:
            words = await self._ask(LOAD, body)
        finally:
            self._engine.resume_watch()
        if words:
            self._failed(one, words)
            return
        self._loaded[one.name] = one.source
        self._retries.pop(one.version, None)
        self._metrics.adapter_changes.labels("loaded").inc()
        log.info("adapter_loaded", extra={"adapter": one.name, "source": one.source})
        self._publish()

    def _failed(self, one: AdapterConfig, words: str) -> None:
        """Report what the engine said, and try again later."""
        after = min(LONGEST_RETRY_S, 2 * self._retries.get(one.version, (0.0, RETRY_S / 2))[1])
        self._retries[one.version] = self._clock() + after, after
        self._metrics.adapter_changes.labels("failed").inc()
        log.error("adapter_not_loaded", extra={"adapter": one.name, "source": one.source, "error": words})
        self._faults[one.version] = words
        self._publish()

    async def _unload(self, name: str) -> None:
        source = self._loaded.pop(name)  # from now on no round gets it
        self._publish()
        words = await self._ask(UNLOAD, orjson.dumps({"lora_name": name}))
        if words:
            self._loaded[name] = source
            log.warning("adapter_not_unloaded", extra={"adapter": name, "error": words})
            return
        self._metrics.adapter_changes.labels("unloaded").inc()
        log.info("adapter_unloaded", extra={"adapter": name, "source": source})

    async def _ask(self, path: str, body: bytes) -> str:
        """Return nothing where the engine did what it was asked for, else why not, in its own words."""
        try:
            status, answer = await self._engine.ask(path, body, first_s=LOAD_S)
        except UpstreamFailedError as error:
            return f"the engine did not answer ({error.reason})"
        return "" if status == 200 else words_of(answer, status)

    def _publish(self) -> None:
        """Bring up to date what rounds and heartbeats go by."""
        wanted = self._wanted or {}
        loaded = frozenset(one.version for name, one in wanted.items() if self._loaded.get(name) == one.source)
        missing = {one.version for one in wanted.values()} - loaded
        self._faults = {version: words for version, words in self._faults.items() if version in missing}
        reported = loaded, tuple(self._faults.items())
        if reported != self._reported:
            self._reported = reported
            self._on_change()

    def count(self) -> tuple[int, int]:
        """Return how many adapters are loaded, and how many are still to be."""
        loaded = len(self._reported[0])
        return loaded, len(self._wanted or {}) - loaded


def adapters_of(page: bytes) -> dict[str, str]:
    """Return the adapters in an engine's list of models, each with its source: what has a model as its parent."""
    try:
        listed = orjson.loads(page)["data"]
        return {str(one["id"]): str(one.get("root")) for one in listed if one.get("parent") is not None}
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return {}


def words_of(answer: bytes, status: int) -> str:
    """Return what an engine's refusal says."""
    try:
        body = orjson.loads(answer)
        body = body.get("error", body)
        message = body.get("message")
    except (orjson.JSONDecodeError, AttributeError):
        message = None
    words = message if isinstance(message, str) and message else f"status {status}"
    return words[:MAX_WORDS]
