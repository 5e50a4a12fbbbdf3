"""Guess what the prefix caches of decode workers hold, from what was sent there.

A prompt is a chain of digests, each over everything up to its link, so a digest names a whole prefix and a table serves
for a tree. An engine forgets what was used least recently once its KV memory is full; so a prefix counts while its
worker took in no more tokens since than it holds. Engines keep the caches of tenants apart, hence ``scope``.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from time import monotonic

LIMIT = 200_000
"""Prefixes remembered: at some 300 bytes each about 60 MB."""
BLOCK = 512
"""Units (characters or token ids) of a link of a prompt that is no chat."""
MOST_LINKS = 64
"""Of such a prompt: what prompts share is at their beginnings."""


@dataclass(slots=True)
class _CacheState:
    """``taken``: tokens that its cache took in so far; ``began`` marks when it lost everything."""

    taken: int = 0
    began: int = 0


@dataclass(slots=True)
class _Prefix:
    """The workers that have it: each one's ``taken`` then. ``latest`` was the last one that was sent it."""

    at: float
    latest: str = ""
    workers: dict[str, int] = field(default_factory=dict)


class PrefixCacheIndex:
    """What one router process knows of all decode workers' prefix caches."""

    def __init__(self, *, limit: int = LIMIT, ttl_s: float = 3600.0, clock: Callable[[], float] = monotonic) -> None:
        """Remember at most ``limit`` prefixes, each for ``ttl_s`` after it was last sent."""
        self._limit = limit
        self._ttl_s = ttl_s
        self._clock = clock
        self._known: OrderedDict[tuple[str, str], _Prefix] = OrderedDict()
        self._workers: dict[str, _CacheState] = {}

    def __len__(self) -> int:
        """Return how many prefixes are remembered."""
        return len(self._known)

    def record(self, worker: str, chain: Sequence[str], tokens: Sequence[int], *, scope: str = "") -> None:
        """Remember that a worker computed a prompt; ``tokens`` are those up to the end of each link of ``chain``."""
        if not chain:
            return
        now = self._clock()
        engine = self._workers.get(worker)
        if engine is None:
            engine = self._workers[worker] = _CacheState()
        known, seen = self._known, 0
        found: list[_Prefix] = []
        for link, length in zip(chain, tokens, strict=True):
            key = scope, link
            prefix = known.get(key)
            if prefix is None:
                prefix = known[key] = _Prefix(now)
            else:
                known.move_to_end(key)
                prefix.at = now
                if prefix.workers.get(worker, -1) >= engine.began:
                    seen = length
            found.append(prefix)
        engine.taken += max(0, tokens[-1] - seen)
        for prefix in found:
            prefix.workers[worker] = engine.taken
            prefix.latest = worker
        while len(known) > self._limit or (known and next(iter(known.values())).at < now - self._ttl_s):
            known.popitem(last=False)

    def hits(
        self,
        chain: Sequence[str],
        tokens: Sequence[int],
        *,
        scope: str = "",
        capacity: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        """Return how many tokens of a prompt each worker may hold; workers without any are left out.

        ``capacity`` is the KV memory of workers in tokens, where it is known.
        """
        found: dict[str, int] = {}
        oldest = self._clock() - self._ttl_s
        for link, length in zip(reversed(chain), reversed(tokens), strict=True):
            prefix = self._known.get((scope, link))
            if prefix is None or prefix.at < oldest:
                continue
            for worker, then in prefix.workers.items():
                if worker in found:
                    continue
                engine = self._workers.get(worker)
                if engine is None or then < engine.began:
                    continue
                room = capacity.get(worker, 0) if capacity is not None else 0
                if room <= 0 or engine.taken - then <= room:
                    found[worker] = length
        return {worker: length for worker, length in found.items() if length > 0}

    def recent(
        self, chain: Sequence[str], tokens: Sequence[int], *, scope: str = "", within_s: float
    ) -> dict[str, int]:
        """Return the tokens of a prompt that workers were sent a moment ago: of each prefix the last one alone."""
        found: dict[str, int] = {}
        oldest = self._clock() - within_s
        for link, length in zip(chain, tokens, strict=True):
            prefix = self._known.get((scope, link))
            if prefix is None:
                break
            engine = self._workers.get(prefix.latest)
            if prefix.at >= oldest and engine is not None and prefix.workers[prefix.latest] >= engine.began:
                found[prefix.latest] = length
        return found

    def forget(self, worker: str) -> None:
        """Treat a worker's cache as empty: its engine restarted, or is gone."""
        engine = self._workers.get(worker)
        if engine is not None:
            engine.taken += 1
            engine.began = engine.taken

    def retain(self, workers: Sequence[str]) -> None:
        """Drop what is known of all workers but these."""
        for gone in self._workers.keys() - set(workers):
            del self._workers[gone]


def token_lengths(sizes: Sequence[int], *, units_per_token: float) -> list[int]:
    """Return the tokens up to the end of each link, from the links' sizes in characters or other units."""
    return [int(total / units_per_token) for total in accumulate(sizes)]


def prefix_chain(prompt: str | Sequence[int], *, block: int = BLOCK) -> tuple[list[str], list[int]]:
    """Return digests over the beginnings of a prompt in text or token ids, and the units that each covers.

    Only whole blocks count, as in the engines' own caches, and only the first ``MOST_LINKS``.
    """
    whole = min(len(prompt) // block, MOST_LINKS)
    running = hashlib.blake2b(b"text" if isinstance(prompt, str) else b"ids", digest_size=16)
    links: list[str] = []
    for at in range(0, whole * block, block):
        part = prompt[at : at + block]
        running.update(part.encode("utf-8", "surrogatepass") if isinstance(part, str) else array("q", part).tobytes())
        links.append(running.hexdigest())
    return links, [(i + 1) * block for i in range(whole)]
