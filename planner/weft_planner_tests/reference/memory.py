"""Bind sessions to engines and give rounds their KV memory, evicting what idle sessions left."""

import math
import statistics
from bisect import bisect_right

from weft_core.policies.inputs import BindingInputs
from weft_core.policies.registry import BINDINGS
from weft_core.timing import prefill_seconds
from weft_planner_tests.reference.parts import Engine, Round
from weft_planner_tests.reference.world import World


def place(world: World, row: Round) -> Engine | None:
    """Return the engine for a new session, None while none has room; evicting counts when nothing else helps."""
    session = row.session
    need = session.reserve if world.oracle else row.history + row.increment + 1
    engines = [e for e in world.engines if not e.prefills]
    idle = [sum(r.session.kept for r in e.idle) for e in engines]
    for attempt in range(1 if world.oracle or not sum(idle) else 2):
        free = [e.capacity - world.used(e) + attempt * idle[k] for k, e in enumerate(engines)]
        inputs = BindingInputs(
            need,
            kv_free=[x if x >= need else -1e300 for x in free],
            kv_capacity=[e.capacity for e in engines],
            sessions=[float(sum(s.worker is e for s in world.sessions)) for e in engines],
            prefix_hit=[session.prefix if session.kind in e.cached else 0.0 for e in engines],
            load=[float(len(e.batch) + len(e.waiting) + len(e.queue)) for e in engines],
            cursor=world.cursor % len(engines),
        )
        chosen = BINDINGS[world.policy.binding].bind(inputs)
        if chosen >= 0:
            world.cursor = chosen + 1
            return engines[chosen]
    return None


def evict(world: World, engine: Engine, spared: Round | None, now: float, *, pressed: bool, lacking: float) -> bool:
    """Drop the KV of the session that has been idle longest of those that may be; False when there is none.

    ``pressed``: in need, the session that began last may be. Where tokens are evicted, only those ``lacking`` go.
    """
    idle = [r for r in engine.idle if r is not spared]
    chosen = next((r for r in idle if r.kept_until <= now), None)
    if chosen is None and idle and pressed:
        chosen = max(idle, key=lambda r: world.sessions.index(r.session))
    if chosen is None:
        return False
    chosen.evicted = True
    world.evictions += 1
    if world.options.evicts == "tokens" and lacking < chosen.session.kept:
        chosen.session.kept -= lacking
        return True
    engine.idle.remove(chosen)
    chosen.session.kept = 0.0
    return True


def queue(world: World, row: Round, engine: Engine) -> None:
    """Let a round wait for memory: behind all others, or where KV has a time to live behind those of older sessions."""
    place = len(engine.waiting)
    if world.ttl:
        number = world.sessions.index(row.session)
        while place and world.sessions.index(engine.waiting[place - 1].session) > number:
            place -= 1
    engine.waiting.insert(place, row)
    world.mark(engine)


def give_time_to_live(world: World, row: Round, engine: Engine, now: float) -> None:
    """Keep the KV of an idle session while that is worth it, by what was seen so far; ``row`` is its next round."""
    reload_s = prefill_seconds(engine.pre, 0.0, row.session.kept)
    wait = sum(world.waits) / len(world.waits) if world.waits else 0.0
    memory = 1.0
    done, left = [float(k) for k, _ in world.rounds_seen], [float(m) for _, m in world.rounds_seen]
    if len(set(done)) > 1:
        memory = min(1.0, max(0.0, -statistics.correlation(done, left)))
    benefit = reload_s + memory * wait
    gaps = sorted(world.gaps_seen[row.session.kind][-256:])
    if gaps:
        worth = [bisect_right(gaps, gap) / len(gaps) * benefit - gap for gap in gaps]
        time = gaps[worth.index(max(worth))] if max(worth) > 0 else 0.0
    else:
        time = max(0.0, math.log(benefit))
    if time > 0:
        row.kept_until = now + time
        world.push(now + time, "expire", engine)


def admit(world: World, row: Round, engine: Engine, now: float) -> bool:
    """Make room for a round; False when it has to wait."""
    need = row.history + row.increment + 1 + max(0, len(row.emitted) - 1)
    if not world.oracle:
        others = len(engine.batch) + len(engine.queue) + len(engine.joining)
        while world.used(engine) + need - row.session.kept + others > engine.capacity:
            pressed = world.used(engine) - sum(r.session.kept for r in engine.idle) < 1
            lacking = world.used(engine) + need - row.session.kept + others - engine.capacity
            if not evict(world, engine, row, now, pressed=pressed, lacking=lacking):
                return False
    if row.evicted:
        row.evicted = False
        world.waits.append(now - row.arrival)
    if row in engine.idle:
        engine.idle.remove(row)
    return True


def write_below(world: World, row: Round, engine: Engine) -> None:
    """Write a session's KV to the first tier; the least recently used moves down where one is full."""
    session = row.session
    for other in world.engines:
        for tier in other.below:
            if session in tier:
                tier.remove(session)
    if not engine.below:
        return
    session.below = session.kept
    engine.below[0].append(session)
    for number, tier in enumerate(engine.below):
        room = world.tiers[number][0] // world.layout.parts_of(world.layout.workers[engine.number].degree)
        while sum(one.below for one in tier) > room:
            lost = tier.pop(0)
            if number + 1 < len(engine.below):
                engine.below[number + 1].append(lost)


def loads(world: World, row: Round, engine: Engine, now: float) -> bool:
    """Start to load what a round's session has in a tier of its engine, if its KV was evicted."""
    session = row.session
    for number, tier in enumerate(engine.below):
        held, present = session.kept, min(session.below, row.history)
        if session in tier and held < present and not row.preempted:
            tier.remove(session)
            tier.append(session)
            row.present = present
            session.kept = row.history + row.increment + 1 + max(0, len(row.emitted) - 1)
            _, latency, per_token = world.tiers[number]
            engine.loads_until[number] = max(now, engine.loads_until[number]) + latency + (present - held) * per_token
            world.loaded += present - held
            world.push(engine.loads_until[number], "end_load", row)
            return True
    return False


def end_session(world: World, row: Round, engine: Engine) -> None:
    """Unbind a session and free what it kept."""
    if row in engine.idle:
        engine.idle.remove(row)
    row.session.worker = None
    row.session.kept = 0.0
    world.freed(engine)


def leave_kv(world: World, row: Round, engine: Engine) -> None:
    """Unbind a session whose last round is over; what it kept goes when others need the room."""
    row.session.worker = None
    row.kept_until = 0.0
    engine.idle.append(row)
    world.freed(engine)


def forget(row: Round, engine: Engine) -> None:
    """Take the session's earlier prompt out of an engine's cache: it is part of what a prefill holds there."""
    for earlier in [r for r in engine.kept if r.session is row.session]:
        engine.kept.remove(earlier)
        earlier.kept = 0.0


def shed(world: World, engine: Engine) -> None:
    """Give up the prompts used least recently until the others fit beside what is in use."""
    while engine.kept and world.used(engine) + sum(r.kept for r in engine.kept) > engine.capacity:
        oldest = engine.kept[0]
        over = world.used(engine) + sum(r.kept for r in engine.kept) - engine.capacity
        oldest.kept -= min(over, oldest.kept)
        if oldest.kept == 0:
            engine.kept.remove(oldest)
