"""Keep, at each worker that prefills for others, the prompts that it computed for them, in KV memory that is left free.

What its own sessions hold, where it has any, is no part of this. An engine gives up what was used least recently, a
prompt's end before its beginning. A session's rounds come one after the other, so a worker has one prompt of it at
most: that of the last round that it prefilled.
"""

from weft_core.policies.finish import remote_work
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.lists import append, first_of, list_of, remove
from weft_planner.simulation.queues import remaining_work
from weft_planner.simulation.records import KEPT, SimulationState


@jitable
def cached_prefix(state: SimulationState, row: int, worker: int) -> float:
    """Return how many tokens of a session's first prompt a worker has in its prefix cache; one is always computed."""
    r = state.rows[row]
    session = state.sessions[r.session]
    if r.history > 0 or state.per_class[worker, session.slo_class].cached == 0:
        return 0.0
    return min(session.prefix, r.increment - 1)


@jitable
def kept_row(state: SimulationState, row: int, worker: int) -> int:
    """Return the earlier round of the session whose prompt a worker has in its prefix cache, -1 without one."""
    first = state.sessions[state.rows[row].session].first_row
    earlier = row - 1
    while earlier >= first:
        r = state.rows[earlier]
        if r.route == worker:
            return earlier if r.kept > 0 else -1
        earlier -= 1
    return -1


@jitable
def cached_tokens(state: SimulationState, row: int, worker: int) -> float:
    """Return how many tokens of a round's prompt a worker has in its prefix cache."""
    earlier = kept_row(state, row, worker)
    return state.rows[earlier].kept if earlier >= 0 else cached_prefix(state, row, worker)


@jitable
def readable_tokens(state: SimulationState, row: int, present: float) -> float:
    """Return how many of the tokens ``present`` on a round's decode worker a prefill worker can read."""
    return present if state.rows[row].history > 0 and state.rules[0].reads == 1 else 0.0


@jitable
def look_up(state: SimulationState, row: int) -> None:
    """Write what each worker has ``cached`` of a round's prompt, and what of it was ever ``sent`` there.

    For those that may prefill for others.
    """
    first = state.sessions[state.rows[row].session].first_row
    for i in range(state.rules[0].helpers):
        state.cached[i] = state.sent[i] = cached_prefix(state, row, i)
    earlier = row - 1
    while earlier >= first:
        r = state.rows[earlier]
        if r.route >= 0 and state.sent[r.route] == 0:
            state.sent[r.route] = r.history + r.increment
            state.cached[r.route] = r.kept
        earlier -= 1


@jitable
def use_kept_prompt(state: SimulationState, row: int, worker: int) -> None:
    """Make the session's earlier prompt at a worker part of what a prefill holds there."""
    earlier = kept_row(state, row, worker)
    if earlier >= 0:
        drop_prompt(state, earlier, worker)


@jitable
def give_up_prompt(state: SimulationState, row: int, worker: int, tokens: float) -> None:
    """Take that many tokens, or all, of a prompt out of the prefix cache."""
    r = state.rows[row]
    given = min(tokens, r.kept)
    r.kept -= given
    state.workers[worker].kept -= given
    if r.kept == 0:
        remove(state, list_of(state, KEPT, worker), row)


@jitable
def make_kept_room(state: SimulationState, worker: int) -> None:
    """Give up prompts, the least recently used first, until those that are left fit beside the worker's work."""
    w = state.workers[worker]
    kept = list_of(state, KEPT, worker)
    over = w.kv_used + w.kept - w.kv_capacity
    while over > 0 and state.lists[kept].first >= 0:
        give_up_prompt(state, state.lists[kept].first, worker, over)
        over = w.kv_used + w.kept - w.kv_capacity


@jitable
def take_prompt(state: SimulationState, row: int, worker: int) -> None:
    """Begin a prefill by what the worker's prefix cache has now: since it was routed, prompts may have gone and come.

    The session's earlier prompt becomes part of what the prefill holds.
    """
    r = state.rows[row]
    w = state.workers[worker]
    rules = state.rules[0]
    total = r.task_history + r.task_tokens
    history = readable_tokens(state, row, r.present)
    known, tokens, read = remote_work(history, total, cached_tokens(state, row, worker))
    if rules.reads == 0 and r.history > 0:
        state.totals[0].recomputed += max(0.0, r.present - known) - max(0.0, r.present - r.task_history)
    state.totals[0].read_tokens += read - r.read
    w.queue_tokens += tokens - r.task_tokens
    w.queue_work += remaining_work(known, tokens, 0.0) - remaining_work(r.task_history, r.task_tokens, 0.0)
    r.task_history = known
    r.task_tokens = tokens
    r.read = read
    use_kept_prompt(state, row, worker)


@jitable
def keep_prompt(state: SimulationState, row: int, worker: int, now: float) -> None:
    """Leave a prompt that was prefilled for another worker in the prefix cache once its KV memory is free."""
    if state.rules[0].caches == 0:
        return
    w = state.workers[worker]
    r = state.rows[row]
    r.kept = r.history + r.increment
    r.kept_at = now
    w.kept += r.kept
    append(state, list_of(state, KEPT, worker), row)
    make_kept_room(state, worker)


@jitable
def drop_prompt(state: SimulationState, row: int, worker: int) -> None:
    """Take a prompt out of the prefix cache."""
    r = state.rows[row]
    state.workers[worker].kept -= r.kept
    r.kept = 0.0
    remove(state, list_of(state, KEPT, worker), row)


@jitable
def forget_prompts(state: SimulationState, worker: int) -> None:
    """Empty a worker's prefix cache: its engine restarts with an empty one."""
    row = first_of(state, KEPT, worker)
    while row >= 0:
        drop_prompt(state, row, worker)
        row = first_of(state, KEPT, worker)
    for c in range(state.rules[0].classes):
        state.per_class[worker, c].cached = 0
