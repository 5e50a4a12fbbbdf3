"""The beginnings of prompts that a worker served, and the KV block at which each ends.

Coordinators know prompts as chains of digests, one after each message, and engines know them as token ids. A worker
sees both: it remembers for each digest the key of the last block of the ids before it. Where a message ends among the
ids is estimated from its share of the characters, on the short side. Once two sessions share the message and go on
differently, it ends where their ids part.
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

KeysOf = Callable[[str], Sequence[int] | None]


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


class PromptLink(NamedTuple):
    """The blocks before the end of a message: how many, and the key of the last one (None without any)."""

    key: int | None
    blocks: int
    session: str
    """The session that had it last."""
    exact: bool
    """Whether two sessions' ids part there; else it is estimated."""


class PromptLinks:
    """The links of the latest prompts, bounded; those of one prompt stay or go from its end."""

    def __init__(self, *, limit: int = MAX_LINKS) -> None:
        """Remember at most ``limit`` links."""
        self._limit = limit
        self._links: OrderedDict[bytes, PromptLink] = OrderedDict()
        self.version = 0
        """Changes with what is remembered."""

    def __len__(self) -> int:
        """Return how many links are remembered."""
        return len(self._links)

    def record(self, prompt: ServedPrompt, keys: Sequence[int], block_tokens: int, keys_of: KeysOf) -> None:
        """Remember a prompt with the keys of its blocks; ``keys_of`` returns those of another session's last round."""
        self.version += 1
        links, digests = self._links, [link_digest(prompt.scope, link) for link in prompt.chain[:MAX_OF_PROMPT]]
        parting = next((place for place, digest in enumerate(digests) if digest not in links), 0) - 1
        for place in range(len(digests) - 1, -1, -1):
            link, known = self._estimate(prompt, place, keys, block_tokens), links.get(digests[place])
            if known is not None and known.exact and keys[known.blocks - 1 : known.blocks] == [known.key]:
                link = known._replace(session=prompt.session)
            if known is not None and place == parting:
                link = _parted(link, known.session, keys, keys_of)
            links[digests[place]] = link
            links.move_to_end(digests[place])
        while len(links) > self._limit:
            links.popitem(last=False)

    def _estimate(self, prompt: ServedPrompt, place: int, keys: Sequence[int], block_tokens: int) -> PromptLink:
        tokens = prompt.tokens[place]
        if tokens < len(prompt.ids):
            tokens = int(tokens * SHORT)
        blocks = min(tokens // block_tokens, len(keys))
        return PromptLink(keys[blocks - 1] if blocks > 0 else None, blocks, prompt.session, exact=False)

    def cached(self, kept: Callable[[int], bool]) -> dict[bytes, int | None]:
        """Return the links up to which the engine keeps all blocks, with the key of the last one, None without any.

        ``kept`` says of such a key whether that is so.
        """
        found = {digest: link.key for digest, link in self._links.items()}
        return {digest: key for digest, key in found.items() if key is None or kept(key)}

    def cached_blocks(
        self, scope: str, chain: Sequence[str], keys_of: KeysOf, *, kept: Callable[[Sequence[int]], int],
        whole: Callable[[int], bool],
    ) -> int:  # fmt: skip
        """Return how many blocks at the beginning of a prompt the engine keeps, by its links.

        ``kept`` returns how many of a prompt's first blocks the engine keeps, ``whole`` whether it keeps all that a key
        follows from.
        """
        for place in range(min(len(chain), MAX_OF_PROMPT) - 1, -1, -1):
            link = self._links.get(link_digest(scope, chain[place]))
            if link is None or link.key is None:
                continue
            keys = keys_of(link.session) or ()
            if len(keys) >= link.blocks and keys[link.blocks - 1] == link.key:
                return kept(keys[: link.blocks])
            if whole(link.key):
                return link.blocks
        return 0


def _parted(link: PromptLink, other: str, keys: Sequence[int], keys_of: KeysOf) -> PromptLink:
    """Return the last link that two sessions share: it ends where their blocks part, or, by others, before that."""
    others = keys_of(other) if other != link.session else None
    if not others:
        return link
    low, high = 0, min(len(keys), len(others))
    while low < high:
        middle = (low + high) // 2
        if keys[middle] == others[middle]:  # a key follows from all blocks before it, too
            low = middle + 1
        else:
            high = middle
    if low == 0 or (link.exact and link.blocks <= low):
        return link
    return PromptLink(keys[low - 1], low, link.session, exact=True)
