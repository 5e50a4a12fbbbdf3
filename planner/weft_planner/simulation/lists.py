"""Keep doubly linked lists of rows, in arrays."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.records import SLOT, SimulationState


@jitable
def list_of(state: SimulationState, kind: int, worker: int) -> int:
    """Return the number of a worker's list of one kind."""
    return 1 + kind * state.rules[0].workers + worker


UNBOUND = 0
"""The list of rounds that wait for a worker, of kind WAITING."""


@jitable
def first_of(state: SimulationState, kind: int, worker: int) -> int:
    """Return the first row of a worker's list of one kind, -1 when it is empty."""
    return state.lists[list_of(state, kind, worker)].first


@jitable
def last_of(state: SimulationState, kind: int, worker: int) -> int:
    """Return the last row of a worker's list of one kind, -1 when it is empty."""
    return state.lists[list_of(state, kind, worker)].last


@jitable
def length_of(state: SimulationState, kind: int, worker: int) -> int:
    """Return how many rows a worker's list of one kind has."""
    return state.lists[list_of(state, kind, worker)].length


@jitable
def slot_of(state: SimulationState, worker: int, step: int) -> int:
    """Return the number of the list of sequences that finish at a worker's step."""
    slots = state.rules[0].slots
    return 1 + SLOT * state.rules[0].workers + worker * slots + (step & (slots - 1))


@jitable
def append(state: SimulationState, which: int, row: int) -> None:
    """Put a row at a list's end."""
    ends = state.lists[which]
    state.before[row, ends.kind] = ends.last
    state.after[row, ends.kind] = -1
    if ends.last < 0:
        ends.first = row
    else:
        state.after[ends.last, ends.kind] = row
    ends.last = row
    ends.length += 1


@jitable
def prepend(state: SimulationState, which: int, row: int) -> None:
    """Put a row at a list's beginning."""
    ends = state.lists[which]
    state.before[row, ends.kind] = -1
    state.after[row, ends.kind] = ends.first
    if ends.first < 0:
        ends.last = row
    else:
        state.before[ends.first, ends.kind] = row
    ends.first = row
    ends.length += 1


@jitable
def insert_after(state: SimulationState, which: int, place: int, row: int) -> None:
    """Put a row after another of a list, at its beginning after -1."""
    ends = state.lists[which]
    if place < 0:
        prepend(state, which, row)
    elif place == ends.last:
        append(state, which, row)
    else:
        following = state.after[place, ends.kind]
        state.before[row, ends.kind] = place
        state.after[row, ends.kind] = following
        state.after[place, ends.kind] = row
        state.before[following, ends.kind] = row
        ends.length += 1


@jitable
def remove(state: SimulationState, which: int, row: int) -> None:
    """Take a row out of a list."""
    ends = state.lists[which]
    before = state.before[row, ends.kind]
    following = state.after[row, ends.kind]
    if before < 0:
        ends.first = following
    else:
        state.after[before, ends.kind] = following
    if following < 0:
        ends.last = before
    else:
        state.before[following, ends.kind] = before
    ends.length -= 1
