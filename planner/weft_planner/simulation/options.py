"""Configure how simulated engines, links and clients behave; all defaults are here."""

import math
from dataclasses import dataclass
from typing import Literal

from weft_core.kv_tiers import KV_WRITES, KVTier, KVTierError, KVWrites, check_order
from weft_core.parallelism import Degree, parallelism_of
from weft_core.policies.retention import RETENTIONS, Retention
from weft_planner.simulation.layout import SimulationError

Links = Literal["none", "fifo", "fair"]
LINKS: tuple[Links, ...] = ("none", "fifo", "fair")
History = Literal["read", "recompute"]
HISTORIES: tuple[History, ...] = ("read", "recompute")
Admission = Literal["oracle", "reserve"]
ADMISSIONS: tuple[Admission, ...] = ("oracle", "reserve")
ChangeTo = Literal["off", "prefill", "decode"]
CHANGES: tuple[ChangeTo, ...] = ("off", "prefill", "decode")
Handover = Literal["push", "pull"]
HANDOVERS: tuple[Handover, ...] = ("push", "pull")
Sessions = Literal["send", "recompute"]
SESSIONS: tuple[Sessions, ...] = ("send", "recompute")
Ended = Literal["free", "keep"]
ENDED: tuple[Ended, ...] = ("free", "keep")
Evicts = Literal["sessions", "tokens"]
EVICTS: tuple[Evicts, ...] = ("sessions", "tokens")

LONGEST_CHUNK = 1_000_000
"""Tokens of a chunk at most: no engine is given longer contexts."""


@dataclass(frozen=True, slots=True)
class Change:
    """At time ``at`` a worker drains, and ``delay_s`` after it is empty it gets the role ``to``.

    ``at`` = -infinity sets the worker's initial role. ``sessions``: the KV of idle sessions bound to a draining decode
    worker is sent to another worker, or dropped and recomputed in their next round.
    """

    at: float
    worker: int
    to: ChangeTo
    sessions: Sessions = "send"
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What the steps of a role's engines may have: sequences, and tokens; None: as much as there is.

    In vLLM's words ``max_num_seqs`` and ``max_num_batched_tokens``. Both count for each data-parallel rank; the
    sequences are those of all pipeline stages together.
    """

    max_sequences: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("max_sequences", self.max_sequences), ("max_tokens", self.max_tokens)):
            if value is not None and not 1 <= value <= 1_000_000_000:
                raise SimulationError(f"{name}: {value!r} is not between 1 and 1000000000")
        if self.max_tokens is not None and (self.max_sequences or 0) > self.max_tokens:
            raise SimulationError(
                f"max_sequences: {self.max_sequences} is above max_tokens {self.max_tokens}, and every sequence of a "
                "step takes a token; raise max_tokens or lower max_sequences"
            )

    def sequences_of_batch(self, degree: Degree) -> int | None:
        """Return how many sequences one batch of a worker of a degree may have, None without a limit.

        Every sequence takes a token of its step, and the batches of all pipeline stages share an engine's sequences.
        """
        given = [limit for limit in (self.max_sequences, self.max_tokens) if limit is not None]
        return max(1, min(given) // parallelism_of(degree).pp) if given else None


NO_LIMITS = StepLimits()


@dataclass(frozen=True, slots=True)
class Options:
    """How engines, links and measurements work.

    * ``chunked``: local prefills run in chunks, each in one step with the decodes; False: they pause decoding. None:
      chunks in the modes of ``weft`` that predict them, whole prefills elsewhere (as the published baselines ran).
    * ``chunk_limit``: longest chunk in tokens; ``chunk_fraction``: a step with a chunk may take this share of the ITL
      SLO (infinite: only ``chunk_limit`` bounds a chunk); ``chunk_floor``: shortest chunk, so that an engine with slow
      steps still makes progress.
    * ``slice_turn_s``: 0: the engine makes the chunks, one in every step. Above 0: a router sends each chunk as a slice
      of its own, this long after the one before is computed. The engine decodes meanwhile, so at most every other step
      has a chunk; an engine that decodes nothing gets all that is left at once.
    * ``prefill``, ``decode``: what the steps of each role's engines may have. A decode worker's sequences beyond its
      limit wait: those that have their KV first, then a local prefill, and no more KV is fetched. With a token budget
      each step takes the decodes first and then as much as is left of the prefill beside them, which is never whole
      (chunks are still no longer than ``chunked`` lets them be). A prefill worker with a budget computes up to
      ``prefill_concurrency`` prompts at a time, in order; without one it computes them one by one, each in one step.
    * ``shared_work``: the share of a rank's work that all data-parallel ranks of its worker do together, that of routed
      experts; the rest is as long as that of the fullest rank.
    * ``links``: KV transfers do not affect each other (``none``), queue at the network cards of both ends (``fifo``) or
      share them (``fair``). ``retransmit_probability``: that a transfer must be sent twice.
    * ``history``: a remote prefill reads the session's KV back, or recomputes it and returns all of it; with ``pull``
      it recomputes only what its worker's prefix cache lacks, where that is less than the round's new tokens.
    * ``handover``: how a remote prefill's KV gets to the decode worker. ``push``: it is sent when the prefill ends,
      which yields the first token, and the history is read while the task queues (as the papers assume). ``pull``, as
      vLLM with NIXL: the decode engine fetches it from its next step on and yields the first token by a decode step;
      the history, except for what the worker's prefix cache still has, is read while the prefill before it is computed,
      or when the prefill's own turn has come.
    * ``prefix_cache``: engines keep what they computed for later prompts with the same beginning.
    * ``min_cache_hit_ratio``: a binding counts the part of a prompt that a worker has cached from this share on.
    * ``admission``: ``oracle`` knows each session's final length, reserves its KV from the first round on, and never
      preempts; ``reserve`` allocates as sequences grow, evicts idle sessions and preempts running ones when full.
    * ``retention``: which idle sessions are evicted first with ``reserve``, and which are not: see
      ``weft_core.policies.retention``.
    * ``evicts``: an idle session that is evicted loses all of its KV (``sessions``), or as many tokens from its end as
      others need (``tokens``), as engines evict block by block.
    * ``ended``: with ``reserve``, the KV of a session that ended is freed at once (``free``), or stays like that of an
      idle one until others need the room (``keep``), as in engines, which know of no sessions.
    * ``tiers``: memory below each worker's GPUs, fastest first, where decode workers keep the KV of rounds.
    * ``writes``: tiers get a session's KV when a round ends (``through``), or when it is evicted (``eviction``); with
      ``retention`` ``value`` it is always the latter.
    * ``window_s``: span of the TTFT and ITL means that ``ampd`` reads.
    * ``prefill_noise_sigma``: lognormal error of whole prefills against their predictions, which have none;
      ``chunk_noise_sigma``: the same for what chunks add to steps.
    * ``warm_up``, ``cool_down``: sessions arriving in this first and last share of the window are not counted.
    * ``timeline_s``: record every worker's queue, batch and KV this often; 0: never.
    """

    chunked: bool | None = None
    chunk_limit: int = 4096
    chunk_fraction: float = 0.9
    chunk_floor: int = 32
    slice_turn_s: float = 0.0
    prefill: StepLimits = NO_LIMITS
    decode: StepLimits = NO_LIMITS
    prefill_concurrency: int = 1
    shared_work: float = 0.0
    links: Links = "fifo"
    history: History = "read"
    handover: Handover = "push"
    prefix_cache: bool = True
    min_cache_hit_ratio: float = 0.0
    admission: Admission = "reserve"
    retention: Retention = "lru"
    evicts: Evicts = "sessions"
    ended: Ended = "free"
    tiers: tuple[KVTier, ...] = ()
    writes: KVWrites = "through"
    window_s: float = 10.0
    prefill_noise_sigma: float = 0.0
    chunk_noise_sigma: float = 0.0
    retransmit_probability: float = 0.0
    warm_up: float = 0.15
    cool_down: float = 0.05
    changes: tuple[Change, ...] = ()
    timeline_s: float = 0.0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("chunk_fraction", 0.01, math.inf),
            ("slice_turn_s", 0.0, 60.0),
            ("window_s", 1e-3, 3600.0),
            ("shared_work", 0.0, 1.0),
            ("min_cache_hit_ratio", 0.0, 1.0),
            ("prefill_noise_sigma", 0.0, 3.0),
            ("chunk_noise_sigma", 0.0, 3.0),
            ("retransmit_probability", 0.0, 0.9),
            ("warm_up", 0.0, 0.9),
            ("cool_down", 0.0, 0.9),
            ("timeline_s", 0.0, math.inf),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise SimulationError(f"{name}: {value!r} is not between {low:g} and {high:g}")
        if self.warm_up + self.cool_down >= 1:
            raise SimulationError("warm_up, cool_down: together they leave no session to count; keep their sum below 1")
        if not 1 <= self.chunk_floor <= self.chunk_limit <= LONGEST_CHUNK:
            raise SimulationError(
                f"chunk_floor, chunk_limit: {self.chunk_floor} and {self.chunk_limit} tokens; "
                f"give 1 <= floor <= limit <= {LONGEST_CHUNK}"
            )
        if not 1 <= self.prefill_concurrency <= 1024:
            raise SimulationError(f"prefill_concurrency: {self.prefill_concurrency} is not between 1 and 1024")
        for name, value, known in (
            ("links", self.links, LINKS),
            ("history", self.history, HISTORIES),
            ("handover", self.handover, HANDOVERS),
            ("admission", self.admission, ADMISSIONS),
            ("retention", self.retention, RETENTIONS),
            ("evicts", self.evicts, EVICTS),
            ("ended", self.ended, ENDED),
            ("writes", self.writes, KV_WRITES),
        ):
            if value not in known:
                raise SimulationError(f"{name}: {value!r} is none of {', '.join(known)}")
        if self.ended == "keep" and self.changes:
            raise SimulationError(
                "ended: 'keep' goes without changes of roles, which wait for empty engines; take 'free'"
            )
        try:
            check_order([tier.name for tier in self.tiers])
        except KVTierError as error:
            raise SimulationError(f"tiers: {error}") from error
        for change in self.changes:
            if math.isnan(change.at) or change.at == math.inf or change.to not in CHANGES or change.delay_s < 0:
                raise SimulationError(
                    f"changes: {change} needs a time, a role of {', '.join(CHANGES)} and a delay >= 0"
                )
            if change.sessions not in SESSIONS:
                raise SimulationError(f"changes: sessions {change.sessions!r} is none of {', '.join(SESSIONS)}")
