"""Bind sessions to engines and give rounds their KV memory, evicting what idle sessions left."""

from weft_core.policies.inputs import BindingInputs
from weft_core.policies.registry import BINDINGS
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


def evict(world: World, engine: Engine, spared: Round | None) -> bool:
    """Drop the KV of the session that has been idle longest; False when there is none."""
    for row in engine.idle:
        if row is not spared:
            engine.idle.remove(row)
            row.session.kept = 0.0
            world.evictions += 1
            return True
    return False


def admit(world: World, row: Round, engine: Engine) -> bool:
    """Make room for a round; False when it has to wait."""
    need = row.history + row.increment + 1 + max(0, len(row.emitted) - 1)
    if not world.oracle:
        others = len(engine.batch) + len(engine.queue) + len(engine.joining)
        while world.used(engine) + need - row.session.kept + others > engine.capacity:
            if not evict(world, engine, row):
                return False
    if row in engine.idle:
        engine.idle.remove(row)
    return True


def end_session(world: World, row: Round, engine: Engine) -> None:
    """Unbind a session and free what it kept."""
    if row in engine.idle:
        engine.idle.remove(row)
    row.session.worker = None
    row.session.kept = 0.0
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
