"""How many tokens of a prompt its decode engine will find cached, by the engine's KV events."""

from collections.abc import Sequence

from weft_router.openai.identity import scope_of
from weft_router.openai.prompt_history import PromptHistory
from weft_router.openai.tokens import CharsPerToken
from weft_router.routing.prompt_chain import prompt_chain
from weft_router.sessions.round_request import RoundRequest
from weft_router.workers.worker import Worker


def expected_cached(
    worker: Worker, request: RoundRequest, prompt_history: PromptHistory, *, continues: bool, ratio: CharsPerToken
) -> int | None:
    """Return these tokens; None where events do not say it.

    ``continues``: whether the prompt begins with all that the session's last round here left in the cache.
    """
    cache, inference = worker.kv_cache, request.inference
    if cache is None or not cache.trusted or inference.n != 1 or inference.media or inference.chained:
        return None
    if request.resumed is not None:  # a part of the answer is in the prompt
        return None
    chain: Sequence[str] = ()
    if not continues:
        chain, _ = prompt_chain(inference, prompt_history, ratio.ratio)
    return cache.expected_tokens(
        request.session, scope_of(request.tenant, inference.adapter), chain, continues=continues,
        rank=worker.engine.rank_of(request.session),
    )  # fmt: skip
