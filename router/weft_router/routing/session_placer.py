"""Bind sessions to decode workers: where they were, else where affinity and a canary say."""

from collections.abc import Collection, Sequence

from weft_core.heartbeat import WorkerRecord
from weft_router.config import RouterConfig
from weft_router.openai.tokens import START_CHARS_PER_TOKEN
from weft_router.routing.affinity import Affinity, bindings_of
from weft_router.routing.canary import Canary
from weft_router.sessions.round_request import RoundRequest
from weft_router.state.bindings import Bindings
from weft_router.state.registry import Registry

EXPECTED_OUTPUT = 256
"""KV set aside for the answer when the client gives no limit."""
MOST_CHOICES = 5
"""Choices for one round that may be lost one after the other."""


class SessionPlacer:
    """Chooses the decode workers of sessions."""

    def __init__(self, config: RouterConfig, *, registry: Registry, bindings: Bindings) -> None:
        self._registry = registry
        self._bindings = bindings
        self._affinity = Affinity(bindings_of(config), ttl_s=config.routing.session_ttl_seconds)
        self._canary = Canary(config.routing.canary)
        self._records: Sequence[WorkerRecord] = ()
        self._ratio = START_CHARS_PER_TOKEN

    def reload(self, config: RouterConfig) -> None:
        """Go on by another configuration."""
        self._affinity.reload(bindings_of(config))
        self._canary = Canary(config.routing.canary)

    def tidy(self) -> None:
        """Forget what was noted of workers that are gone."""
        self._affinity.tidy(self._registry.known("decode"))

    async def place(self, request: RoundRequest, tried: Collection[str]) -> str | None:
        """Return the worker that is to serve a round, bound to its session from now on; None where none can."""
        for _ in range(MOST_CHOICES):
            worker = await self._choose(request, tried)
            # While the store was asked, a round that failed there may have taken the worker out of use: all the
            # sessions that chose it at that moment would be told that no worker is ready.
            if worker is None or self._registry.get(worker) is not None:
                return worker
        return None

    async def _choose(self, request: RoundRequest, tried: Collection[str]) -> str | None:
        registry = self._registry
        affinity, inference = self._affinity, request.inference
        bound = self._bindings.bound(request.session)
        if bound is not None and bound not in tried and (record := registry.get(bound)) is not None:
            if affinity.reads_prompts:
                affinity.record_prompt(
                    bound, inference, request.prompt_history, tenant=request.tenant, ratio=record.chars_per_token
                )
            return bound
        was = self._bindings.peek(request.session)
        records = self._canary.decode_for(
            request.session,
            registry.ready("decode"),
            before=None if was is None else registry.reachable(was),
            known=was is not None or request.inference.follows,
            avoid=tried,
        )
        ratio = self._ratio_of(records)
        prompt = inference.exact_tokens or int(inference.chars / ratio)
        need = prompt + (inference.max_tokens or EXPECTED_OUTPUT) * inference.n
        left: list[str] = []
        worker = await self._bindings.resolve(
            request.session,
            leaves=left.append,
            usable=lambda worker: worker not in tried and registry.get(worker) is not None,
            choose=lambda: affinity.choose(
                records,
                inference,
                request.prompt_history,
                tenant=request.tenant,
                ratio=ratio,
                need=need,
                class_=request.class_,
                avoid=tried,
            ),
        )
        # Whoever drains gives the session away; a worker that does not answer has nothing to give.
        request.previous_worker = next(
            (name for name in left if name != worker and registry.reachable(name) is not None), ""
        )
        if worker is not None and affinity.reads_prompts:
            affinity.record_prompt(worker, inference, request.prompt_history, tenant=request.tenant, ratio=ratio)
        return worker

    def _ratio_of(self, records: Sequence[WorkerRecord]) -> float:
        """Return the fewest characters that a token has on any of the workers."""
        if records is not self._records:  # as long as nothing changed, the same list
            self._records = records
            self._ratio = min((record.chars_per_token for record in records), default=START_CHARS_PER_TOKEN)
        return self._ratio
