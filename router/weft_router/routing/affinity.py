"""Place new sessions, by what the workers' prefix caches may hold where the binding of their class looks at that."""

from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic

from weft_core.heartbeat import WorkerRecord
from weft_router.config import PLAIN_CLASS, RouterConfig
from weft_router.openai.inference import Inference
from weft_router.openai.prompt_history import PromptHistory, history_of, prefix_hashes
from weft_router.routing.placement import Placement
from weft_router.routing.prefix_cache_index import PrefixCacheIndex, prefix_chain, token_lengths


def bindings_of(config: RouterConfig) -> dict[str, str]:
    """Return the binding of every class."""
    return {name: one.routing.binding for name, one in config.session_classes().items()}


class Affinity:
    """The binding decisions of one coordinator, and which worker was sent which prompts."""

    def __init__(self, bindings: Mapping[str, str], *, ttl_s: float, clock: Callable[[], float] = monotonic) -> None:
        """Place by the rule that ``bindings`` names for each class, the plain one among them."""
        self._placement = Placement(bindings, clock=clock)
        self._prefixes = PrefixCacheIndex(ttl_s=ttl_s, clock=clock)
        self._instance_ids: dict[str, str] = {}

    @property
    def reads_prompts(self) -> bool:
        """Tell whether any binding looks at prefix caches; else prompts need not be noted."""
        return self._placement.reads_hits

    def reload(self, bindings: Mapping[str, str]) -> None:
        """Go on by other bindings."""
        self._placement.reload(bindings)

    def choose(
        self,
        records: Sequence[WorkerRecord],
        inference: Inference,
        prompt_history: PromptHistory | None,
        *,
        tenant: str,
        ratio: float,
        need: int,
        class_: str = PLAIN_CLASS,
        avoid: Collection[str] = (),
    ) -> str | None:
        """Return the worker of a new session that needs ``need`` tokens; ``ratio`` is characters per token."""
        if not self._placement.reads_hits_of(class_):
            return self._placement.choose(records, need=need, class_=class_, avoid=avoid)
        chain, tokens = _chain(inference, prompt_history, ratio)
        capacity = {record.worker: record.capacity for record in records}
        hits = self._prefixes.hits(chain, tokens, scope=tenant, capacity=capacity)
        return self._placement.choose(records, need=need, class_=class_, avoid=avoid, prefix_hit=hits)

    def record_prompt(
        self, worker: str, inference: Inference, prompt_history: PromptHistory | None, *, tenant: str, ratio: float
    ) -> None:
        """Remember that a worker is sent a prompt."""
        chain, tokens = _chain(inference, prompt_history, ratio)
        self._prefixes.record(worker, chain, tokens, scope=tenant)

    def tidy(self, known: Sequence[WorkerRecord]) -> None:
        """Forget the caches of workers that began anew, or are no longer known."""
        for record in known:
            before = self._instance_ids.get(record.worker, record.instance_id)
            if before != record.instance_id:
                self._prefixes.forget(record.worker)
        self._instance_ids = {record.worker: record.instance_id for record in known}
        self._prefixes.keep(list(self._instance_ids))


def _chain(inference: Inference, prompt_history: PromptHistory | None, ratio: float) -> tuple[list[str], list[int]]:
    if inference.kind == "text":
        prompt = inference.prompt
        chain, units = prefix_chain(prompt)
        per_token = ratio if isinstance(prompt, str) else 1.0
        return chain, [int(length / per_token) for length in units]
    seen = prompt_history or history_of(inference)
    return prefix_hashes(seen), token_lengths(seen.sizes, units_per_token=ratio)
