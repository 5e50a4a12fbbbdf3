"""A prompt as a chain of digests, each over everything up to its link, by which cached prefixes are found."""

from collections.abc import Sequence

from weft_router.openai.inference import Inference
from weft_router.openai.prompt_history import PromptHistory, history_of, prefix_hashes
from weft_router.routing.prefix_cache_index import prefix_chain, token_lengths


def prompt_chain(
    inference: Inference, prompt_history: PromptHistory | None, chars_per_token: float
) -> tuple[Sequence[str], list[int]]:
    """Return the links of a prompt, and the tokens up to the end of each.

    A link is a message, with its answer where the history has one, or a block of a prompt that is no chat.
    """
    if inference.kind == "text":
        prompt = inference.prompt
        chain, units = prefix_chain(prompt)
        per_token = chars_per_token if isinstance(prompt, str) else 1.0
        return chain, [int(length / per_token) for length in units]
    seen = prompt_history or history_of(inference)
    return prefix_hashes(seen), token_lengths(seen.sizes, units_per_token=chars_per_token)
