"""Keep the rounds that one engine decodes now: their paces, and the tokens that their sequences began with.

The engine's own figure for KV in use has those of sessions between rounds, too: no decode step reads them.
"""

from weft_router.signals.pace import Pace


class Batch:
    """What one engine decodes, by a number that each round has while it does."""

    __slots__ = ("_held", "paces", "tokens")

    def __init__(self) -> None:
        self.paces: dict[int, Pace] = {}
        self.tokens = 0
        """Tokens of all their prompts."""
        self._held: dict[int, int] = {}

    def __len__(self) -> int:
        """Return how many rounds are decoding."""
        return len(self.paces)

    def enter(self, number: int, pace: Pace, prompt: int) -> None:
        """Take in a round when its prefill is done; one that is here already stays as it is."""
        if number not in self.paces:
            self.paces[number] = pace
            self._held[number] = prompt
            self.tokens += prompt

    def leave(self, number: int) -> None:
        """Let a round go, if it is here."""
        if self.paces.pop(number, None) is not None:
            self.tokens -= self._held.pop(number)
