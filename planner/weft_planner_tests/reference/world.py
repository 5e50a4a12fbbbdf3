"""Keep the state of one run: sessions, engines, the events to come, links, and the dice."""

import math

from weft_core.cost import CostProfile
from weft_core.parallelism import Degree, parallelism_of
from weft_core.policies.registry import POLICIES
from weft_core.timing import transfer_seconds
from weft_planner.simulation.inputs import params_of, rows_of, sessions_of, share_of_slices, slices
from weft_planner.simulation.layout import Layout, PolicyChoice, SloClass
from weft_planner.simulation.options import Options
from weft_planner.workload.sessions import Sample
from weft_planner_tests.reference.parts import Engine, Round, Session


def limits_of(options: Options, degree: Degree, *, prefills: bool) -> tuple[float, float]:
    """Return how many sequences and tokens a step of an engine may have; its stages share the sequences."""
    limits = options.prefill if prefills else options.decode
    tokens = limits.max_tokens or math.inf
    concurrency = options.prefill_concurrency if limits.max_tokens else 1
    sequences = min(limits.max_sequences or math.inf, tokens)
    places = sequences if sequences == math.inf else max(1, sequences // parallelism_of(degree).pp)
    return min(places, concurrency if prefills else math.inf), tokens


class World:
    """``rows`` are the rounds in the sample's order; they hold what happened when all events are over."""

    def __init__(
        self,
        sample: Sample,
        layout: Layout,
        profile: CostProfile,
        policy: PolicyChoice,
        slo: tuple[SloClass, ...],
        options: Options,
        seed: int,
    ) -> None:
        layout = layout.of_batches()
        self.layout, self.policy, self.slo, self.options, self.profile = layout, policy, slo, options, profile
        self.sliced = slices(policy, options)
        self.slice_share = share_of_slices(policy, options)
        self.params = params_of(policy)
        self.oracle = options.admission == "oracle"
        self.pull = options.handover == "pull"
        self.read = options.history == "read" and POLICIES[policy.route].reads_history
        self.unreadable = options.history == "recompute" and self.pull and POLICIES[policy.route].reads_history
        kept = options.handover == "pull" or not POLICIES[policy.route].reads_history
        self.caches = options.prefix_cache and kept
        luck = rows_of(sample, options, seed)
        self.sessions = [
            Session(int(k), float(p) if options.prefix_cache else 0.0, float(r), float(a), float(h))
            for k, p, r, a, h in zip(
                sample.session_class, sample.prefix, sample.reserve, sample.arrival,
                sessions_of(sample, options, seed)["hash"], strict=True,
            )
        ]  # fmt: skip
        self.rows: list[Round] = []
        for i in range(sample.rows):
            session = self.sessions[sample.session[i]]
            row = Round(
                session, float(sample.history[i]), float(sample.increment[i]), int(sample.tokens[i]),
                float(sample.gap[i]), float(luck["noise"][i]), float(luck["chunk_noise"][i]),
                int(luck["read_sends"][i]), int(luck["back_sends"][i]),
            )  # fmt: skip
            if not session.rounds:
                session.kept_before = row.history
            session.rounds.append(row)
            self.rows.append(row)
        self.tiers = [
            (
                tier.capacity_tokens(profile.kv_bytes_per_token),
                tier.latency_s,
                profile.kv_bytes_per_token / tier.bytes_per_s,
            )
            for tier in options.tiers
        ]
        self.engines = [
            Engine(
                i,
                i < len(layout.prefill),
                w.both or layout.kind == "symmetric",
                profile.prefill_figures(w.degree),
                profile.step_figures(w.degree),
                profile.kv_capacity(w.degree) // layout.parts_of(w.degree),
                *limits_of(options, w.degree, prefills=i < len(layout.prefill)),
            )
            for i, w in enumerate(layout.workers)
        ]
        for engine, worker in zip(self.engines, layout.workers, strict=True):
            parts = parallelism_of(worker.degree)
            first = engine.number - worker.batch % parts.dp
            engine.mates = self.engines[first : first + parts.dp]
            whole = self.engines[engine.number - worker.batch]
            engine.below = [[] for _ in self.tiers]
            engine.loads_until = [-math.inf for _ in self.tiers]
            engine.stages = [0.0] * parts.pp if engine is whole else whole.stages  # one list for all its batches
        self.tokens_of_kind = [[r.tokens for r in self.rows if r.session.kind == k] for k in range(len(slo))]
        self.events: list[tuple[float, int, str, object]] = []
        self.sequence = 0
        self.taken = 0
        self.unbound: list[Round] = []
        self.dirty: list[Engine] = []
        self.room = False
        self.cursor = 0
        self.random = 1 + seed % 2147483645
        self.rate_from, self.count, self.count_before = self.sessions[0].arrival, 0, 0
        self.preemptions = self.evictions = 0
        self.loaded = 0.0
        self.ttl = options.retention == "ttl"
        self.by_value = options.retention == "value"
        self.writes_evicted = self.by_value or options.writes == "eviction"
        self.keeps_ended = options.ended == "keep" and options.admission == "reserve"
        self.waits: list[float] = []
        self.rounds_seen: list[tuple[int, int]] = []
        self.gaps_seen: list[list[float]] = [[] for _ in slo]
        self.read_tokens = self.back_tokens = 0.0

    def push(self, time: float, what: str, subject: object) -> None:
        """Set an event; ``what`` names its handler."""
        self.events.append((time, self.sequence, what, subject))
        self.sequence += 1

    def work(self, engine: Engine, what: str, seconds: float, now: float) -> None:
        """Set the end of what an engine begins: at once, or with the ranks that step with it."""
        engine.busy = True
        engine.pending = (what, seconds)
        if len(engine.mates) == 1:
            self.step_together(engine, now)

    def step_together(self, engine: Engine, now: float) -> None:
        """Let what an engine and its mates started end together."""
        started = [(mate, mate.pending) for mate in engine.mates if mate.pending is not None]
        if not started:
            return
        seconds = max(pending[1] for _, pending in started)
        if len(engine.mates) > 1:
            shared = self.options.shared_work
            mean = sum(pending[1] for _, pending in started) / len(engine.mates)
            seconds = (1 - shared) * seconds + shared * mean
        end = now
        for stage, free in enumerate(engine.stages):
            end = max(end, free) + seconds / len(engine.stages)
            engine.stages[stage] = end
        for mate, pending in started:
            self.push(end, pending[0], mate)
            mate.pending = None
        self.taken -= len(started) - 1  # they count as one event

    def pop(self) -> tuple[float, str, object]:
        """Take the earliest event, of equal ones the one set first."""
        event = min(self.events, key=lambda e: (e[0], e[1]))
        self.events.remove(event)
        self.taken += 1
        time, _, what, subject = event
        return time, what, subject

    def mark(self, engine: Engine) -> None:
        """Have an engine looked at before the next event."""
        if engine not in self.dirty:
            self.dirty.append(engine)

    def freed(self, engine: Engine) -> None:
        """Note that an engine has more room than before."""
        self.room = True
        self.mark(engine)

    def used(self, engine: Engine) -> float:
        """Return the KV in use: what is kept, or reserved, for its sessions, left by ended ones, held for others."""
        own = sum((s.reserve if self.oracle else s.kept) for s in self.sessions if s.worker is engine)
        own += sum(r.session.kept for r in engine.idle if r.session.worker is None)
        return own + sum(r.holds for r in self.rows if r.at is engine)

    def free(self, engine: Engine) -> float:
        """Return the KV that no round holds: what idle sessions and ended ones left can be evicted."""
        left = 0.0 if self.oracle else sum(r.session.kept for r in engine.idle)
        return engine.capacity - self.used(engine) + left

    def draw(self) -> float:
        """Return the next number of the dice, in [0, 1)."""
        self.random = self.random * 48271 % 2147483647
        return self.random / 2147483647

    def link(self, source: Engine, destination: Engine, tokens: float) -> float:
        """Return the seconds that a transfer takes on a link of its own."""
        a, b = self.layout.workers[source.number], self.layout.workers[destination.number]
        near = a.node >= 0 and a.node == b.node
        cost = self.profile.transfers[a.degree, b.degree, "intra-node" if near else "inter-node"]
        return transfer_seconds(cost.alpha, cost.per_token, tokens)

    def send(
        self, row: Round, what: str, source: Engine, destination: Engine, tokens: float, sends: int, now: float
    ) -> None:
        """Set the end of a transfer, behind the others of its links where these are shared."""
        seconds = self.link(source, destination, tokens) * sends
        if self.options.links == "fifo":
            end = max(now, source.out, destination.into) + seconds
            source.out = destination.into = end
        else:
            end = now + seconds
        self.push(end, what, row)
