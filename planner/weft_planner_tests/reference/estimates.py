"""Say what policies are told of an engine: its queue in seconds, what a prefill would take there, recent means."""

import math

from weft_core.timing import chunked_seconds, step_seconds
from weft_planner_tests.reference.parts import NAN, Engine, Round
from weft_planner_tests.reference.world import World


def prefix_on(row: Round, engine: Engine) -> float:
    """Return how much of a first round's shared prefix an engine has in its cache."""
    cached = row.first and row.session.kind in engine.cached
    return min(row.session.prefix, row.increment - 1) if cached else 0.0


def elsewhere(world: World, row: Round, engine: Engine, present: float, total: float) -> tuple[float, float, float]:
    """Return what another engine would find in its cache, compute, and read, in tokens."""
    cached = min(cached_on(row, engine), total - 1)
    if world.read and not row.first and present > cached:
        return present, total - present, present - cached
    return cached, total - cached, 0.0


def cached_on(row: Round, engine: Engine) -> float:
    """Return how much of a round's prompt an engine has in its cache."""
    return prefix_on(row, engine) if row.first else sum(r.kept for r in engine.kept if r.session is row.session)


def slice_limit(world: World, engine: Engine) -> float:
    """Return how long a step with a slice of a prefill may take, in seconds."""
    if world.options.slice_turn_s and not engine.batch:
        return math.inf
    kinds = {r.session.kind for r in engine.batch} or set(range(len(world.slo)))
    return world.slice_share * min(world.slo[k].itl_s for k in kinds)


def sliced_seconds(world: World, engine: Engine, history: float, tokens: float) -> float:
    """Return what a prefill takes in slices beside the batch."""
    context = sum(r.context for r in engine.batch)
    size, most = float(len(engine.batch)), world.options.chunk_limit
    limit, turn = slice_limit(world, engine), world.options.slice_turn_s
    if not turn:
        return chunked_seconds(engine.step, size, context, history, tokens, limit, most)
    between = max(turn, step_seconds(engine.step, size, context)) if engine.batch else turn
    return chunked_seconds(engine.step, size, context, history, tokens, limit, most, world.options.chunk_floor, between)


def sliced_queue(world: World, engine: Engine) -> float:
    """Return what the queue takes in slices: as one prefill of its sum, on the history that costs the same."""
    rest = sum(r.compute - r.done for r in engine.queue)
    if rest <= 0:
        return 0.0
    work = sum((r.compute - r.done) * (r.cached + r.done + (r.compute - r.done) / 2) for r in engine.queue)
    return sliced_seconds(world, engine, max(0.0, work / rest - rest / 2), rest)


def whole_queue(engine: Engine) -> float:
    """Return what the queue takes when each prefill runs by itself, as predicted when it was routed."""
    return sum(r.seconds for r in engine.queue)


def place_wait(engine: Engine, answer: float, step: float) -> float:
    """Return until when enough of a full batch have ended for one more, behind those that wait already."""
    before = [*engine.batch, *engine.joining, *engine.fetching, *engine.queue]
    excess = len(before) + 1 - engine.places
    return excess * answer * step / len(engine.batch) if excess > 0 and engine.batch else 0.0


def windowed_mean(world: World, samples: list[tuple[float, float]], now: float) -> float:
    """Return the mean of what was seen within the window; only ``ampd`` asks for it."""
    recent = [x for t, x in samples if t >= now - world.options.window_s]
    return sum(recent) / len(recent) if recent and world.policy.route == "ampd" else NAN


def slack_figures(world: World, home: Engine) -> tuple[list[float], list[float]]:
    """Return, of each sequence that decodes, the sum of its session's gaps (or how many are late) and their count."""
    sums, counts = [], []
    for row in [r for r in home.batch if not r.starts]:
        gaps = [gap for one in row.session.rounds for gap in one.token_gaps]
        late = sum(gap > world.slo[row.session.kind].itl_s for gap in gaps)
        sums.append(float(sum(gaps)) if world.policy.params.get("itl_statistic", 0) == 0 else float(late))
        counts.append(float(len(gaps)))
    return sums, counts


def gaps_left(world: World, home: Engine) -> list[float]:
    """Return, of each sequence that decodes, how many gaps the rest of its answer has if it is of mean length."""
    mean = [sum(lengths) / len(lengths) if lengths else NAN for lengths in world.tokens_of_kind]
    return [max(1.0, mean[r.session.kind] - 1 - len(r.token_gaps)) for r in home.batch if not r.starts]
