"""Run the events of one simulation in order of time: the compiled function that Python calls."""

from weft_planner.simulation.batching import start_work
from weft_planner.simulation.compiled import entry, jitable
from weft_planner.simulation.event_heap import pop
from weft_planner.simulation.events.history_read import end_read
from weft_planner.simulation.events.kv_returned import end_kv_return
from weft_planner.simulation.events.prefill_end import end_whole_prefill
from weft_planner.simulation.events.role_change import finish_drain, finish_role_change, start_role_change
from weft_planner.simulation.events.round_arrival import arrive
from weft_planner.simulation.events.session_loaded import end_load
from weft_planner.simulation.events.session_moved import end_migration
from weft_planner.simulation.events.step_end import end_step
from weft_planner.simulation.events.tick import record_tick
from weft_planner.simulation.events.transfer_end import end_shared_transfers
from weft_planner.simulation.lists import list_of, remove
from weft_planner.simulation.lockstep import end_together
from weft_planner.simulation.memory import admit
from weft_planner.simulation.prefill_steps import start_prefill_step
from weft_planner.simulation.queues import choose_prefill, mark_dirty
from weft_planner.simulation.records import (
    ARRIVE,
    BACK_END,
    CHANGE,
    EXPIRE,
    IDLE,
    LOADED,
    MOVED,
    NET,
    PREFILL,
    PREFILL_END,
    RANKS_END,
    READ_END,
    SLICE,
    STEP_END,
    SWITCH,
    TICK,
    WAITING,
    Numbers,
    SimulationState,
)
from weft_planner.simulation.retention import observe_wait
from weft_planner.simulation.rounds import bind_waiting
from weft_planner.simulation.routing import route_round
from weft_planner.simulation.state_type import state_at


@jitable
def handle(state: SimulationState, kind: int, subject: int, now: float) -> None:
    """Let an event happen; its subject is a round, a worker or a change."""
    if kind == STEP_END:
        end_step(state, subject, now)
    elif kind == ARRIVE:
        arrive(state, subject, now)
    elif kind == PREFILL_END:
        end_whole_prefill(state, subject, now)
    elif kind == BACK_END:
        end_kv_return(state, subject, now)
    elif kind == READ_END:
        end_read(state, subject, now)
    elif kind == NET:
        end_shared_transfers(state, now)
    elif kind == EXPIRE:
        mark_dirty(state, subject)
    elif kind == SLICE:
        state.workers[subject].slice_event_set = 0
        mark_dirty(state, subject)
    elif kind == MOVED:
        end_migration(state, subject, now)
    elif kind == LOADED:
        end_load(state, subject, now)
    elif kind == TICK:
        record_tick(state, now)
    elif kind == CHANGE:
        start_role_change(state, subject, now)
    elif kind == SWITCH:
        finish_role_change(state, subject)


@jitable
def continue_worker(state: SimulationState, worker: int, now: float) -> None:
    """Continue at a worker what an event made possible: waiting rounds, an idle engine, a drain."""
    w = state.workers[worker]
    waiting = list_of(state, WAITING, worker)
    row = state.lists[waiting].first
    while row >= 0 and admit(state, row, worker):
        remove(state, waiting, row)
        observe_wait(state, row, now)
        route_round(state, row, worker, now)
        row = state.lists[waiting].first
    if w.mode == IDLE:
        if w.alone == 1:
            continue_engine(state, worker, now)
        elif state.workers[w.first_rank].busy_ranks == 0:
            for rank in range(w.first_rank, w.first_rank + w.ranks):
                continue_engine(state, rank, now)
            end_together(state, w.first_rank, now)
    if w.draining == 1:
        finish_drain(state, worker, now)


@jitable
def continue_engine(state: SimulationState, worker: int, now: float) -> None:
    """Start what an idle engine does next, if there is anything."""
    w = state.workers[worker]
    if w.role == PREFILL and w.in_steps == 1:
        start_prefill_step(state, worker, now)
        return
    if w.current < 0:
        w.current = w.ahead if w.ahead >= 0 else choose_prefill(state, worker, False)
        w.ahead = -1
    start_work(state, worker, now)


@jitable
def continue_workers(state: SimulationState, now: float) -> None:
    """Continue at every worker whose state an event changed, until nothing more is possible."""
    totals = state.totals[0]
    while totals.kv_freed == 1 or totals.dirty > 0:
        if totals.kv_freed == 1:
            totals.kv_freed = 0
            bind_waiting(state)
            continue
        totals.dirty -= 1
        worker = state.dirty[totals.dirty]
        state.workers[worker].dirty = 0
        continue_worker(state, worker, now)


@jitable
def end_ranks(state: SimulationState, first: int, now: float) -> None:
    """End the common step of a worker's ranks, one after the other; after the last with work the next step starts."""
    left = state.workers[first].busy_ranks
    rank = first
    while left > 0:
        w = state.workers[rank]
        if w.mode != IDLE:
            left -= 1
            handle(state, w.end_kind, rank, now)
            continue_workers(state, now)
        rank += 1


@jitable
def take_events(state: SimulationState) -> None:
    """Take events until none is left or allowed."""
    totals = state.totals[0]
    while totals.heap > 0 and totals.error == 0 and totals.events < totals.event_limit:
        now, kind, subject = pop(state)
        totals.now = now
        totals.events += 1
        if kind == RANKS_END:
            end_ranks(state, subject, now)
        else:
            handle(state, kind, subject, now)
            continue_workers(state, now)


@entry
def run(addresses: Numbers) -> None:
    """Run a simulation; the argument says where the tables of its state are.

    The loop is not written here, because numba compiles what this function calls for its Python wrapper once more.
    """
    take_events(state_at(addresses))
