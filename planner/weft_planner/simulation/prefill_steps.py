"""Run a prefill worker whose steps have a token budget: several prompts share a step, a long one takes several.

As vLLM schedules them: each step goes through the prefills in the engine, in the order they came, and gives each what
the budget leaves; a new one starts, or begins to read its history, only while some of it is left. How many are there at
a time is up to the router, which sends as many as its concurrency says and, as soon as these compute, as many more
whose history can be read meanwhile.
"""

from weft_core.timing import prefill_step_seconds
from weft_planner.simulation.batching import prepare
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.lists import append, list_of
from weft_planner.simulation.lockstep import set_end
from weft_planner.simulation.queues import choose_prefill, prefill_pieces
from weft_planner.simulation.records import ENGINE, IN_ENGINE, PREFILL_END, WHOLE, SimulationState


@jitable
def take_prefill(state: SimulationState, worker: int, ahead: bool, now: float) -> int:
    """Give the engine the next prefill by the service's queue order; -1 when there is none, or no memory for it.

    ``ahead``: only one with history to read, which begins now.
    """
    row = choose_prefill(state, worker, ahead)
    if row < 0 or not prepare(state, row, worker, now):
        return -1
    state.rows[row].ready = IN_ENGINE
    append(state, list_of(state, ENGINE, worker), row)
    return row


@jitable
def start_prefill_step(state: SimulationState, worker: int, now: float) -> None:
    """Start a step of an idle prefill worker, with what its budget allows of the prefills whose history is read."""
    w = state.workers[worker]
    engine = list_of(state, ENGINE, worker)
    pieces = prefill_pieces(state, worker)
    left = float(state.rules[0].prefill_tokens)
    tokens = 0.0
    pairs = 0.0
    context = 0.0
    before = 0.0
    seconds = 0.0
    row = state.lists[engine].first
    while left > 0:
        if row < 0:
            if state.lists[engine].length >= w.prefill_places:
                break
            row = take_prefill(state, worker, False, now)
            if row < 0:
                break
        r = state.rows[row]
        if r.reading == 0:
            r.part = min(left, r.task_tokens - r.done)
            left -= r.part
            history = r.task_history + r.done
            tokens += r.part
            pairs += r.part * (history + r.part / 2)
            context += history + r.part
            step = prefill_step_seconds(pieces, tokens, pairs, context)
            seconds += (step - before) * r.noise
            before = step
        row = state.after[row, ENGINE]
    if tokens == 0:
        return
    while state.rules[0].pull == 1 and left > 0 and state.lists[engine].length < 2 * w.prefill_places:
        if take_prefill(state, worker, True, now) < 0:
            break
    w.mode = WHOLE
    set_end(state, worker, PREFILL_END, seconds, now)
