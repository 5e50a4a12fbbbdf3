"""Add prefix cache hits to the choice of a decode worker, for classes whose binding policy reads them.

Workers whose engines send KV events say in their heartbeats what is cached. Of others it is estimated from the prompts
that they were sent, and so it is for all in the seconds that events and heartbeats take.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic
from typing import Final

from weft_core.heartbeat import WorkerRecord
from weft_core.prefix_sketch import link_digest
from weft_router.config import PLAIN_CLASS, RouterConfig
from weft_router.openai.inference import Inference
from weft_router.openai.prompt_history import PromptHistory
from weft_router.routing.binding_policies import BindingPolicies
from weft_router.routing.prefix_cache_index import PrefixCacheIndex
from weft_router.routing.prefix_worth import PrefixWorth, announced_hit
from weft_router.routing.prompt_chain import prompt_chain

RECENT_S: Final = 5.0
"""How long a prompt counts as cached where it was sent, whatever the heartbeat says: it is prefilled, held against the
events after 2 s, and in the heartbeat a second later."""
HOT_FACTOR: Final = 2.0
HOT_ROUNDS: Final = 4
"""A worker is hot with more rounds than HOT_FACTOR times what the others have on average, and HOT_ROUNDS besides."""


def bindings_of(config: RouterConfig) -> dict[str, str]:
    """Return the name of every class's binding policy."""
    return {name: one.routing.binding for name, one in config.session_classes().items()}


class PrefixAwarePlacement:
    """The binding policies of one coordinator, with an index of the prompts that each worker was sent."""

    def __init__(
        self,
        bindings: Mapping[str, str],
        *,
        ttl_s: float,
        worth: PrefixWorth,
        min_hit_ratio: float = 0.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Place by the policy that ``bindings`` names for each class, the default class included.

        Hits of less than ``min_hit_ratio`` of the prompt do not count.
        """
        self._bindings = BindingPolicies(bindings, clock=clock)
        self._prefixes = PrefixCacheIndex(ttl_s=ttl_s, clock=clock)
        self._worth = worth
        self._min_hit_ratio = min_hit_ratio
        self._instance_ids: dict[str, str] = {}

    @property
    def reads_prompts(self) -> bool:
        """Return whether any policy reads prefix cache hits; otherwise prompts need not be recorded."""
        return self._bindings.reads_prefix_hits

    def reload(self, bindings: Mapping[str, str], *, min_hit_ratio: float) -> None:
        """Replace the binding policies."""
        self._bindings.reload(bindings)
        self._min_hit_ratio = min_hit_ratio

    def choose(
        self,
        records: Sequence[WorkerRecord],
        inference: Inference,
        prompt_history: PromptHistory | None,
        *,
        tenant: str,
        chars_per_token: float,
        needed_kv: int,
        class_: str = PLAIN_CLASS,
        avoid: Collection[str] = (),
    ) -> str | None:
        """Return the worker for a new session of ``needed_kv`` tokens; None without workers."""
        if not self._bindings.reads_prefix_hits_of(class_):
            return self._bindings.choose(records, needed_kv=needed_kv, class_=class_, avoid=avoid)
        chain, tokens = prompt_chain(inference, prompt_history, chars_per_token)
        capacity = {record.worker: record.capacity for record in records}
        hits = self._prefixes.hits(chain, tokens, scope=tenant, capacity=capacity)
        in_memory = hits
        if any(record.kv_prefixes is not None for record in records):
            recent = self._prefixes.recent(chain, tokens, scope=tenant, within_s=RECENT_S)
            digests = [link_digest(tenant, link) for link in chain]
            in_memory = dict(hits)
            for record in records:
                worker = record.worker
                if record.kv_prefixes is not None:
                    hit = announced_hit(record, digests, tokens, recent=recent.get(worker, 0))
                    hits[worker], in_memory[worker] = self._worth.tokens(record, hit), hit.in_memory
        least = self._min_hit_ratio * tokens[-1] if tokens else 0.0
        hits = {worker: hit for worker, hit in hits.items() if hit >= least}
        for worker in hot_workers(records):
            hits.pop(worker, None)  # another worker computes the prefix, and then both have it
            in_memory.pop(worker, None)
        return self._bindings.choose(
            records, needed_kv=needed_kv, class_=class_, avoid=avoid, prefix_hit=hits, in_memory=in_memory
        )

    def record_prompt(
        self,
        worker: str,
        inference: Inference,
        prompt_history: PromptHistory | None,
        *,
        tenant: str,
        chars_per_token: float,
    ) -> None:
        """Record that a worker is sent a prompt."""
        chain, tokens = prompt_chain(inference, prompt_history, chars_per_token)
        self._prefixes.record(worker, chain, tokens, scope=tenant)

    def update_workers(self, known: Sequence[WorkerRecord]) -> None:
        """Drop the index entries of workers that restarted, or are no longer known."""
        for record in known:
            before = self._instance_ids.get(record.worker, record.instance_id)
            if before != record.instance_id:
                self._prefixes.forget(record.worker)
        self._instance_ids = {record.worker: record.instance_id for record in known}
        self._prefixes.retain(list(self._instance_ids))


def hot_workers(records: Sequence[WorkerRecord]) -> list[str]:
    """Return the workers with so many more rounds than the others that no cached prefix is worth joining them."""
    loads = [record.batch + len(record.queue) for record in records]
    total, share = sum(loads), HOT_FACTOR / max(1, len(loads) - 1)
    return [
        record.worker
        for record, load in zip(records, loads, strict=True)
        if len(loads) > 1 and load > share * (total - load) + HOT_ROUNDS
    ]
