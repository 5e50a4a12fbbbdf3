"""Ask the policy where a round's prefill runs, and queue it there."""

import math

from weft_core.policies.inputs import LocalFigures, RemoteFigures, RoutingInputs, TaskFigures
from weft_core.policies.reasons import LOCAL_CHUNKED, LOCAL_WHOLE
from weft_core.policies.registry import POLICIES
from weft_core.timing import prefill_seconds, step_seconds
from weft_planner_tests.reference.estimates import (
    cached_on,
    elsewhere,
    place_wait,
    prefix_on,
    slack_figures,
    sliced_queue,
    sliced_seconds,
    whole_queue,
    windowed_mean,
)
from weft_planner_tests.reference.memory import forget, load, load_ends, make_room, shed, tier_of
from weft_planner_tests.reference.parts import Engine, Round
from weft_planner_tests.reference.world import World


def start_round(world: World, row: Round, now: float) -> None:
    """Decide where a round that has its memory prefills; one that was preempted prefills at home."""
    home, session = row.home, row.session
    present = prefix_on(row, home) if row.first else min(session.kept + session.kept_before, row.history)
    number = tier_of(row, home)
    below = min(session.below, row.history) - session.kept if number >= 0 else 0.0
    present = max(present, session.kept + below)
    total = row.history + row.increment + max(0, len(row.emitted) - 1)
    session.kept, session.kept_before = total + 1, 0.0
    shed(world, home)
    if row.preempted:
        queue_task(world, row, home, cached=0.0, compute=total, read=0.0, whole=not world.sliced, now=now)
        return
    if row.kept > 0:
        world.engines[row.route].kept.remove(row)
        row.kept = 0.0
    tokens = total - present
    others = [e for e in world.engines if e is not home and may_help(world, e, total)]
    if world.unreadable and not row.first:
        others = [e for e in others if present - below - cached_on(row, e) < tokens]
    wait = load_ends(world, below, home, number, now) - now if below > 0 else 0.0
    task = task_figures(world, row, present, tokens, now)
    local = local_figures(world, home, present, tokens, answer=task.answer, load_s=wait, now=now)
    remote = [
        remote_figures(world, row, e, present=present, below=below, load_s=wait, total=total, now=now) for e in others
    ]
    order = shuffled(world, len(others)) if POLICIES[world.policy.route].reads_order else []
    sums, counts = slack_figures(world, home)
    costs = [0.0] * (len(others) + 1)
    inputs = RoutingInputs(task, local, remote, order, world.params, sums, counts, costs)
    choice, row.reason = POLICIES[world.policy.route].route(inputs)
    row.route = -1 if choice < 0 else others[choice].number
    row.present = present
    if below > 0 and (choice < 0 or world.read):
        load(world, row, below, home, number, now)
    else:
        start_routed(world, row, present - below, now)


def start_routed(world: World, row: Round, here: float, now: float) -> None:
    """Queue a round's prefill where it was routed to; ``here`` tokens of it are in the memory of its own engine."""
    home = row.home
    total = row.history + row.increment + max(0, len(row.emitted) - 1)
    if row.route < 0:
        whole = row.reason == LOCAL_WHOLE or (row.reason != LOCAL_CHUNKED and not world.sliced)
        queue_task(world, row, home, cached=here, compute=total - here, read=0.0, whole=whole, now=now)
        return
    engine = world.engines[row.route]
    cached, compute, read = elsewhere(world, row, engine, here, total)
    engine.assigned += row.first
    row.back = total - here if world.read or world.pull else total
    queue_task(world, row, engine, cached=cached, compute=compute, read=read, whole=True, now=now)


def may_help(world: World, engine: Engine, total: float) -> bool:
    """Return whether an engine may prefill for sessions of others."""
    if engine.prefills:
        return total <= engine.capacity
    return engine.both and total <= world.free(engine)


def task_figures(world: World, row: Round, present: float, tokens: float, now: float) -> TaskFigures:
    """Return what policies are told of the round itself."""
    session, slo = row.session, world.slo[row.session.kind]
    lengths = world.tokens_of_kind[session.kind]
    span = min(world.options.window_s + now - world.rate_from, max(1.0, now - world.sessions[0].arrival))
    return TaskFigures(
        history=present,
        increment=tokens,
        waited_s=now - row.arrival,
        ttft_slo=slo.ttft_s,
        itl_slo=slo.itl_s,
        round=row.place if row.first else max(row.place, 1),
        answer=sum(lengths) / len(lengths),
        rate=(world.count + world.count_before) / span,
        uniform=world.draw(),
        priority=slo.priority,
        now=now,
        session=session.hash,
    )


def local_figures(
    world: World, home: Engine, present: float, tokens: float, *, answer: float, load_s: float, now: float
) -> LocalFigures:
    """Return what policies are told of the engine that the session is bound to."""
    context = sum(r.context for r in home.batch)
    step = step_seconds(home.step, max(1.0, len(home.batch)), context)
    wait = place_wait(home, answer, step)
    return LocalFigures(
        queue_s=max(whole_queue(home) + wait, load_s),
        prefill_s=prefill_seconds(home.pre, present, tokens),
        chunked_queue_s=max(sliced_queue(world, home) + wait, load_s) if world.sliced else math.inf,
        chunked_s=sliced_seconds(world, home, present, tokens) if world.sliced else math.inf,
        windowed_itl=windowed_mean(world, home.gaps, now),
        batch=len(home.batch),
        context=context,
        step_s=step,
        kv_free=world.free(home),
        queued=len(home.queue),
    )


def remote_figures(
    world: World, row: Round, engine: Engine, *, present: float, below: float, load_s: float, total: float, now: float
) -> RemoteFigures:
    """Return what policies are told of another engine."""
    cached, compute, read = elsewhere(world, row, engine, present, total)
    here = present if world.read else present - below
    sent = [r for r in row.session.rounds[: row.place] if r.route == engine.number]
    return RemoteFigures(
        queue_s=whole_queue(engine),
        prefill_s=prefill_seconds(engine.pre, cached, compute),
        read_s=world.link(row.home, engine, read) + (load_s if world.read else 0.0),
        back_s=world.link(engine, row.home, total - here if world.read or world.pull else total),
        windowed_ttft=windowed_mean(world, engine.ttfts, now),
        queued=len(engine.queue),
        cached=cached_on(row, engine),
        kv_use=1 - world.free(engine) / engine.capacity,
        used_at=engine.chosen,
        link_rate=1.0,
        sent=sent[-1].history + sent[-1].increment if sent else prefix_on(row, engine),
        sessions=engine.assigned,
        decoding=len(engine.batch),
    )


def shuffled(world: World, count: int) -> list[int]:
    """Return a random order of the other engines."""
    order = list(range(count))
    for k in range(count - 1, 0, -1):
        other = int(world.draw() * (k + 1))
        order[k], order[other] = order[other], order[k]
    return order


def queue_task(
    world: World, row: Round, engine: Engine, *, cached: float, compute: float, read: float, whole: bool, now: float
) -> None:
    """Queue a prefill; a read begins at once, but where the engine pulls it when the prefill's turn comes."""
    row.at, row.cached, row.compute, row.done, row.whole, row.ready = engine, cached, compute, 0.0, whole, True
    row.seconds = prefill_seconds(engine.pre, cached, compute)
    engine.chosen = now
    row.holds = 0.0
    if engine is not row.home and not engine.prefills:
        row.holds = cached + compute
        forget(row, engine)
        if not world.oracle:
            make_room(world, engine, 0, now, pressed=True)  # what it holds is used already
        shed(world, engine)
    engine.queue.append(row)
    world.mark(engine)
    row.unread = 0.0
    if read > 0:
        world.read_tokens += read
        if world.pull and engine.prefills:
            row.unread = read
            return
        row.ready = False
        world.send(row, "end_read", row.home, engine, read, row.read_sends, now)
