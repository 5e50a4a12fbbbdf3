"""What a worker's cached prefix saves a new session: all of it in GPU memory, less where it is loaded from a tier."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from weft_core.cost import CostProfile, CostProfileError
from weft_core.heartbeat import WorkerRecord
from weft_core.kv_tiers import SPEEDS, TIER_NAMES, TierSpeed, t_load
from weft_core.policies.finish import hit_worth
from weft_core.prefix_sketch import contains, covered

_SLOWEST_FIRST: Final = tuple(reversed(TIER_NAMES))


class PrefixHit(NamedTuple):
    """The tokens of a prompt that a worker has cached, and those of them that it has to load, by tier."""

    tokens: int
    below: Mapping[str, int]

    @property
    def in_memory(self) -> int:
        """Return those in GPU memory."""
        return self.tokens - sum(self.below.values())


def announced_hit(record: WorkerRecord, digests: Sequence[bytes], tokens: Sequence[int], *, recent: int) -> PrefixHit:
    """Return what a worker's heartbeat says of a prompt; ``tokens`` are those up to each of its links.

    The first ``recent`` tokens were sent there a moment ago, and are in GPU memory whatever it says.
    """
    links = covered(record.kv_prefixes or "", digests)
    below: dict[str, int] = {}
    before = recent
    if record.kv_tier_prefixes:
        sketches = dict(record.kv_tier_prefixes)
        tiers = [name for name in _SLOWEST_FIRST if name in sketches]
        for link in range(links):
            if tokens[link] > before:
                tier = next((name for name in tiers if contains(sketches[name], digests[link])), "")
                if tier:
                    below[tier] = below.get(tier, 0) + tokens[link] - before
                before = tokens[link]
    return PrefixHit(max(tokens[links - 1] if links else 0, recent), below)


class PrefixWorth:
    """The worth of hits, by cost profiles and the speeds of tiers."""

    def __init__(self, profile_of: Callable[[str], CostProfile], speeds: Mapping[str, TierSpeed] = SPEEDS) -> None:
        """Take ``profile_of`` for the cost profile of each pool."""
        self._profile_of = profile_of
        self._speeds = speeds

    def tokens(self, record: WorkerRecord, hit: PrefixHit) -> int:
        """Return how many tokens in GPU memory would save as much time as a hit."""
        if not hit.below:
            return hit.tokens
        profile = self._profile_of(record.pool)
        try:
            compute_s = profile.t_pre(history=0, increment=hit.tokens, degree=record.degree)
        except CostProfileError:  # a worker of another plan
            return hit.tokens
        return int(hit_worth(hit.tokens, compute_s, t_load(hit.below, profile.kv_bytes_per_token, self._speeds)))
