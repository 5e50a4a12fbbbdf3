"""Keep the rounds that one engine decodes now: their paces, and the tokens that their sequences began with.

The engine's own figure for KV in use has those of sessions between rounds, too: no decode step reads them.
"""

from weft_router.signals.pace import Pace


class Member:
    """One round: its session's pace, and the tokens of its prompt."""

    __slots__ = ("pace", "prompt")

    def __init__(self, pace: Pace, prompt: int) -> None:
        self.pace = pace
        self.prompt = prompt


class Batch:
    """What one engine decodes, by a number that each round has while it does."""

    __slots__ = ("members", "tokens")

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self.tokens = 0
        """Tokens of all their prompts."""

    def __len__(self) -> int:
        """Return how many rounds are decoding."""
        return len(self.members)

    def enter(self, number: int, pace: Pace, prompt: int) -> None:
        """Take in a round when its prefill is done; one that is here already stays as it is."""
        if number not in self.members:
            self.members[number] = Member(pace, prompt)
            self.tokens += prompt

    def leave(self, number: int) -> None:
        """Let a round go, if it is here."""
        member = self.members.get(number)
        if member is not None:
            del self.members[number]
            self.tokens -= member.prompt

    def gaps(self) -> int:
        """Return how many gaps between tokens there were in their sessions so far."""
        return sum(member.pace.gaps for member in self.members.values())
