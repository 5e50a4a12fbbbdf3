"""Add prefix cache hits to the choice of a decode worker, for classes whose binding policy reads them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic

from weft_core.heartbeat import WorkerRecord
from weft_router.config import PLAIN_CLASS, RouterConfig
from weft_router.openai.inference import Inference
from weft_router.openai.prompt_history import PromptHistory, history_of, prefix_hashes
from weft_router.routing.binding_policies import BindingPolicies
from weft_router.routing.prefix_cache_index import PrefixCacheIndex, prefix_chain, token_lengths


def bindings_of(config: RouterConfig) -> dict[str, str]:
    """Return the name of every class's binding policy."""
    return {name: one.routing.binding for name, one in config.session_classes().items()}


class PrefixAwarePlacement:
    """The binding policies of one coordinator, with an index of the prompts that each worker was sent."""

    def __init__(self, bindings: Mapping[str, str], *, ttl_s: float, clock: Callable[[], float] = monotonic) -> None:
        """Place by the policy that ``bindings`` names for each class, the default class included."""
        self._bindings = BindingPolicies(bindings, clock=clock)
        self._prefixes = PrefixCacheIndex(ttl_s=ttl_s, clock=clock)
        self._instance_ids: dict[str, str] = {}

    @property
    def reads_prompts(self) -> bool:
        """Return whether any policy reads prefix cache hits; otherwise prompts need not be recorded."""
        return self._bindings.reads_prefix_hits

    def reload(self, bindings: Mapping[str, str]) -> None:
        """Replace the binding policies."""
        self._bindings.reload(bindings)

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
        chain, tokens = _chain(inference, prompt_history, chars_per_token)
        capacity = {record.worker: record.capacity for record in records}
        hits = self._prefixes.hits(chain, tokens, scope=tenant, capacity=capacity)
        return self._bindings.choose(records, needed_kv=needed_kv, class_=class_, avoid=avoid, prefix_hit=hits)

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
        chain, tokens = _chain(inference, prompt_history, chars_per_token)
        self._prefixes.record(worker, chain, tokens, scope=tenant)

    def update_workers(self, known: Sequence[WorkerRecord]) -> None:
        """Drop the index entries of workers that restarted, or are no longer known."""
        for record in known:
            before = self._instance_ids.get(record.worker, record.instance_id)
            if before != record.instance_id:
                self._prefixes.forget(record.worker)
        self._instance_ids = {record.worker: record.instance_id for record in known}
        self._prefixes.retain(list(self._instance_ids))


def _chain(
    inference: Inference, prompt_history: PromptHistory | None, chars_per_token: float
) -> tuple[list[str], list[int]]:
    if inference.kind == "text":
        prompt = inference.prompt
        chain, units = prefix_chain(prompt)
        per_token = chars_per_token if isinstance(prompt, str) else 1.0
        return chain, [int(length / per_token) for length in units]
    seen = prompt_history or history_of(inference)
    return prefix_hashes(seen), token_lengths(seen.sizes, units_per_token=chars_per_token)
