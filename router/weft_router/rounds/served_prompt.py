"""What a finished round says of its engine's KV cache: the prompt's links and its token ids."""

from weft_core.kv_block_keys import prompt_extras
from weft_router.kv_events.prompt_links import ServedPrompt
from weft_router.openai.identity import scope_of
from weft_router.openai.prompt_history import PromptHistory
from weft_router.openai.reply import Reply
from weft_router.openai.token_ids import TokenIds
from weft_router.routing.prompt_chain import prompt_chain
from weft_router.sessions.round import Round


def served_prompt(
    rnd: Round, reply: Reply, prompt_history: PromptHistory, *, prompt_tokens: int, held: int
) -> ServedPrompt | None:
    """Return a round's prompt; None where its token ids are not known, or are not all that its KV follows from.

    ``prompt_history`` covers ``held`` tokens: those of the prompt, and the answer's that have KV.
    """
    inference = rnd.inference
    ids = reply.ids or reply.prompt_ids
    if ids is None and inference.kind == "text" and not isinstance(inference.prompt, str):
        ids = TokenIds("I", inference.prompt)
    if ids is None or inference.media or inference.chained or len(ids) < prompt_tokens or prompt_tokens < 1:
        return None
    text = inference.kind == "text"
    units = len(inference.prompt) if text else sum(prompt_history.sizes)
    chain, tokens = prompt_chain(inference, prompt_history, max(units, 1) / (prompt_tokens if text else held))
    return ServedPrompt(
        rnd.session,
        scope_of(rnd.scheduling.tenant, inference.adapter),
        chain,
        tokens,
        ids[:held],
        prompt_tokens,
        prompt_extras(inference.adapter or None, rnd.engine_request.salt),
        prompt_tokens - (reply.cached_tokens or 0),
    )
