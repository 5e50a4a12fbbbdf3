"""What a worker knows of its engine's KV cache: by the engine's events, held against the rounds that it served.

Events count only while they agree with the rounds: an engine that has just computed a prompt keeps its blocks, so their
keys must be in the index. They are not if events stop, are of another kind than is understood here, or come from an
engine with other settings. Then coordinators go on with their own estimate, as without events.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Final

from weft_core.heartbeat import WorkerRecord
from weft_core.kv_block_keys import ID_BYTES, START, block_keys, id_bytes
from weft_core.kv_index import LIMIT, TIERS, BlockIndex
from weft_core.prefix_sketch import sketch_of
from weft_router.kv_events.event_faults import EventFaults
from weft_router.kv_events.prompt_links import PromptLinks, ServedPrompt
from weft_router.kv_events.rank_cache import DISK, SLICE, RankCache
from weft_router.kv_events.session_blocks import STRIDE, SessionBlocks
from weft_router.kv_events.subscriber import KvEventSubscriber
from weft_router.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

MAX_WAITING: Final = 256
"""Served prompts that wait to be taken in; of more the oldest are dropped."""
CHECK_S: Final = 2.0
"""When a served prompt's blocks have to be in the index: events come with the step, batches of them a little later."""
UNSIZED: Final = 256
"""Tokens that an engine computed of a prompt, for which events are expected before any said how large a block is."""
PART: Final = 4096
"""Blocks of a session that are counted at a time, in a millisecond."""
AGAIN_S: Final = 5.0
DISAGREEMENTS: Final = 3
"""Prompts in a row whose blocks are missing, and events do not count any more, until one agrees."""


class EngineCache:
    """The KV cache of one worker's engine."""

    def __init__(
        self, *, port: int, ranks: int, metrics: Metrics, limit: int = LIMIT, clock: Callable[[], float] = monotonic
    ) -> None:
        """Take in the events that come to ``port`` and the ports after it, one for each rank."""
        self._metrics = metrics
        self._clock = clock
        self._port = port
        refused = metrics.kv_events_refused
        self.ranks = [
            RankCache(BlockIndex(limit=max(1, limit // ranks)), refused=lambda reason: refused.labels(reason).inc())
            for _ in range(ranks)
        ]
        self._served: deque[ServedPrompt] = deque(maxlen=MAX_WAITING)
        self._came = asyncio.Event()
        self._links = PromptLinks()
        self._sessions = SessionBlocks()
        self._checks: deque[tuple[float, int | None]] = deque(maxlen=MAX_WAITING)
        self._missing = DISAGREEMENTS
        self._faults = EventFaults(self.ranks, clock)
        self._state: tuple[int, ...] = ()
        self._sketch = ""
        self._tier_sketches: tuple[tuple[str, str], ...] = ()

    async def run(self) -> None:
        """Take in events and served prompts until cancelled."""
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(KvEventSubscriber(self.ranks, port=self._port, metrics=self._metrics).run())
                    group.create_task(self._take_prompts())
            except Exception:  # what is known must not stay as it was while nobody follows events
                log.exception("kv_events_failed")
                self.lost()
                await asyncio.sleep(AGAIN_S)

    @property
    def block_tokens(self) -> int:
        """Return the tokens of a block, 0 before any event said so."""
        return max(rank.block_tokens for rank in self.ranks)

    @property
    def trusted(self) -> bool:
        """Return whether events agree with the rounds."""
        return self._missing < DISAGREEMENTS

    def served(self, prompt: ServedPrompt) -> None:
        """Take in a prompt that the engine has just served."""
        self._served.append(prompt)
        self._came.set()

    def kept_tokens(self, session: str, rank: int | None = None) -> int | None:
        """Return how many tokens of a session's last round its rank keeps, in any tier; of no known one, any rank.

        None where nothing is known to be gone.
        """
        if not self.trusted:
            return None
        indexes = [one.index for one in (self.ranks if rank is None else self.ranks[rank : rank + 1])]
        blocks = self._sessions.kept(session, lambda key: any(index.reach(key).kept for index in indexes))
        return None if blocks is None else blocks * self.block_tokens

    def expected_tokens(
        self, session: str, scope: str, chain: Sequence[str], *, continues: bool, rank: int | None = None
    ) -> int | None:
        """Return how many tokens of a prompt the engine will find cached, in any tier; None while events do not count.

        A prompt that ``continues`` its session's last round has the blocks of that. Of others the links of ``chain``
        say it, or 0 where none is known. ``rank`` is the session's; if none is known, new sessions may go to any.
        """
        if not self.trusted:
            return None
        indexes = [one.index for one in (self.ranks if rank is None else self.ranks[rank : rank + 1])]
        if continues and (keys := self._sessions.keys(session)):
            return max(index.prefix(keys).kept for index in indexes) * self.block_tokens
        blocks = self._links.cached_blocks(
            scope, chain, self._sessions.keys,
            kept=lambda keys: min(index.prefix(keys).kept for index in indexes),
            whole=lambda key: all(index.reach(key).kept for index in indexes),
        )  # fmt: skip
        return blocks * self.block_tokens

    def below(self, session: str, rank: int | None = None) -> dict[str, int]:
        """Return how many tokens of a session's last round have to be loaded from each tier, to a multiple of 8 blocks.

        These are in no GPU memory; what is behind a block that is nowhere cannot be loaded.
        """
        return self.held(session, rank)[1]

    def held(self, session: str, rank: int | None = None) -> tuple[int, dict[str, int]]:
        """Return how many tokens of a session's last round are kept, and ``below``; 0 where that is not known."""
        keys = self._sessions.some_keys(session)
        if not self.trusted or not keys:
            return 0, {}
        indexes = [one.index for one in (self.ranks if rank is None else self.ranks[rank : rank + 1])]
        found = [(one.prefix(keys), one) for one in indexes]
        prefix, index = max(found, key=lambda pair: (pair[0].kept, pair[0].gpu))
        tokens = STRIDE * self.block_tokens
        if prefix.gpu == prefix.kept:
            return prefix.kept * tokens, {}
        counts = index.places(keys[: prefix.kept])
        below = {tier: counts[place] * tokens for place, tier in enumerate(TIERS) if place and counts[place]}
        return prefix.kept * tokens, below

    def in_tiers(self, session: str, rank: int | None = None) -> tuple[str, int]:
        """Return a tier below the GPUs', and how many tokens of a session's last round it and faster ones have.

        It is the tier of the last of these blocks; that GPU memory has them, too, does not count. The beginning of a
        round is taken to stay longest. 0 tokens where nothing is known.
        """
        keys = self._sessions.some_keys(session)
        indexes = [one.index for one in (self.ranks if rank is None else self.ranks[rank : rank + 1])]
        if not self.trusted or not keys or not any(sum(index.blocks[1:]) for index in indexes):
            return TIERS[0], 0
        index = max(indexes, key=lambda one: one.prefix(keys).kept)
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            if index.below(keys[middle]):
                low = middle + 1
            else:
                high = middle
        return (TIERS[index.below(keys[low - 1])], low * STRIDE * self.block_tokens) if low else (TIERS[0], 0)

    async def places(
        self, session: str, *, tokens: int, pinned: bool, rank: int | None = None
    ) -> dict[str, int] | None:
        """Return how many of a session's ``tokens`` are in each tier, and how many are nowhere (``none``), exactly.

        A token counts in the fastest tier that has it. Those behind the last whole block are in GPU memory while a
        handle keeps them (``pinned``), and nowhere afterwards. None where it is not known: events are not trusted,
        the last round's tokens are not known, or too many sessions came since. ``rank`` is the session's; if none is
        known, it is the one that keeps most.
        """
        keys, size = self._sessions.keys(session), self.block_tokens
        if not self.trusted or keys is None or len(keys) != tokens // size:
            return None
        indexes = [one.index for one in (self.ranks if rank is None else self.ranks[rank : rank + 1])]
        index = max(indexes, key=lambda one: one.prefix(keys).kept)
        counts = [0] * len(TIERS)
        for at in range(0, len(keys), PART):
            counts = [sum(pair) for pair in zip(counts, index.places(keys[at : at + PART]), strict=True)]
            await asyncio.sleep(0)
        found = {tier: count * size for tier, count in zip(TIERS, counts, strict=True)}
        if pinned:
            found["gpu"] += tokens % size
        return {**found, "none": tokens - sum(found.values())}

    async def forget_files(self, hashes: Sequence[int] | None) -> None:
        """Take blocks out of the disk's tier, whose files are deleted without an event; None: all of them."""
        for rank in self.ranks:
            for _ in rank.drop(DISK, hashes):
                await asyncio.sleep(0)

    def lost(self) -> None:
        """Forget everything: the engine is gone, and its cache with it."""
        for rank in self.ranks:
            rank.restart()
        self._checks.clear()
        self._missing = DISAGREEMENTS
        self._faults.reset()

    def describe(self, record: WorkerRecord) -> WorkerRecord:
        """Add to a heartbeat which beginnings of prompts are cached, while events can be trusted, and their faults."""
        self._check()
        faults = self._faults.found()
        if faults:
            record = replace(record, kv_tier_faults=record.kv_tier_faults + faults)
        if not self.trusted:
            return replace(record, kv_prefixes=None, kv_tier_prefixes=())
        self._update_sketches()
        return replace(record, kv_prefixes=self._sketch, kv_tier_prefixes=self._tier_sketches)

    def observe(self) -> None:
        """Bring gauges up to date."""
        self._metrics.kv_events_trusted.set(self.trusted)
        for place, tier in enumerate(TIERS):
            self._metrics.kv_events_blocks.labels(tier).set(sum(rank.index.blocks[place] for rank in self.ranks))

    async def _take_prompts(self) -> None:
        while True:
            await self._came.wait()
            self._came.clear()
            while self._served:
                await self._take(self._served.popleft())

    async def _take(self, prompt: ServedPrompt) -> None:
        size = self.block_tokens
        if not size:
            if prompt.computed_tokens >= UNSIZED:
                self._checks.append((self._clock() + CHECK_S, None))
            return
        raw, width, keys = id_bytes(prompt.ids), size * ID_BYTES, list[int]()
        extras = prompt.extras
        for at in range(0, len(raw), SLICE * width):
            before = keys[-1] if keys else START
            keys += block_keys(before, raw[at : at + SLICE * width], size, extras)
            extras = extras[-1:]
            await asyncio.sleep(0)
        self._links.record(prompt, keys, size, self._sessions.keys)
        self._sessions.record(prompt.session, keys)
        blocks = prompt.prompt_tokens // size
        if 0 < blocks <= len(keys):
            self._checks.append((self._clock() + CHECK_S, keys[blocks - 1]))

    def _check(self) -> None:
        """Hold prompts that were served a while ago against the index; which rank served them is not known."""
        now = self._clock()
        while self._checks and self._checks[0][0] <= now:
            _, key = self._checks.popleft()
            if key is None and self.block_tokens:
                continue  # events came meanwhile; its keys are not known
            agrees = key is not None and any(rank.index.reach(key).kept for rank in self.ranks)
            self._faults.prompt(agrees=agrees)
            trusted = self.trusted
            self._missing = 0 if agrees else self._missing + 1
            if trusted and not self.trusted:
                log.warning("kv_events_disagree", extra={"prompts": self._missing, "block_tokens": self.block_tokens})
            elif self.trusted and not trusted:
                log.info("kv_events_agree", extra={"block_tokens": self.block_tokens})

    def _update_sketches(self) -> None:
        """Make the sketch of all links that every rank keeps, as new sessions take turns among them, and of each tier.

        A link is in the tier of the last block before it, of the rank whose tier is slowest.
        """
        state = (self._links.version, *(rank.changes for rank in self.ranks))
        if state == self._state:
            return
        self._state = state
        indexes = [rank.index for rank in self.ranks]
        places: dict[int, int] = {}

        def kept(key: int) -> bool:
            reached = [index.reach(key) for index in indexes]
            if not all(one.kept for one in reached):
                return False
            if not all(one.gpu for one in reached):
                places[key] = max(1, *(index.tier_of(key) for index in indexes))
            return True

        cached = self._links.cached(kept)
        self._sketch = sketch_of(list(cached))
        by_tier: dict[int, list[bytes]] = {}
        for link, key in cached.items():
            if key in places:
                by_tier.setdefault(places[key], []).append(link)
        self._tier_sketches = tuple((TIERS[place], sketch_of(links)) for place, links in sorted(by_tier.items()))
