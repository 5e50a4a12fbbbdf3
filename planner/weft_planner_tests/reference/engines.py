"""Run an engine: choose its next prefill, then compute it whole, or a step of the batch with a slice of it."""

from weft_core.policies.inputs import MAX_WINDOW, QueueInputs
from weft_core.policies.registry import ORDERS
from weft_core.timing import largest_chunk, prefill_seconds, step_seconds
from weft_planner_tests.reference.estimates import elsewhere, slice_limit
from weft_planner_tests.reference.memory import evict
from weft_planner_tests.reference.parts import Engine, Round
from weft_planner_tests.reference.world import World


def begin(world: World, engine: Engine, now: float) -> None:
    """Begin what an idle engine does next, if anything."""
    for fetched in engine.fetching:
        assert fetched.at is not None
        world.send(fetched, "end_back", fetched.at, engine, fetched.back, fetched.back_sends, now)
    engine.fetching = []
    if engine.current is None:
        engine.current, engine.ahead = engine.ahead or choose(world, engine, now), None
    if engine.current is not None and engine.current.whole:
        begin_whole(world, engine.current, engine, now)
    else:
        begin_step(world, engine, now)


def choose(world: World, engine: Engine, now: float, *, ahead: bool = False) -> Round | None:
    """Take the next prefill by the queue's order; ``ahead``: after the one that runs, if it has history to read."""
    tasks = [r for r in engine.queue if r.ready and r is not engine.current]
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
    for earlier in [r for r in engine.kept if r.session is row.session]:
        engine.kept.remove(earlier)
        earlier.kept = 0.0
    shed(world, engine)


def shed(world: World, engine: Engine) -> None:
    """Give up the prompts used least recently until the others fit beside what is in use."""
    while engine.kept and world.used(engine) + sum(r.kept for r in engine.kept) > engine.capacity:
        oldest = engine.kept[0]
        over = world.used(engine) + sum(r.kept for r in engine.kept) - engine.capacity
        oldest.kept -= min(over, oldest.kept)
        if oldest.kept == 0:
            engine.kept.remove(oldest)


def compute(world: World, row: Round, engine: Engine, now: float) -> None:
    """Set the end of a prefill that runs by itself; the next one reads its history meanwhile."""
    if engine.prefills and world.pull:
        following = choose(world, engine, now, ahead=True)
        if following is not None and prepare(world, following, engine, now):
            engine.ahead = following
    world.push(now + prefill_seconds(engine.pre, row.cached, row.compute) * row.noise, "end_whole", engine)


def begin_step(world: World, engine: Engine, now: float) -> None:
    """Begin a step: a token for each sequence of the batch, and as long a slice of a prefill as the ITL allows."""
    row = engine.current
    engine.batch += engine.joining
    engine.joining = []
    if not world.oracle:
        while engine.batch and world.used(engine) + sum(not r.starts for r in engine.batch) > engine.capacity:
            if not evict(world, engine, None):
                preempt(world, engine)
    for r in engine.batch:
        r.session.kept += not r.starts
    if not engine.batch and row is None:
        return
    size, context = float(len(engine.batch)), sum(r.context for r in engine.batch)
    engine.chunk, history = 0, 0.0
    if row is not None and now < engine.slice_from:
        row = None
        if not engine.batch:
            if not engine.waking:
                engine.waking = True
                world.push(engine.slice_from, "slice", engine)
            return
    if row is not None:
        history = row.cached + row.done
        most = int(min(world.options.chunk_limit, row.compute - row.done))
        fits = largest_chunk(engine.step, size, context, history, slice_limit(world, engine), most)
        engine.chunk = max(fits, min(world.options.chunk_floor, most))
    seconds = step_seconds(engine.step, size, context, float(engine.chunk), history)
    if row is not None and row.chunk_noise != 1.0:
        alone = step_seconds(engine.step, size, context) if size else 0.0
        seconds = alone + (seconds - alone) * row.chunk_noise
    engine.busy = True
    world.push(now + seconds, "end_step", engine)


def preempt(world: World, engine: Engine) -> None:
    """Send the newest sequence of the batch back to the head of the line, without its KV."""
    row = engine.batch.pop()
    row.session.kept = 0.0
    row.preempted, row.starts = not row.starts, False
    engine.waiting.insert(0, row)
    world.preemptions += 1
