"""Keep the rounds that one engine decodes now: the latencies of their sessions, and the tokens of their prompts.

The engine's own figure for KV in use has those of sessions between rounds, too: no decode step reads them.
"""

from weft_router.telemetry.session_latency import SessionLatency


class BatchMember:
    """One round: its session's latencies, the tokens of its prompt, its place among the others, -1 once it left.

    ``most`` tokens may be answered in all, None without a limit; ``gaps_before`` are the session's gaps before this
    round.
    """

    __slots__ = ("gaps_before", "latency", "most", "place", "prompt")

    def __init__(self, latency: SessionLatency, prompt: int, place: int, most: int | None) -> None:
        self.latency = latency
        self.prompt = prompt
        self.place = place
        self.most = most
        self.gaps_before = latency.gaps

    def gaps_left(self, answer: float) -> float:
        """Return how many gaps are expected in the rest of this answer, of ``answer`` tokens on average; at least 1."""
        expected = answer if self.most is None else min(answer, float(self.most))
        return max(1.0, expected - 1.0 - (self.latency.gaps - self.gaps_before))


class DecodeBatch:
    """What one engine decodes; who leaves gives its place to the last one."""

    __slots__ = ("members", "tokens")

    def __init__(self) -> None:
        self.members: list[BatchMember] = []
        self.tokens = 0
        """Tokens of all their prompts."""

    def __len__(self) -> int:
        """Return how many rounds are decoding."""
        return len(self.members)

    def enter(self, latency: SessionLatency, prompt: int, most: int | None = None) -> BatchMember:
        """Take in a round when its prefill is done."""
        member = BatchMember(latency, prompt, len(self.members), most)
        self.members.append(member)
        self.tokens += prompt
        return member

    def leave(self, member: BatchMember | None) -> None:
        """Let a round go, if it is here."""
        if member is None or member.place < 0:
            return
        last = self.members.pop()
        if last is not member:
            self.members[member.place] = last
            last.place = member.place
        member.place = -1
        self.tokens -= member.prompt

    def gaps(self) -> int:
        """Return how many gaps between tokens there were in their sessions so far."""
        return sum(member.latency.gaps for member in self.members)
