"""Bind sessions to engines and give rounds their KV memory, evicting what idle sessions left."""

import math
import statistics
from bisect import bisect_right

from weft_core.policies.inputs import BindingInputs
from weft_core.policies.registry import BINDINGS
from weft_core.policies.retention import BUCKETS, WAITING_RATE, kv_value, note_return, return_rate
from weft_core.timing import prefill_seconds
from weft_planner_tests.reference.parts import Engine, Round, Session
from weft_planner_tests.reference.world import World


def place(world: World, row: Round) -> Engine | None:
    """Return the engine for a new session, None while none has room."""
    session = row.session
    need = session.reserve if world.oracle else row.history + row.increment + 1
    engines = [e for e in world.engines if not e.prefills]
    free = [world.free(e) for e in engines]
    counts = session.prefix >= world.options.min_cache_hit_ratio * (row.history + row.increment)
    hits = [session.prefix if counts and session.kind in e.cached else 0.0 for e in engines]
    inputs = BindingInputs(
        need,
        kv_free=[x if x >= need else -1e300 for x in free],
        kv_capacity=[e.capacity for e in engines],
        sessions=[float(sum(s.worker is e for s in world.sessions)) for e in engines],
        prefix_hit=hits,
        load=[float(len(e.batch) + len(e.waiting) + len(e.queue)) for e in engines],
        cursor=world.cursor % len(engines),
        in_memory=hits,
    )
    chosen = BINDINGS[world.policy.binding].bind(inputs)
    if chosen < 0:
        return None
    world.cursor = chosen + 1
    return engines[chosen]


def evictable(world: World, engine: Engine, spared: Round | None, now: float, *, pressed: bool) -> Round | None:
    """Return the session that has been idle longest of those that may be evicted, by its next or last round.

    ``pressed``: in need, the session that began last may be. By value it is the one worth least.
    """
    idle = [r for r in engine.idle if r is not spared]
    if world.by_value:
        return min(idle, key=lambda r: value(world, r.session, engine, -1, now), default=None)
    chosen = next((r for r in idle if r.kept_until <= now), None)
    if chosen is None and idle and pressed:
        chosen = max(idle, key=lambda r: world.sessions.index(r.session))
    return chosen


def evict(world: World, engine: Engine, row: Round, now: float, *, lacking: float) -> None:
    """Drop a session's KV; it goes down where tiers are written so. Where tokens are evicted, those ``lacking`` go."""
    if row.session.worker is not None:
        world.evictions += not row.evicted
        row.evicted = True
    part = world.options.evicts == "tokens" and not world.by_value and lacking < row.session.kept
    tokens = lacking if part else row.session.kept
    if world.writes_evicted:
        write_evicted(world, row.session, engine, tokens, now)
    row.session.kept -= tokens
    if not part:
        engine.idle.remove(row)


def make_room(
    world: World, engine: Engine, tokens: float, now: float, *, spared: Round | None = None, pressed: bool = False
) -> bool:
    """Give up the prompts and the idle sessions' KV that were used least recently; False when that is not enough."""
    while (lacking := world.used(engine) + sum(r.kept for r in engine.kept) + tokens - engine.capacity) > 0:
        row = evictable(world, engine, spared, now, pressed=pressed)
        if engine.kept and (row is None or engine.kept[0].kept_at <= (row.session.idle_since or math.inf)):
            give_up(engine, lacking)
        elif row is not None:
            evict(world, engine, row, now, lacking=lacking)
        else:
            return False
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
    """Give a round its memory; False when it has to wait."""
    need = row.history + row.increment + 1 + max(0, len(row.emitted) - 1)
    if not world.oracle:
        others = len(engine.batch) + len(engine.queue) + len(engine.joining)
        pressed = engine.capacity - world.free(engine) < 1
        if not make_room(world, engine, need - row.session.kept + others, now, spared=row, pressed=pressed):
            return False
    if row.evicted:
        row.evicted = False
        world.waits.append(now - row.arrival)
    if row in engine.idle:
        engine.idle.remove(row)
    return True


def value(world: World, session: Session, engine: Engine, place: int, now: float) -> float:
    """Return what a session's KV is worth in the tier at a place, -1 for the GPU."""
    tokens = session.kept if place < 0 else session.below

    def load_s(tier: int) -> float:
        return world.tiers[tier][1] + tokens * world.tiers[tier][2]

    lost_s = prefill_seconds(engine.pre, 0.0, tokens)
    if place + 1 < len(world.tiers):
        lost_s = min(lost_s, load_s(place + 1))
    rate = WAITING_RATE
    if session.idle_since is not None:
        returns = [0.0] * (BUCKETS + 1)
        for gap in world.gaps_seen[session.kind]:
            note_return(returns, gap)
        rate = return_rate(returns, now - session.idle_since, math.inf)
    return kv_value(rate, 0.0 if place < 0 else load_s(place), lost_s, tokens)


def forget_below(world: World, session: Session) -> None:
    """Take a session's KV out of its tier."""
    for engine in world.engines:
        for tier in engine.below:
            if session in tier:
                tier.remove(session)


def write_evicted(world: World, session: Session, engine: Engine, tokens: float, now: float) -> None:
    """Write the last tokens of a session's KV, beside those after them that are in a tier already."""
    reach = session.kept
    if any(session in tier for tier in engine.below) and session.below > reach:
        reach, tokens = session.below, tokens + session.below_size
    write_below(world, session, engine, now, reach=reach, tokens=tokens)


def write_below(world: World, session: Session, engine: Engine, now: float, *, reach: float, tokens: float) -> None:
    """Write a session's KV to the first tier; the least recently used, or valuable, moves down where one is full."""
    forget_below(world, session)
    if not engine.below:
        return
    session.below, session.below_size = reach, tokens
    engine.below[0].append(session)
    for number, tier in enumerate(engine.below):
        room = world.tiers[number][0] // world.layout.parts_of(world.layout.workers[engine.number].degree)
        while sum(one.below_size for one in tier) > room:
            values = [value(world, one, engine, number, now) if world.by_value else 0.0 for one in tier]
            lost = tier.pop(values.index(min(values)))
            if number + 1 < len(engine.below):
                engine.below[number + 1].append(lost)


def tier_of(row: Round, engine: Engine) -> int:
    """Return the tier of an engine that has what was evicted of a round's session, -1 if none has."""
    session = row.session
    found = [number for number, tier in enumerate(engine.below) if session in tier]
    gone = session.kept < min(session.below, row.history)
    return found[0] if found and gone and not row.preempted else -1


def load_ends(world: World, tokens: float, engine: Engine, number: int, now: float) -> float:
    """Return when so many tokens of a history would be loaded from a tier, behind the loads before it."""
    _, latency, per_token = world.tiers[number]
    return max(now, engine.loads_until[number]) + (latency + tokens * per_token)


def load(world: World, row: Round, tokens: float, engine: Engine, number: int, now: float) -> None:
    """Start to load them."""
    tier = engine.below[number]
    tier.remove(row.session)
    if not world.writes_evicted:
        tier.append(row.session)
    engine.loads_until[number] = load_ends(world, tokens, engine, number, now)
    world.loaded += tokens
    world.push(engine.loads_until[number], "end_load", row)


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


def give_up(engine: Engine, tokens: float) -> None:
    """Give up so many tokens, or all, of the prompt that was used least recently."""
    oldest = engine.kept[0]
    oldest.kept -= min(tokens, oldest.kept)
    if oldest.kept == 0:
        engine.kept.remove(oldest)


def shed(world: World, engine: Engine) -> None:
    """Give up the prompts used least recently until the others fit beside what is in use."""
    while engine.kept and world.used(engine) + sum(r.kept for r in engine.kept) > engine.capacity:
        give_up(engine, world.used(engine) + sum(r.kept for r in engine.kept) - engine.capacity)
