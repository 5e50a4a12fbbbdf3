"""Decide what the engine does next: pure bookkeeping without clock, sockets or tasks.

Continuous batching as vLLM has it: first come, first served admission that waits when the KV pool
is full; a decode step serves every running sequence; when the pool runs dry the youngest sequence
gives its blocks back and starts over. Under priority scheduling the order is by priority, lower first, then by arrival,
and the worst of the running sequences gives way. Without ``chunk`` a prefill runs alone and decoding pauses
(prefill first); with it, a step has up to ``chunk`` tokens: one for each decode, the rest for prefills in order. A
sequence starts while there are fewer than ``max_sequences`` running and these leave it a token. One whose KV is read
from elsewhere, or loaded from a tier below the GPUs, takes no place meanwhile; when that is there, it may have to wait
for one, before those that came later.

Data-parallel ranks have sequences and steps of their own, which begin and end together, and one pool of blocks.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from weft_mock.blocks import Block, BlockPool
from weft_mock.kv_params import RemoteBlocks
from weft_mock.ledger import Ledger
from weft_mock.model import START, fold
from weft_mock.pacing import Pacing
from weft_mock.pins import PinTable
from weft_mock.sequence import Emission, Finish, Sequence
from weft_mock.tiers import Tiers
from weft_mock.tokenizer import END_OF_TURN


@dataclass(slots=True)
class Step:
    """One step of the engine: how long it takes, who decodes, and how many tokens are prefilled for whom."""

    seconds: float
    decodes: list[Sequence] = field(default_factory=list)
    prefills: list[tuple[Sequence, int]] = field(default_factory=list)

    @property
    def ready(self) -> float:
        """Return from when on it could have run: as soon as one of its sequences could."""
        return min(sequence.ready for sequence in (*self.decodes, *(sequence for sequence, _ in self.prefills)))


class Admission(NamedTuple):
    """Sequences that must read remote KV before they run, handles that turned out not to be needed, and ends of loads.

    When a load ends, the scheduler must be asked again.
    """

    fetch: list[Sequence]
    release: list[RemoteBlocks]
    loads: list[float]


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What the engine was started with; a remote history of up to ``recompute_threshold`` tokens is not read.

    ``max_sequences`` and ``chunk`` are those of each of ``ranks``; ``chunk``: the most tokens of a step, vLLM's
    max_num_batched_tokens. A rank runs ``batches`` at a time, each with as many; ``max_sequences`` counts those of all.
    ``prefix_cache``: full blocks serve later prompts. ``keeps_places``: a prefill counts as a sequence until its KV was
    read.
    """

    max_sequences: int
    chunk: int | None = None
    recompute_threshold: int = 0
    by_priority: bool = False
    batches: int = 1
    ranks: int = 1
    prefix_cache: bool = True
    keeps_places: bool = False


class Scheduler:
    """Own the queues, the blocks and the pins of one engine."""

    def __init__(
        self,
        *,
        pool: BlockPool,
        pins: PinTable,
        pacing: Pacing,
        ledger: Ledger,
        limits: SchedulerLimits,
        tiers: Tiers,
        describe: Callable[[str, Sequence], RemoteBlocks],
    ) -> None:
        """Start empty; ``describe`` turns a finished sequence into the handle of its pinned blocks."""
        self.pool = pool
        self.pins = pins
        self.pacing = pacing
        self.ledger = ledger
        self.limits = limits
        self.tiers = tiers
        if tiers.writes == "eviction":
            pool.on_spill = tiers.put
        self.waiting: deque[Sequence] = deque()
        self.fetching: list[Sequence] = []
        self.loading: dict[Sequence, tuple[float, int]] = {}
        """Those whose KV is loaded from tiers: when that ends, and how many tokens they have then."""
        self.loaded: deque[Sequence] = deque()
        """Those whose KV is here, read or loaded, and that wait for a place in the batch."""
        self.running: list[Sequence] = []
        self.leaked: list[Block] = []
        self.on_cached: Callable[[Sequence, int], None] = lambda _sequence, _index: None
        """Called with each block of a sequence that the prefix cache has from now on."""
        self._looked = float("-inf")
        self._describe = describe

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; one without a rank gets that with the fewest."""
        if sequence.rank < 0:
            counts = Counter(
                one.rank for one in (*self.waiting, *self.fetching, *self.loading, *self.loaded, *self.running)
            )
            sequence.rank = min(range(self.limits.ranks), key=lambda rank: counts[rank])
        if not self.limits.by_priority:
            self.waiting.append(sequence)
            return
        later = [index for index, other in enumerate(self.waiting) if _rank(other) > _rank(sequence)]
        self.waiting.insert(later[0] if later else len(self.waiting), sequence)

    def admit(self, now: float) -> Admission:
        """Start waiting sequences in order while there is a place in the batch and their blocks fit."""
        admission = Admission([], [], [])
        looked, self._looked = self._looked, now
        for sequence in [one for one, (ends, _) in self.loading.items() if ends <= now]:
            self._end_load(sequence)
        for sequence in self._first_of_ranks(self.loaded):
            self.loaded.remove(sequence)
            sequence.ready = now
            self.running.append(sequence)
        for sequence in self._first_of_ranks(self.waiting):
            size = self.pool.block_size
            # At least the last token is computed here: its step yields the next one.
            reusable = min((len(sequence.tokens) - 1) // size, len(sequence.states))
            keys = [sequence.key(i) for i in range(reusable)] if self.limits.prefix_cache else []
            hits = self.pool.cached_prefix(keys)
            fresh = self.pool.blocks_for(len(sequence.tokens)) - len(hits)
            if fresh + self.pool.idle(hits) > self.pool.free:
                break
            self.waiting.remove(sequence)
            sequence.computed = len(hits) * size
            first_time = sequence.admitted is None
            reads = first_time and self._reads(sequence)
            self.tiers.touch(keys)
            places = [] if reads else self.tiers.prefix(keys[len(hits) :])
            self.tiers.take(keys[len(hits) : len(hits) + len(places)])  # before others are evicted into them
            self.pool.share(hits)
            sequence.blocks = hits + self.pool.allocate(fresh)
            if sequence.words is None:
                sequence.record.cached = sequence.computed
            # What was passed over at the last look had to wait for blocks; the rest came since.
            sequence.ready = sequence.arrived if sequence.arrived > looked else now
            if first_time:
                sequence.admitted = now
            if reads:
                self.fetching.append(sequence)
                admission.fetch.append(sequence)
                continue
            if first_time and sequence.source is not None:
                admission.release.append(sequence.source)
            if places:
                ends = self.tiers.load(places, sequence.ready, scale=self.pacing.factor)
                read = 0 if self.tiers.faults.fail_loads else len(places)
                self.loading[sequence] = (ends, sequence.computed + read * size)
                admission.loads.append(ends)
            else:
                self.running.append(sequence)
        return admission

    def _end_load(self, sequence: Sequence) -> None:
        """Take a sequence whose KV was loaded from tiers, or could not be: then it is computed."""
        ends, tokens = self.loading.pop(sequence)
        sequence.ready = ends
        record = sequence.record
        if sequence.words is None:
            record.loaded = tokens - sequence.computed
            record.history = max(record.history, tokens)
        self._seal(sequence, sequence.computed, tokens)
        sequence.computed = tokens
        self._start(sequence)

    def _start(self, sequence: Sequence) -> None:
        """Let a sequence run whose KV is here, as soon as there is a place for it and those that were before it."""
        if all(one.rank != sequence.rank for one in self.loaded) and self._has_room(sequence.rank):
            self.running.append(sequence)
        else:
            self.loaded.append(sequence)

    @property
    def queued(self) -> int:
        """Return how many sequences wait: for blocks, or for a place in the batch."""
        return len(self.waiting) + len(self.loaded)

    def _first_of_ranks(self, line: Iterable[Sequence]) -> Iterator[Sequence]:
        """Yield those of a line that may run, in order: one that may not stops the others of its rank."""
        full: set[int] = set()
        for sequence in list(line):
            if sequence.rank not in full:
                if self._has_room(sequence.rank):
                    yield sequence
                else:
                    full.add(sequence.rank)
                    if len(full) == self.limits.ranks:
                        return

    def _has_room(self, rank: int) -> bool:
        """Return whether one more sequence may run: there is a place, and a token of the next step for it."""
        limits = self.limits
        running = [one for one in self.running if one.rank == rank]
        pinned = len(self.pins) if limits.keeps_places else 0
        if len(running) + pinned >= limits.max_sequences:
            return False
        return limits.chunk is None or sum(one.missing for one in running) < limits.chunk * limits.batches

    def _reads(self, sequence: Sequence) -> bool:
        """Return whether remote KV is read: always for an import, else when more than the threshold is missing."""
        source = sequence.source
        known = min(source.tokens, sequence.prompt_length) if source else 0
        sequence.record.history = max(known, sequence.computed)
        if source is None:
            return False
        return sequence.importing or known - sequence.computed > self.limits.recompute_threshold

    def fetched(self, sequence: Sequence, tokens: int, at: float) -> list[Emission]:
        """Take a sequence whose first ``tokens`` tokens have their KV here, verified against its own prompt.

        With first tokens made elsewhere nothing of the prompt is computed here, and they are returned to be sent.
        """
        self.fetching.remove(sequence)
        sequence.ready = at
        record = sequence.record
        have = min(tokens, sequence.prompt_length - (0 if sequence.given else 1))
        if have > sequence.computed:
            record.read = have - sequence.computed
            self._seal(sequence, sequence.computed, have)
            sequence.computed = have
        self._start(sequence)
        emitted: list[Emission] = []
        for token in sequence.given:
            sequence.tokens.append(token)
            emitted.append(self._made(sequence, token, at))
            if emitted[-1].finish is not None:
                break
        return emitted

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence that failed or was cancelled and free its blocks; a second call does nothing."""
        if not sequence.live:
            return
        sequence.live = False
        self.loading.pop(sequence, None)
        for queue in (self.running, self.fetching):
            if sequence in queue:
                queue.remove(sequence)
        for line in (self.waiting, self.loaded):
            if sequence in line:
                line.remove(sequence)
        self.pool.release(sequence.blocks)
        sequence.blocks = []

    def plan(self) -> Step | None:
        """Return the next step, or None when nobody can be served: that of all ranks."""
        busy = {s.rank for s in self.running if s.missing > 1} if self.limits.chunk is None else set()
        # One that gave its blocks back to a later one decodes nothing.
        decodable = [s for s in self._decodable(busy) if s.blocks]
        steps = [
            step
            for rank in range(self.limits.ranks)
            if (step := self._plan_rank(rank, [s for s in decodable if s.rank == rank])) is not None
        ]
        if not steps:
            return None
        return Step(
            self.pacing.together([step.seconds for step in steps], self.limits.ranks),
            [sequence for step in steps for sequence in step.decodes],
            [prefill for step in steps for prefill in step.prefills],
        )

    def _plan_rank(self, rank: int, decodes: list[Sequence]) -> Step | None:
        """Return what a rank's own sequences do in the next step, and how long by themselves."""
        starting = [s for s in self.running if s.rank == rank and s.missing > 1]
        if starting and self.limits.chunk is None:
            first = starting[0]
            seconds = self.pacing.prefill(history=first.computed, increment=first.missing)
            return Step(seconds, prefills=[(first, first.missing)])
        budget = (self.limits.chunk or 0) - len(decodes) // self.limits.batches
        prefills: list[tuple[Sequence, int]] = []
        for sequence in starting:
            if budget < 1:
                break
            if not sequence.blocks:
                continue
            part = min(budget, sequence.missing)
            prefills.append((sequence, part))
            budget -= part
        if not decodes and not prefills:
            return None
        context = sum(len(s.tokens) for s in decodes)
        if prefills:
            chunks = [(s.computed, part) for s, part in prefills]
            seconds = self.pacing.mixed(batch=len(decodes), context=context, chunks=chunks)
        else:
            seconds = self.pacing.decode(batch=len(decodes), context=context)
        return Step(seconds, decodes, prefills)

    def _decodable(self, busy: set[int]) -> list[Sequence]:
        """Return the sequences that can decode, each with a block for the token; preempt when there is none.

        Ranks that are ``busy`` with a prefill decode nothing.
        """
        size = self.pool.block_size
        decodes: list[Sequence] = []
        for sequence in list(self.running):
            # A sequence preempted by one before it has no blocks any more.
            if sequence.missing != 1 or not sequence.blocks or sequence.rank in busy:
                continue
            if len(sequence.blocks) * size < len(sequence.tokens):
                while not self.pool.free and (worst := self._worst()) is not sequence:
                    self._preempt(worst)
                if not self.pool.free:
                    self._preempt(sequence)
                    continue
                sequence.blocks += self.pool.allocate(1)
            decodes.append(sequence)
        return decodes

    def _worst(self) -> Sequence:
        return max(self.running, key=_rank) if self.limits.by_priority else self.running[-1]

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.computed = 0
        if sequence.words is None:
            record = sequence.record
            record.cached = record.read = record.loaded = record.computed = record.history_recomputed = 0
        self.waiting.appendleft(sequence)
        self.ledger.preemptions += 1

    def finish(self, step: Step, now: float) -> list[Emission]:
        """Apply a step that has run: grow the KV, emit tokens, end sequences and pin what others will read."""
        emitted: list[Emission] = []
        for sequence, part in step.prefills:
            if sequence.live:
                self._advance(sequence, part)
                if sequence.missing == 0:
                    emitted.append(self._emit(sequence, now))
        for sequence in step.decodes:
            if sequence.live:
                self._advance(sequence, 1)
                emitted.append(self._emit(sequence, now))
        return emitted

    def _advance(self, sequence: Sequence, count: int) -> None:
        before, after = sequence.computed, sequence.computed + count
        record = sequence.record
        of_prompt = max(0, min(after, sequence.prompt_length) - before)
        if sequence.words is None:
            record.computed += of_prompt
            record.history_recomputed += max(0, min(after, record.history, sequence.prompt_length - 1) - before)
        else:
            # Only a sequence that was preempted computes again what it had; the token just generated is not part of it.
            self.ledger.recomputed_after_preemption_tokens += max(0, count - 1)
        self._seal(sequence, before, after)
        sequence.computed = after

    def _seal(self, sequence: Sequence, before: int, after: int) -> None:
        size = self.pool.block_size
        for index in range(before // size, after // size):
            if index == len(sequence.states):
                held = sequence.states[-1] if sequence.states else START
                sequence.states.append(fold(held, sequence.tokens[index * size : (index + 1) * size]))
            block = sequence.blocks[index]
            if self.pool.seal(block, key=sequence.key(index), state=sequence.states[index]):
                self.on_cached(sequence, index)
            if self.limits.prefix_cache:
                self.tiers.sealed(sequence.key(index), sequence.states[index])

    def _emit(self, sequence: Sequence, now: float) -> Emission:
        return self._made(sequence, sequence.next_token(self.pool.block_size), now)

    def _made(self, sequence: Sequence, token: int, now: float) -> Emission:
        """Count a token that was just added, and end the sequence if it was the last."""
        record, limits = sequence.record, sequence.limits
        record.generated += 1
        reason: Finish | None = None
        if (token == END_OF_TURN and not limits.ignore_eos) or (
            token in limits.stop_token_ids and record.generated >= limits.min_tokens
        ):
            reason = "stop"
        elif record.generated >= limits.max_tokens:
            reason = "length"
        if reason is not None:
            self._end(sequence, now, keep=sequence.keep_stopped or reason != "stop")
        return Emission(sequence, token, reason)

    def _end(self, sequence: Sequence, now: float, *, keep: bool) -> None:
        sequence.live = False
        (self.loaded if sequence in self.loaded else self.running).remove(sequence)
        if sequence.keep is None or not keep:
            self.pool.release(sequence.blocks)
            return
        if sequence.keep == "leak":
            self.leaked += sequence.blocks
            return
        held = self.pool.blocks_for(sequence.computed)
        self.pool.release(sequence.blocks[held:])
        kept = sequence.blocks[:held]
        ids = sequence.tokens[: sequence.computed]
        self.pins.add(sequence.request_id, holder=sequence.keep, blocks=kept, ids=ids, now=now)
        sequence.handle = self._describe(sequence.request_id, sequence)
        self.ledger.handles["given"] += 1


def _rank(sequence: Sequence) -> tuple[int, float]:
    """Return the place of a sequence under priority scheduling: the smaller, the earlier."""
    return sequence.priority, sequence.arrived
