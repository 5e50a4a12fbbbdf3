"""Bind each round's session to a decode worker: the bound one while it is usable, else a new choice.

A new choice is limited to the session's side of a canary and made by ``PrefixAwarePlacement``.
"""

from collections.abc import Callable, Collection, Sequence

from weft_core.cost import CostProfile
from weft_core.heartbeat import WorkerRecord
from weft_router.config import RouterConfig
from weft_router.errors import UnavailableError
from weft_router.openai.answers import adapter_missing, not_ready
from weft_router.openai.tokens import START_CHARS_PER_TOKEN
from weft_router.routing.canary import Canary
from weft_router.routing.prefix_placement import PrefixAwarePlacement, bindings_of
from weft_router.routing.prefix_worth import PrefixWorth
from weft_router.sessions.round_request import RoundRequest
from weft_router.state.bindings import Bindings
from weft_router.state.registry import Registry
from weft_router.telemetry.metrics import Metrics

EXPECTED_OUTPUT = 256
"""Tokens of KV reserved for the answer when the client gives no limit."""
MAX_CHOICES = 5
"""Choices for one round, because a chosen worker may fail before the round reaches it."""


class SessionPlacer:
    """Chooses the decode worker of each round's session."""

    def __init__(
        self, config: RouterConfig, *, registry: Registry, bindings: Bindings, profile_of: Callable[[str], CostProfile]
    ) -> None:
        """Place sessions on workers of ``registry``; ``profile_of`` is the cost profile of a pool."""
        self._registry = registry
        self._bindings = bindings
        worth = PrefixWorth(profile_of, config.engine.tier_speeds())
        self._placement = PrefixAwarePlacement(
            bindings_of(config),
            ttl_s=config.routing.session_ttl_seconds,
            worth=worth,
            min_hit_ratio=config.routing.min_cache_hit_ratio,
        )
        self._canary = Canary(config.routing.canary)
        self._records: Sequence[WorkerRecord] = ()
        self._chars_per_token = START_CHARS_PER_TOKEN

    def reload(self, config: RouterConfig) -> None:
        """Apply another configuration."""
        self._placement.reload(bindings_of(config), min_hit_ratio=config.routing.min_cache_hit_ratio)
        self._canary = Canary(config.routing.canary)

    def update_workers(self) -> None:
        """Drop prefix records of workers that restarted or are gone."""
        self._placement.update_workers(self._registry.known("decode"))

    def observe(self, metrics: Metrics) -> None:
        """Bring the gauge of what prefix caches are known by up to date."""
        ready = self._registry.ready("decode") if self._placement.reads_prompts else ()
        by_events = sum(record.kv_prefixes is not None for record in ready)
        metrics.prefix_sources.labels("events").set(by_events)
        metrics.prefix_sources.labels("estimate").set(len(ready) - by_events)

    async def place(self, request: RoundRequest, tried: Collection[str]) -> str | None:
        """Return the worker that is to serve a round, bound to its session from now on; None where none can."""
        for _ in range(MAX_CHOICES):
            worker = await self._choose(request, tried)
            # While the store was read, another round's failure may have taken the worker out of use. Without another
            # try, all sessions that chose it at that moment would get an error that no worker is ready.
            if worker is None or self._registry.get(worker, "decode") is not None:
                return worker
        return None

    def served(self, request: RoundRequest, prompt_tokens: int) -> None:
        """Remember the prefill worker of a round that was served."""
        if request.prefilled_by and prompt_tokens:
            self._bindings.note_prefill(request.session, request.prefilled_by, prompt_tokens)

    def not_ready(self, request: RoundRequest) -> UnavailableError:
        """Return the refusal of a round that no decode worker can serve now."""
        inference = request.inference
        ready = self._registry.ready("decode")
        if not ready or any(record.has_adapter(inference.version) for record in ready):
            return not_ready("decode worker")
        refused = any(name == inference.version for record in ready for name, _ in record.adapter_faults)
        return adapter_missing(inference.adapter, refused=refused)

    def _usable(self, worker: str, version: str) -> WorkerRecord | None:
        """Return a worker that may serve rounds of an adapter, or of the model itself, now."""
        record = self._registry.get(worker, "decode")
        return record if record is not None and record.has_adapter(version) else None

    async def _choose(self, request: RoundRequest, tried: Collection[str]) -> str | None:
        registry = self._registry
        placement, inference = self._placement, request.inference
        version = inference.version
        bound = self._bindings.bound(request.session)
        if bound is not None and bound not in tried and (record := self._usable(bound, version)) is not None:
            if placement.reads_prompts:
                placement.record_prompt(
                    bound,
                    inference,
                    request.prompt_history,
                    tenant=request.scope,
                    chars_per_token=record.chars_per_token,
                )
            return bound
        previous = self._bindings.peek(request.session)
        ready = registry.ready("decode")
        if version:
            ready = [record for record in ready if record.has_adapter(version)]
        records = self._canary.decode_for(
            request.session,
            ready,
            before=None if previous is None else registry.reachable(previous),
            known=previous is not None or request.inference.follows,
            avoid=tried,
        )
        chars_per_token = self._chars_per_token_of(records)
        prompt = inference.exact_tokens or int(inference.chars / chars_per_token)
        needed_kv = prompt + (inference.max_tokens or EXPECTED_OUTPUT) * inference.n
        departed: list[str] = []
        last_prefill = self._bindings.last_prefill(request.session)
        worker = await self._bindings.resolve(
            request.session,
            on_departure=departed.append,
            usable=lambda worker: worker not in tried and self._usable(worker, version) is not None,
            choose=lambda: placement.choose(
                records,
                inference,
                request.prompt_history,
                tenant=request.scope,
                chars_per_token=chars_per_token,
                needed_kv=needed_kv,
                class_=request.class_,
                avoid=tried,
            ),
        )
        # A worker that drains, or has ceased to decode, can still export the session; one that is unreachable cannot.
        request.previous_worker = next(
            (name for name in departed if name != worker and registry.reachable(name) is not None), ""
        )
        request.last_prefill = last_prefill if departed else None
        if worker is not None and placement.reads_prompts:
            placement.record_prompt(
                worker, inference, request.prompt_history, tenant=request.scope, chars_per_token=chars_per_token
            )
        return worker

    def _chars_per_token_of(self, records: Sequence[WorkerRecord]) -> float:
        """Return the fewest characters per token among the workers."""
        if records is not self._records:  # the registry returns the same list until a record changes
            self._records = records
            self._chars_per_token = min((record.chars_per_token for record in records), default=START_CHARS_PER_TOKEN)
        return self._chars_per_token
