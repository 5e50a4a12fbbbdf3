"""Simulate sessions the slow and obvious way: objects, lists and sums, every token on its own, no compiled code.

It follows the same words as the compiled simulator (docstrings of ``weft_planner.simulation``) and asks the same
policies; whatever the compiled one keeps as a running total is added up from scratch here.
"""

import math
from dataclasses import dataclass, field

from weft_core.cost import CostProfile
from weft_core.policies import features as f
from weft_core.policies.catalogue import BINDINGS, ORDERS, POLICIES
from weft_core.policies.decide import decide
from weft_core.policies.decide_binding import bind
from weft_core.policies.decide_order import ORDER_MAX, next_task
from weft_core.policies.reasons import LOCAL_CHUNKED, LOCAL_WHOLE
from weft_core.timing import chunked_seconds, largest_chunk, prefill_seconds, step_seconds, transfer_seconds
from weft_planner.sessions import Sample
from weft_planner.simulation.inputs import params_of, rows_of, slices
from weft_planner.simulation.layout import Layout, PolicyChoice, SloClass
from weft_planner.simulation.options import Options

NAN = math.nan


@dataclass(eq=False)
class Session:
    kind: int
    prefix: float
    reserve: float
    arrival: float
    rounds: list["Round"] = field(default_factory=list)
    worker: "Engine | None" = None
    kept: float = 0.0
    late: bool = False


@dataclass(eq=False)
class Round:
    number: int
    session: Session
    history: float
    increment: float
    tokens: int
    gap: float
    noise: float
    chunk_noise: float
    read_sends: int
    back_sends: int
    arrival: float = NAN
    ttft: float = NAN
    finished: float = NAN
    emitted: list[float] = field(default_factory=list)
    state: int = 0
    route: int = -2
    reason: int = -1
    # its prefill task
    cached: float = 0.0
    compute: float = 0.0
    done: float = 0.0
    back: float = 0.0
    whole: bool = False
    ready: bool = True
    postponed: int = 0
    at: "Engine | None" = None
    holds: float = 0.0
    unread: float = 0.0
    taken: float = 0.0
    starts: bool = False
    preempted: bool = False

    @property
    def first(self) -> bool:
        return self is self.session.rounds[0]

    @property
    def context(self) -> float:
        return self.history + self.increment + len(self.emitted)


@dataclass(eq=False)
class Engine:
    number: int
    prefills: bool
    colocated: bool
    pre: tuple[float, ...]
    step: tuple[float, ...]
    capacity: float
    queue: list[Round] = field(default_factory=list)
    waiting: list[Round] = field(default_factory=list)
    joining: list[Round] = field(default_factory=list)
    fetching: list[Round] = field(default_factory=list)
    taken: float = 0.0
    batch: list[Round] = field(default_factory=list)
    idle: list[Round] = field(default_factory=list)
    current: Round | None = None
    busy: bool = False
    chunk: int = 0
    cached: set[int] = field(default_factory=set)
    ttfts: list[tuple[float, float]] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    chosen: float = -1e9
    out: float = 0.0
    into: float = 0.0
    last_step: float = NAN


class Reference:
    """One run; ``rows`` are the rounds in the sample's order when ``run`` returns."""

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
        self.layout, self.policy, self.slo, self.options, self.profile = layout, policy, slo, options, profile
        self.sliced = slices(policy, options)
        self.params = params_of(policy)
        self.oracle = options.admission == "oracle"
        self.read = options.history == "read"
        self.pull = options.handover == "pull"
        luck = rows_of(sample, options, seed)
        self.sessions = [
            Session(int(k), float(p), float(r), float(a))
            for k, p, r, a in zip(sample.session_class, sample.prefix, sample.reserve, sample.arrival, strict=True)
        ]
        self.rows: list[Round] = []
        for i in range(sample.rows):
            session = self.sessions[sample.session[i]]
            row = Round(
                i, session, float(sample.history[i]), float(sample.increment[i]), int(sample.tokens[i]),
                float(sample.gap[i]), float(luck["noise"][i]), float(luck["chunk_noise"][i]),
                int(luck["read_sends"][i]), int(luck["back_sends"][i]),
            )  # fmt: skip
            session.rounds.append(row)
            self.rows.append(row)
        self.engines = [
            Engine(
                i,
                i < len(layout.prefill),
                w.colocated or layout.kind == "colocated",
                profile.prefill_figures(w.degree),
                profile.step_figures(w.degree),
                profile.kv_capacity(w.degree),
            )
            for i, w in enumerate(layout.workers)
        ]
        self.tokens_of_kind = [[r.tokens for r in self.rows if r.session.kind == k] for k in range(len(slo))]
        self.events: list[tuple[float, int, str, object]] = []
        self.sequence = 0
        self.taken = 0
        self.unbound: list[Round] = []
        self.dirty: list[Engine] = []
        self.room = False
        self.cursor = 0
        self.random = 1 + seed % 2147483645
        self.arrivals: list[float] = []
        self.rate_from, self.count, self.count_before = self.sessions[0].arrival, 0, 0
        self.preemptions = self.evictions = 0
        self.read_tokens = self.back_tokens = 0.0

    # Events.

    def run(self) -> None:
        self.push(self.sessions[0].arrival, "arrive", self.sessions[0].rounds[0])
        while self.events:
            event = min(self.events, key=lambda e: (e[0], e[1]))
            self.events.remove(event)
            self.taken += 1
            now, _, what, subject = event
            getattr(self, what)(subject, now)
            self.settle(now)
            self.check()

    def push(self, time: float, what: str, subject: object) -> None:
        self.events.append((time, self.sequence, what, subject))
        self.sequence += 1

    def check(self) -> None:
        for engine in self.engines:
            assert -1e-9 <= self.used(engine) <= engine.capacity + 1e-9

    def used(self, engine: Engine) -> float:
        """Return the KV in use: what is kept, or reserved, for its sessions, and what it holds for others."""
        own = sum((s.reserve if self.oracle else s.kept) for s in self.sessions if s.worker is engine)
        return own + sum(r.holds for r in self.rows if r.at is engine)

    def mark(self, engine: Engine) -> None:
        if engine not in self.dirty:
            self.dirty.append(engine)

    def freed(self, engine: Engine) -> None:
        self.room = True
        self.mark(engine)

    def settle(self, now: float) -> None:
        while self.room or self.dirty:
            if self.room:
                self.room = False
                while self.unbound:
                    to = self.place(self.unbound[0])
                    if to is None:
                        break
                    row = self.unbound.pop(0)
                    row.session.worker = to
                    to.waiting.append(row)
                    self.mark(to)
                continue
            engine = self.dirty.pop()
            while engine.waiting and self.admit(engine.waiting[0], engine):
                self.start_round(engine.waiting.pop(0), engine, now)
            if not engine.busy:
                self.begin(engine, now)

    def draw(self) -> float:
        self.random = self.random * 48271 % 2147483647
        return self.random / 2147483647

    # Rounds and memory.

    def arrive(self, row: Round, now: float) -> None:
        at = self.sessions.index(row.session)
        if row.first and at + 1 < len(self.sessions):
            self.push(self.sessions[at + 1].arrival, "arrive", self.sessions[at + 1].rounds[0])
        if now - self.rate_from > self.options.window_s:
            self.count_before, self.count, self.rate_from = self.count, 0, now
        self.count += 1
        row.arrival = now
        home = row.session.worker
        context = row.session.reserve if self.oracle else row.history + row.increment + row.tokens
        where = [e for e in self.engines if not e.prefills] if home is None else [home]
        if context > max(e.capacity for e in where):
            row.state = 2
            if home is not None:
                self.end_session(row, home)
        elif home is None:
            self.unbound.append(row)
            self.room = True
        else:
            home.waiting.append(row)
            self.mark(home)

    def place(self, row: Round) -> Engine | None:
        session = row.session
        need = session.reserve if self.oracle else row.history + row.increment + 1
        engines = [e for e in self.engines if not e.prefills]
        idle = [sum(r.session.kept for r in e.idle) for e in engines]
        for attempt in range(1 if self.oracle or not sum(idle) else 2):
            free = [e.capacity - self.used(e) + attempt * idle[k] for k, e in enumerate(engines)]
            chosen = bind(
                BINDINGS[self.policy.binding].code,
                need,
                [x if x >= need else -1e300 for x in free],
                [e.capacity for e in engines],
                [float(sum(s.worker is e for s in self.sessions)) for e in engines],
                [session.prefix if session.kind in e.cached else 0.0 for e in engines],
                [float(len(e.batch) + len(e.waiting) + len(e.queue)) for e in engines],
                self.cursor % len(engines),
            )
            if chosen >= 0:
                self.cursor = chosen + 1
                return engines[chosen]
        return None

    def evict(self, engine: Engine, spared: Round | None) -> bool:
        for row in engine.idle:
            if row is not spared:
                engine.idle.remove(row)
                row.session.kept = 0.0
                self.evictions += 1
                return True
        return False

    def admit(self, row: Round, engine: Engine) -> bool:
        need = row.history + row.increment + 1 + max(0, len(row.emitted) - 1)
        if not self.oracle:
            others = len(engine.batch) + len(engine.queue) + len(engine.joining)
            while self.used(engine) + need - row.session.kept + others > engine.capacity:
                if not self.evict(engine, row):
                    return False
        if row in engine.idle:
            engine.idle.remove(row)
        return True

    def end_session(self, row: Round, engine: Engine) -> None:
        if row in engine.idle:
            engine.idle.remove(row)
        row.session.worker = None
        row.session.kept = 0.0
        self.freed(engine)

    # Routing.

    def prefix_on(self, row: Round, engine: Engine) -> float:
        cached = row.first and row.session.kind in engine.cached
        return min(row.session.prefix, row.increment - 1) if cached else 0.0

    def elsewhere(self, row: Round, engine: Engine, present: float, total: float) -> tuple[float, float, float]:
        if row.first:
            cached = self.prefix_on(row, engine)
            return cached, total - cached, 0.0
        return (present, total - present, present) if self.read and present > 0 else (0.0, total, 0.0)

    def link(self, source: Engine, destination: Engine, tokens: float) -> float:
        a, b = self.layout.workers[source.number], self.layout.workers[destination.number]
        near = a.node >= 0 and a.node == b.node
        cost = self.profile.transfers[a.degree, b.degree, "intra-node" if near else "inter-node"]
        return transfer_seconds(cost.alpha, cost.per_token, tokens)

    def limit(self, engine: Engine) -> float:
        kinds = {r.session.kind for r in engine.batch} or set(range(len(self.slo)))
        return self.options.chunk_fraction * min(self.slo[k].itl_s for k in kinds)

    def sliced_seconds(self, engine: Engine, history: float, tokens: float) -> float:
        context = sum(r.context for r in engine.batch)
        size, most = float(len(engine.batch)), self.options.chunk_limit
        return chunked_seconds(engine.step, size, context, history, tokens, self.limit(engine), most)

    def sliced_queue(self, engine: Engine) -> float:
        rest = sum(r.compute - r.done for r in engine.queue)
        if rest <= 0:
            return 0.0
        work = sum((r.compute - r.done) * (r.cached + r.done + (r.compute - r.done) / 2) for r in engine.queue)
        return self.sliced_seconds(engine, max(0.0, work / rest - rest / 2), rest)

    def whole_queue(self, engine: Engine) -> float:
        return sum(prefill_seconds(engine.pre, r.cached, r.compute) for r in engine.queue)

    def mean(self, samples: list[tuple[float, float]], now: float) -> float:
        recent = [x for t, x in samples if t >= now - self.options.window_s]
        return sum(recent) / len(recent) if recent and self.policy.route == "ampd" else NAN

    def gaps_of(self, row: Round) -> list[float]:
        return [b - a for a, b in zip(row.emitted, row.emitted[1:], strict=False)]

    def start_round(self, row: Round, home: Engine, now: float) -> None:
        session, kind = row.session, self.slo[row.session.kind]
        present = self.prefix_on(row, home) if row.first else min(session.kept, row.history)
        total = row.history + row.increment + max(0, len(row.emitted) - 1)
        session.kept = total + 1
        if row.preempted:
            self.queue_task(row, home, 0.0, total, 0.0, not self.sliced, now)
            return
        tokens = total - present
        others = [] if home.colocated else [e for e in self.engines if e is not home and self.may_help(e, total)]
        span = min(self.options.window_s + now - self.rate_from, max(1.0, now - self.sessions[0].arrival))
        task = [0.0] * f.TASK_SIZE
        task[f.TASK_HISTORY], task[f.TASK_INCREMENT], task[f.TASK_WAITED] = present, tokens, now - row.arrival
        task[f.TASK_TTFT_SLO], task[f.TASK_ITL_SLO] = kind.ttft_s, kind.itl_s
        task[f.TASK_ROUND] = session.rounds.index(row)
        lengths = self.tokens_of_kind[session.kind]
        task[f.TASK_DECODE] = sum(lengths) / len(lengths)
        task[f.TASK_RATE] = (self.count + self.count_before) / span
        task[f.TASK_UNIFORM], task[f.TASK_PRIORITY] = self.draw(), kind.priority
        context = sum(r.context for r in home.batch)
        local = [0.0] * f.LOCAL_SIZE
        local[f.LOCAL_QUEUE_S] = self.whole_queue(home)
        local[f.LOCAL_PREFILL_S] = prefill_seconds(home.pre, present, tokens)
        local[f.LOCAL_CHUNKED_QUEUE_S] = self.sliced_queue(home) if self.sliced else math.inf
        local[f.LOCAL_CHUNKED_S] = self.sliced_seconds(home, present, tokens) if self.sliced else math.inf
        local[f.LOCAL_WINDOWED_ITL] = self.mean(home.gaps, now)
        local[f.LOCAL_BATCH], local[f.LOCAL_CONTEXT] = len(home.batch), context
        local[f.LOCAL_STEP_S] = step_seconds(home.step, max(1.0, len(home.batch)), context)
        local[f.LOCAL_KV_FREE], local[f.LOCAL_QUEUED] = home.capacity - self.used(home), len(home.queue)
        remote: list[float] = []
        for engine in others:
            cached, compute, read = self.elsewhere(row, engine, present, total)
            one = [0.0] * f.REMOTE_SIZE
            helps = not engine.prefills and self.sliced
            one[f.REMOTE_QUEUE_S] = self.sliced_queue(engine) if helps else self.whole_queue(engine)
            one[f.REMOTE_PREFILL_S] = (
                self.sliced_seconds(engine, cached, compute) if helps else prefill_seconds(engine.pre, cached, compute)
            )
            one[f.REMOTE_READ_S] = self.link(home, engine, read)
            one[f.REMOTE_BACK_S] = self.link(engine, home, tokens if self.read else total)
            one[f.REMOTE_WINDOWED_TTFT] = self.mean(engine.ttfts, now)
            one[f.REMOTE_QUEUED], one[f.REMOTE_CACHED] = len(engine.queue), self.prefix_on(row, engine)
            one[f.REMOTE_KV_USE] = self.used(engine) / engine.capacity
            one[f.REMOTE_IDLE_S], one[f.REMOTE_RATE] = now - engine.chosen, 1.0
            remote += one
        order = list(range(len(others)))
        for k in range(len(others) - 1, 0, -1):
            other = int(self.draw() * (k + 1))
            order[k], order[other] = order[other], order[k]
        sums, counts = [], []
        for r in [one for one in home.batch if not one.starts]:
            gaps = [g for one in r.session.rounds for g in self.gaps_of(one)]
            late = sum(g > self.slo[r.session.kind].itl_s for g in gaps)
            sums.append(float(sum(gaps)) if self.policy.params.get("itl_statistic", 0) == 0 else float(late))
            counts.append(float(len(gaps)))
        choice, row.reason = decide(
            POLICIES[self.policy.route].code, task, local, remote, len(others), order, self.params, sums, counts,
            [0.0] * (len(others) + 1),
        )  # fmt: skip
        if choice < 0:
            row.route = -1
            whole = row.reason == LOCAL_WHOLE or (row.reason != LOCAL_CHUNKED and not self.sliced)
            self.queue_task(row, home, present, tokens, 0.0, whole, now)
            return
        engine = others[choice]
        row.route = engine.number
        cached, compute, read = self.elsewhere(row, engine, present, total)
        if self.pull and engine.prefills and not row.first:
            before = row.session.rounds[: row.session.rounds.index(row)]
            mine = [r for r in before if r.route == engine.number]
            kept = mine[-1].history + mine[-1].increment if mine else 0.0
            kept = kept if mine and engine.taken - mine[-1].taken <= engine.capacity else 0.0
            if read > 0:
                read = max(0.0, read - kept)
            else:
                cached = min(kept, total - 1)
                compute = total - cached
        row.back = tokens if self.read else total
        self.queue_task(row, engine, cached, compute, read, not self.sliced or engine.prefills, now)

    def may_help(self, engine: Engine, total: float) -> bool:
        if engine.prefills:
            return total <= engine.capacity
        return self.layout.kind == "symmetric" and self.used(engine) + total <= engine.capacity

    def queue_task(
        self, row: Round, engine: Engine, cached: float, compute: float, read: float, whole: bool, now: float
    ) -> None:
        home = row.session.worker
        assert home is not None
        row.at, row.cached, row.compute, row.done, row.whole, row.ready = engine, cached, compute, 0.0, whole, True
        engine.chosen = now
        row.holds = cached + compute if engine is not home and not engine.prefills else 0.0
        engine.queue.append(row)
        self.mark(engine)
        engine.taken += compute + read
        row.taken, row.unread = engine.taken, 0.0
        if read > 0:
            self.read_tokens += read
            if self.pull and engine.prefills:
                row.unread = read
                return
            row.ready = False
            self.send(row, "end_read", home, engine, read, row.read_sends, now)

    def send(
        self, row: Round, what: str, source: Engine, destination: Engine, tokens: float, sends: int, now: float
    ) -> None:
        seconds = self.link(source, destination, tokens) * sends
        if self.options.links == "fifo":
            end = max(now, source.out, destination.into) + seconds
            source.out = destination.into = end
        else:
            end = now + seconds
        self.push(end, what, row)

    # Engines.

    def choose(self, engine: Engine, now: float) -> Round | None:
        tasks = [r for r in engine.queue if r.ready]
        if len(tasks) < 2:
            return tasks[0] if tasks else None
        postponed = [r.postponed for r in tasks]
        head = [0] * ORDER_MAX
        place = next_task(
            ORDERS[self.policy.order].code,
            now,
            [prefill_seconds(engine.pre, r.cached, r.compute) for r in tasks],
            [r.arrival for r in tasks],
            [self.slo[r.session.kind].ttft_s for r in tasks],
            postponed,
            [int(r.session.late) for r in tasks],
            self.policy.window,
            16 if self.policy.cap is None else self.policy.cap,
            head,
        )
        for row, count in zip(tasks, postponed, strict=True):
            row.postponed = count
        chosen = tasks[place]
        if self.policy.order == "ampd-window":
            size = min(self.policy.window, len(tasks))
            ordered = [tasks[i] for i in head[:size]]
            engine.queue = ordered + [r for r in engine.queue if r not in ordered]
        return chosen

    def begin(self, engine: Engine, now: float) -> None:
        for fetched in engine.fetching:
            assert fetched.at is not None
            self.send(fetched, "end_back", fetched.at, engine, fetched.back, fetched.back_sends, now)
        engine.fetching = []
        if engine.current is None:
            engine.current = self.choose(engine, now)
        row = engine.current
        if row is not None and row.whole:
            if engine.prefills and row.holds == 0:
                if self.used(engine) + row.cached + row.compute > engine.capacity:
                    engine.current = None
                    return
                row.holds = row.cached + row.compute
            engine.busy = True
            if row.unread > 0:
                read, row.unread, home = row.unread, 0.0, row.session.worker
                assert home is not None
                self.send(row, "end_read", home, engine, read, row.read_sends, now)
                return
            self.compute(row, engine, now)
            return
        engine.batch += engine.joining
        engine.joining = []
        if not self.oracle:
            while engine.batch and self.used(engine) + sum(not r.starts for r in engine.batch) > engine.capacity:
                if not self.evict(engine, None):
                    self.preempt(engine)
        for r in engine.batch:
            r.session.kept += not r.starts
        if not engine.batch and row is None:
            return
        size, context = float(len(engine.batch)), sum(r.context for r in engine.batch)
        engine.chunk, history = 0, 0.0
        if row is not None:
            history = row.cached + row.done
            most = int(min(self.options.chunk_limit, row.compute - row.done))
            fits = largest_chunk(engine.step, size, context, history, self.limit(engine), most)
            engine.chunk = max(fits, min(self.options.chunk_floor, most))
        seconds = step_seconds(engine.step, size, context, float(engine.chunk), history)
        if row is not None and row.chunk_noise != 1.0:
            alone = step_seconds(engine.step, size, context) if size else 0.0
            seconds = alone + (seconds - alone) * row.chunk_noise
        engine.busy = True
        self.push(now + seconds, "end_step", engine)

    def preempt(self, engine: Engine) -> None:
        row = engine.batch.pop()
        row.session.kept = 0.0
        row.preempted, row.starts = not row.starts, False
        engine.waiting.insert(0, row)
        self.preemptions += 1

    def compute(self, row: Round, engine: Engine, now: float) -> None:
        self.push(now + prefill_seconds(engine.pre, row.cached, row.compute) * row.noise, "end_whole", engine)

    def end_whole(self, engine: Engine, now: float) -> None:
        row, engine.current, engine.busy = engine.current, None, False
        assert row is not None
        self.mark(engine)
        self.end_prefill(row, engine, now)

    def end_step(self, engine: Engine, now: float) -> None:
        engine.busy = False
        self.mark(engine)
        for row in engine.batch:
            if row.starts:
                row.starts = False
                self.begin_answer(row, engine, now)
                continue
            engine.gaps.append((now, now - row.emitted[-1]))
            row.emitted.append(now)
        done = [r for r in engine.batch if len(r.emitted) == r.tokens]
        engine.batch = [r for r in engine.batch if r not in done]
        for row in done:
            self.finish(row, now)
        task = engine.current
        if task is not None and engine.chunk:
            task.done += engine.chunk
            if task.done >= task.compute:
                engine.current = None
                self.end_prefill(task, engine, now)

    def end_read(self, row: Round, now: float) -> None:
        assert row.at is not None
        if row.ready:
            self.compute(row, row.at, now)
            return
        row.ready = True
        self.mark(row.at)

    def end_prefill(self, row: Round, engine: Engine, now: float) -> None:
        engine.queue.remove(row)
        home = row.session.worker
        assert home is not None
        if row.first:
            engine.cached.add(row.session.kind)
        if not row.preempted:
            engine.ttfts.append((now, now - row.arrival))
        if engine is home:
            self.first_token(row, now)
        else:
            self.back_tokens += row.back
            if self.pull:
                home.fetching.append(row)
                self.mark(home)
                return
            self.send(row, "end_back", engine, home, row.back, row.back_sends, now)

    def end_back(self, row: Round, now: float) -> None:
        if row.holds > 0:
            row.holds = 0.0
            assert row.at is not None
            self.freed(row.at)
        home = row.session.worker
        assert home is not None
        if not self.pull:
            self.first_token(row, now)
            return
        row.starts = True
        home.joining.append(row)
        self.mark(home)

    def first_token(self, row: Round, now: float) -> None:
        home = row.session.worker
        assert home is not None
        self.begin_answer(row, home, now)
        if row.tokens == 1:
            self.finish(row, now)
            return
        home.joining.append(row)
        self.mark(home)

    def begin_answer(self, row: Round, home: Engine, now: float) -> None:
        if row.first:
            home.cached.add(row.session.kind)
        if not row.emitted:
            row.emitted.append(now)
            row.ttft = now - row.arrival
            row.session.late = row.session.late or row.ttft > self.slo[row.session.kind].ttft_s

    def finish(self, row: Round, now: float) -> None:
        home = row.session.worker
        assert home is not None
        row.finished, row.state = now, 1
        row.session.kept = row.history + row.increment + row.tokens
        following = row.session.rounds.index(row) + 1
        if following == len(row.session.rounds):
            self.end_session(row, home)
            return
        later = row.session.rounds[following]
        self.push(now + row.gap, "arrive", later)
        home.idle.append(later)
        self.mark(home)
