"""Run an engine: choose its next prefill, then compute it whole, or a step of the batch with a slice of it."""

import math

from weft_core.policies.inputs import MAX_WINDOW, QueueInputs
from weft_core.policies.registry import ORDERS
from weft_core.policies.routing.colocated import DELAY, delays_prefill
from weft_core.timing import largest_chunk, prefill_seconds, prefill_step_seconds, step_seconds
from weft_planner_tests.reference.estimates import elsewhere, gaps_left, slack_figures, slice_limit, whole_queue
from weft_planner_tests.reference.memory import forget, make_room, shed
from weft_planner_tests.reference.parts import Engine, Round
from weft_planner_tests.reference.world import World


def begin(world: World, engine: Engine, now: float) -> None:
    """Begin what an idle engine does next, if anything."""
    if may_join(world, engine, after=len(engine.joining)):
        for fetched in engine.fetching:
            assert fetched.at is not None
            world.send(fetched, "end_back", fetched.at, engine, fetched.back, fetched.back_sends, now)
        engine.fetching = []
    if engine.prefills and (engine.tokens < math.inf or len(engine.mates) > 1):
        begin_prefills(world, engine, now)
        return
    if engine.current is None:
        engine.current, engine.ahead = engine.ahead or choose(world, engine, now), None
    task = engine.current
    waits = task is not None and is_delayed(world, task, engine, now)
    if (
        task is not None
        and not waits
        and task.whole
        and (engine.prefills or (engine.tokens == math.inf and len(engine.batch) + len(engine.joining) < engine.places))
    ):
        begin_whole(world, task, engine, now)
    else:
        begin_step(world, engine, now, waits=waits)


def is_delayed(world: World, row: Round, engine: Engine, now: float) -> bool:
    """Return whether a prefill waits for those that decode beside it."""
    if world.policy.route != "colocated" or not world.params[DELAY]:
        return False
    if not engine.batch or engine.running or row.done or row.emitted:
        return False
    size, context = float(len(engine.batch)), sum(r.context for r in engine.batch)
    tokens = row.compute
    if not row.whole:
        tokens = largest_chunk(
            engine.step, size, context, row.cached, slice_limit(world, engine), world.options.chunk_limit
        )
    return delays_prefill(
        max((now + whole_queue(engine) - r.arrival) / world.slo[r.session.kind].ttft_s for r in engine.queue),
        prefill_seconds(engine.pre, row.cached, row.compute),
        max(1.0, row.compute / max(tokens, 1.0)),
        step_seconds(engine.step, size, context),
        min(c.itl_s for c in world.slo),
        world.params,
        *slack_figures(world, engine),
        gaps_left(world, engine),
    )


def may_join(world: World, engine: Engine, *, after: int = 0) -> bool:
    """Return whether a sequence may run beside those that do, and ``after`` others."""
    sequences = len(engine.batch) + after + (engine.running > 0)
    used = len(engine.batch)
    if engine.running:
        assert engine.current is not None
        if engine.current.whole or world.options.slice_turn_s > 0:  # it takes what it can get
            used += int(min(engine.running, engine.tokens - used))
    return sequences < engine.places and used + after < engine.tokens


def begin_prefills(world: World, engine: Engine, now: float) -> None:
    """Begin a step of a prefill engine: each prefill in it gets what those before it leave of the tokens."""
    left = engine.tokens
    sums: list[tuple[float, float, float]] = []
    seconds = 0.0
    at = 0
    while left > 0:
        if at == len(engine.inside) and (at >= engine.places or not take(world, engine, now)):
            break
        row = engine.inside[at]
        at += 1
        if row.reading:
            continue
        row.part = int(min(left, row.compute - row.done))
        left -= row.part
        start = row.cached + row.done
        before = prefill_step_seconds(engine.pre, *map(sum, zip(*sums, strict=True))) if sums else 0.0
        sums.append((row.part, row.part * (start + row.part / 2), start + row.part))
        seconds += (prefill_step_seconds(engine.pre, *map(sum, zip(*sums, strict=True))) - before) * row.noise
    if not sums:
        return
    while world.pull and left > 0 and len(engine.inside) < 2 * engine.places and take(world, engine, now, ahead=True):
        pass
    world.work(engine, "end_prefills", seconds, now)


def take(world: World, engine: Engine, now: float, *, ahead: bool = False) -> bool:
    """Give a prefill engine the next prefill of its queue, if there is one and memory for it."""
    row = choose(world, engine, now, ahead=ahead)
    if row is None or not prepare(world, row, engine, now):
        return False
    engine.inside.append(row)
    return True


def choose(world: World, engine: Engine, now: float, *, ahead: bool = False) -> Round | None:
    """Take the next prefill by the queue's order; ``ahead``: after the one that runs, if it has history to read."""
    tasks = [r for r in engine.queue if r.ready and r is not engine.current and r not in engine.inside]
    if len(tasks) < 2:
        return tasks[0] if tasks and not (ahead and tasks[0].unread == 0) else None
    postponed = [r.postponed for r in tasks]
    head = [0] * MAX_WINDOW
    queue = QueueInputs(
        now,
        seconds=[prefill_seconds(engine.pre, r.cached, r.compute) for r in tasks],
        enqueued=[r.arrival for r in tasks],
        ttft_slo=[world.slo[r.session.kind].ttft_s for r in tasks],
        postponed=postponed,
        lost=[int(r.session.late) for r in tasks],
        window=world.policy.window,
        cap=16 if world.policy.cap is None else world.policy.cap,
        head=head,
    )
    place = ORDERS[world.policy.order].next_task(queue)
    if ahead and tasks[place].unread == 0:
        return None
    for row, count in zip(tasks, postponed, strict=True):
        row.postponed = count
    if world.policy.order == "ampd-window":
        size = min(world.policy.window, len(tasks))
        ordered = [tasks[i] for i in head[:size]]
        engine.queue = ordered + [r for r in engine.queue if r not in ordered]
    return tasks[place]


def begin_whole(world: World, row: Round, engine: Engine, now: float) -> None:
    """Begin a prefill that has the engine to itself; on a prefill engine it waits until its KV fits."""
    if engine.prefills and not prepare(world, row, engine, now):
        engine.current = None
        return
    engine.busy = True
    if not row.reading:
        compute(world, row, engine, now)


def prepare(world: World, row: Round, engine: Engine, now: float) -> bool:
    """Take a prefill engine's memory for a prefill and begin to read its history, if it fits."""
    if row.holds == 0:
        if world.used(engine) + row.cached + row.compute > engine.capacity:
            return False
        row.holds = row.cached + row.compute
        if world.caches:
            look_again(world, row, engine)
    if row.unread > 0:
        read, row.unread, row.reading = row.unread, 0.0, True
        world.send(row, "end_read", row.home, engine, read, row.read_sends, now)
    return True


def look_again(world: World, row: Round, engine: Engine) -> None:
    """Begin by what the engine's cache has now, and let the earlier prompt there become part of this one."""
    before = row.unread
    row.cached, row.compute, row.unread = elsewhere(world, row, engine, row.present, row.cached + row.compute)
    world.read_tokens += row.unread - before
    forget(row, engine)
    shed(world, engine)


def compute(world: World, row: Round, engine: Engine, now: float) -> None:
    """Set the end of a prefill that runs by itself; the next one reads its history meanwhile."""
    if engine.prefills and world.pull:
        following = choose(world, engine, now, ahead=True)
        if following is not None and prepare(world, following, engine, now):
            engine.ahead = following
    world.work(engine, "end_whole", prefill_seconds(engine.pre, row.cached, row.compute) * row.noise, now)


def begin_step(world: World, engine: Engine, now: float, *, waits: bool) -> None:
    """Begin a step: a token for each sequence of the batch, and as long a slice of a prefill as the ITL allows."""
    row = engine.current
    while engine.joining and may_join(world, engine):
        engine.batch.append(engine.joining.pop(0))
    if not world.oracle:
        while engine.batch and not make_room(world, engine, sum(not r.starts for r in engine.batch), now, pressed=True):
            preempt(world, engine)
    for r in engine.batch:
        r.session.kept += not r.starts
    shed(world, engine)
    if not engine.batch and row is None:
        return
    size, context = float(len(engine.batch)), sum(r.context for r in engine.batch)
    engine.chunk, history = 0, 0.0
    if row is not None and not engine.running and not waits:
        if row.whole and engine.tokens == math.inf:
            if not engine.batch:
                begin_whole(world, row, engine, now)
                return
        elif not row.whole and now < engine.slice_from:
            if not engine.batch:
                if not engine.waking:
                    engine.waking = True
                    world.push(engine.slice_from, "slice", engine)
                return
        elif may_join(world, engine):
            engine.running = int(row.compute - row.done)
            if not row.whole and world.options.slice_turn_s > 0:
                engine.running = slice_size(world, engine, row)
    if engine.running:
        assert row is not None
        history = row.cached + row.done
        engine.chunk = int(min(engine.running, engine.tokens - size))
        if not row.whole and world.options.slice_turn_s == 0:
            engine.chunk = min(engine.chunk, slice_size(world, engine, row))
    else:
        row = None
    seconds = step_seconds(engine.step, size, context, float(engine.chunk), history)
    if row is not None and row.chunk_noise != 1.0:
        alone = step_seconds(engine.step, size, context) if size else 0.0
        seconds = alone + (seconds - alone) * row.chunk_noise
    world.work(engine, "end_step", seconds, now)


def slice_size(world: World, engine: Engine, row: Round) -> int:
    """Return the tokens of a prefill that the ITL SLO leaves time for, but no fewer than the floor."""
    size, context = float(len(engine.batch)), sum(r.context for r in engine.batch)
    most = int(min(world.options.chunk_limit, row.compute - row.done))
    fits = largest_chunk(engine.step, size, context, row.cached + row.done, slice_limit(world, engine), most)
    return max(fits, min(world.options.chunk_floor, most))


def preempt(world: World, engine: Engine) -> None:
    """Send the newest sequence of the batch back to the head of the line, without its KV."""
    row = engine.batch.pop()
    row.session.kept = 0.0
    row.preempted, row.starts = not row.starts, False
    engine.waiting.insert(0, row)
    world.preemptions += 1
