"""Run all events in order; between two of them, everything that can begin begins."""

import math
from collections.abc import Callable
from typing import cast

from weft_planner_tests.reference.engines import begin, compute
from weft_planner_tests.reference.memory import (
    admit,
    end_session,
    forget_below,
    give_time_to_live,
    leave_kv,
    place,
    queue,
    shed,
    write_below,
)
from weft_planner_tests.reference.parts import Engine, Round
from weft_planner_tests.reference.routing import may_help, start_round, start_routed
from weft_planner_tests.reference.world import World


class Reference(World):
    """One run; ``rows`` are the rounds in the sample's order when ``run`` returns."""

    def run(self) -> None:
        self.push(self.sessions[0].arrival, "arrive", self.sessions[0].rounds[0])
        while self.events:
            now, what, subject = self.pop()
            handle = cast(Callable[[object, float], None], getattr(self, what))
            handle(subject, now)
            self.settle(now)
            for engine in self.engines:
                assert -1e-9 <= self.used(engine) <= engine.capacity + 1e-9

    def settle(self, now: float) -> None:
        while self.room or self.dirty:
            if self.room:
                self.room = False
                self.bind_waiting()
                continue
            engine = self.dirty.pop()
            while engine.waiting and admit(self, engine.waiting[0], engine, now):
                row = engine.waiting.pop(0)
                start_round(self, row, now)
            if not any(mate.busy for mate in engine.mates):
                for mate in engine.mates:
                    begin(self, mate, now)
                if len(engine.mates) > 1:
                    self.step_together(engine, now)

    def bind_waiting(self) -> None:
        while self.unbound:
            to = place(self, self.unbound[0])
            if to is None:
                return
            row = self.unbound.pop(0)
            row.session.worker = to
            shed(self, to)
            queue(self, row, to)

    # The events, by name.

    def arrive(self, row: Round, now: float) -> None:
        at = self.sessions.index(row.session)
        if row is row.session.rounds[0] and at + 1 < len(self.sessions):
            self.push(self.sessions[at + 1].arrival, "arrive", self.sessions[at + 1].rounds[0])
        if now - self.rate_from > self.options.window_s:
            self.count_before, self.count, self.rate_from = self.count, 0, now
        self.count += row.first
        row.arrival = now
        row.session.idle_since = None
        if row.place:
            self.gaps_seen[row.session.kind].append(row.session.rounds[row.place - 1].gap)
        home = row.session.worker
        context = row.session.reserve if self.oracle else row.history + row.increment + row.tokens
        where = [e for e in self.engines if not e.prefills] if home is None else [home]
        if context > max(e.capacity for e in where):
            row.state = 2
            if home is not None:
                end_session(self, row, home)
        elif home is None:
            self.unbound.append(row)
            self.room = True
        else:
            queue(self, row, home)

    def end_load(self, row: Round, now: float) -> None:
        total = row.history + row.increment + max(0, len(row.emitted) - 1)
        if row.route >= 0 and not may_help(self, self.engines[row.route], total):
            row.session.kept = row.present
            start_round(self, row, now)
            return
        start_routed(self, row, row.present, now)

    def end_read(self, row: Round, now: float) -> None:
        assert row.at is not None
        if not row.ready:
            row.ready = True
            self.mark(row.at)
            return
        row.reading = False
        if row in row.at.inside:
            self.mark(row.at)
        elif row.at.current is row:
            compute(self, row, row.at, now)

    def end_whole(self, engine: Engine, now: float) -> None:
        row, engine.current, engine.busy = engine.current, None, False
        assert row is not None
        self.mark(engine)
        self.end_prefill(row, engine, now)

    def end_prefills(self, engine: Engine, now: float) -> None:
        engine.busy = False
        self.mark(engine)
        for row in list(engine.inside):
            row.done += row.part
            row.part = 0
            if row.done >= row.compute:
                engine.inside.remove(row)
                self.end_prefill(row, engine, now)

    def end_step(self, engine: Engine, now: float) -> None:
        engine.busy = False
        self.mark(engine)
        for row in engine.batch:
            if row.starts:
                row.starts = False
                self.begin_answer(row, now)
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
            engine.running -= engine.chunk
            if not task.whole and not engine.running:
                engine.slice_from = now + self.options.slice_turn_s
            if task.done >= task.compute:
                engine.current = None
                self.end_prefill(task, engine, now)

    def expire(self, engine: Engine, _: float) -> None:
        self.mark(engine)

    def slice(self, engine: Engine, _: float) -> None:
        engine.waking = False
        self.mark(engine)

    def end_back(self, row: Round, now: float) -> None:
        if row.holds > 0:
            row.holds = 0.0
            assert row.at is not None
            self.freed(row.at)
            if self.caches:
                row.kept, row.kept_at = row.history + row.increment, now
                row.at.kept.append(row)
                shed(self, row.at)
        if not self.pull:
            self.first_token(row, now)
            return
        row.starts = True
        row.home.joining.append(row)
        self.mark(row.home)

    # What they lead to.

    def end_prefill(self, row: Round, engine: Engine, now: float) -> None:
        engine.queue.remove(row)
        home = row.home
        if row.first:
            engine.cached.add(row.session.kind)
        if not row.preempted:
            engine.ttfts.append((now, now - row.arrival))
        if engine is home:
            self.first_token(row, now)
            if row in home.joining and home.places < math.inf:  # it has its place
                home.joining.remove(row)
                home.joining.insert(0, row)
            return
        self.back_tokens += row.back
        if self.pull:
            home.fetching.append(row)
            self.mark(home)
            return
        self.send(row, "end_back", engine, home, row.back, row.back_sends, now)

    def first_token(self, row: Round, now: float) -> None:
        self.begin_answer(row, now)
        if row.tokens == 1:
            self.finish(row, now)
            return
        row.home.joining.append(row)
        self.mark(row.home)

    def begin_answer(self, row: Round, now: float) -> None:
        if row.first:
            row.home.cached.add(row.session.kind)
        if not row.emitted:
            row.emitted.append(now)
            row.ttft = now - row.arrival
            row.session.late = row.session.late or row.ttft > self.slo[row.session.kind].ttft_s

    def finish(self, row: Round, now: float) -> None:
        home = row.home
        row.finished, row.state = now, 1
        row.session.kept = row.history + row.increment + row.tokens
        row.session.idle_since = now
        if self.writes_evicted:
            forget_below(self, row.session)
        else:
            write_below(self, row.session, home, now, reach=row.session.kept, tokens=row.session.kept)
        following = row.place + 1
        if following == len(row.session.rounds):
            self.rounds_seen += [(k, following - k) for k in range(1, following)]
            leave = leave_kv if self.keeps_ended else end_session
            leave(self, row, home)
            return
        later = row.session.rounds[following]
        self.push(now + row.gap, "arrive", later)
        if self.ttl:
            give_time_to_live(self, later, home, now)
        home.idle.append(later)
        self.mark(home)
