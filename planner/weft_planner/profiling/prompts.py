"""Draw prompts of exact lengths from token ids."""

import random
from collections.abc import Sequence


class PromptGenerator:
    """Draw prompts of exact lengths: random tokens, so that no two share a prefix by chance."""

    def __init__(self, token_ids: Sequence[int], *, seed: int) -> None:
        """Draw from these ids."""
        self._ids = list(token_ids)
        self._seed = seed
        self._fresh = random.Random(seed)  # noqa: S311 - no secret
        self._bases: dict[str, tuple[random.Random, list[int]]] = {}

    def fresh(self, length: int) -> list[int]:
        """Return tokens that no engine has cached."""
        return self._fresh.choices(self._ids, k=length)

    def base(self, name: str, length: int) -> list[int]:
        """Return the first tokens of a named text: longer ones begin with the shorter ones."""
        rng, tokens = self._bases.setdefault(name, (random.Random(f"{self._seed} {name}"), []))  # noqa: S311
        if len(tokens) < length:
            tokens += rng.choices(self._ids, k=length - len(tokens))
        return tokens[:length]
