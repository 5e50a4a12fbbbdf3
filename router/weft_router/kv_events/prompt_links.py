"""The beginnings of prompts that a worker served, and the KV block at which each ends.

Coordinators know prompts as chains of digests, one after each message, and engines know them as token ids. A worker
sees both: it remembers for each digest the key of the last block of the ids before it. Where a message ends among the
ids is estimated from its share of the characters, on the short side.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from weft_core.prefix_sketch import MAX_LINKS, link_digest
from weft_router.openai.token_ids import TokenIds

SHORT: Final = 0.95
"""The share of the tokens before the end of a message that surely are before it."""
MAX_OF_PROMPT: Final = 32
"""Links of one prompt: what prompts of several sessions share is at their beginnings."""


class ServedPrompt(NamedTuple):
    """A prompt and the answer's tokens that have KV: ``tokens`` are those up to each link of ``chain``."""

    session: str
    scope: str
    chain: Sequence[str]
    tokens: Sequence[int]
    ids: TokenIds
    prompt_tokens: int
    extras: tuple[bytes, ...]
    computed_tokens: int
    """Those of the prompt that the engine had not cached."""


class PromptLinks:
    """The links of the latest prompts, bounded; those of one prompt stay or go from its end."""

    def __init__(self, *, limit: int = MAX_LINKS) -> None:
        """Remember at most ``limit`` links."""
        self._limit = limit
        self._keys: OrderedDict[bytes, int | None] = OrderedDict()
        self.version = 0
        """Changes with what is remembered."""

    def __len__(self) -> int:
        """Return how many links are remembered."""
        return len(self._keys)

    def record(self, prompt: ServedPrompt, keys: Sequence[int], block_tokens: int) -> None:
        """Remember a prompt with the keys of its blocks."""
        self.version += 1
        digests = [link_digest(prompt.scope, link) for link in prompt.chain[:MAX_OF_PROMPT]]
        for place in range(len(digests) - 1, -1, -1):
            tokens = prompt.tokens[place]
            if tokens < len(prompt.ids):
                tokens = int(tokens * SHORT)
            blocks = min(tokens // block_tokens, len(keys))
            self._keys[digests[place]] = keys[blocks - 1] if blocks > 0 else None
            self._keys.move_to_end(digests[place])
        while len(self._keys) > self._limit:
            self._keys.popitem(last=False)

    def cached(self, kept: Callable[[int], bool]) -> dict[bytes, int | None]:
        """Return the links up to which the engine keeps all blocks, with the key of the last one, None without any.

        ``kept`` says of such a key whether that is so.
        """
        return {digest: key for digest, key in self._keys.items() if key is None or kept(key)}
