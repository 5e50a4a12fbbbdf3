"""Check that planned workers fit onto nodes, and say on which: the independent proof beside the integer program.

The program speaks of slots or forbids pairs of groups; this module knows nothing of either. It packs by first fit,
largest first, which is exact when every degree divides the next larger one (powers of two), and by search otherwise.
"""

from collections.abc import Sequence
from itertools import pairwise

SEARCH_STEPS = 200_000
"""Placements tried at most for degrees that do not divide each other; beyond, the answer is unknown and an error."""


class PackingError(RuntimeError):
    """Report that the search ended without an answer."""


def pack(nodes: Sequence[int], workers: Sequence[int]) -> list[int] | None:
    """Return the node's index for each worker (a degree), in their order; None when they cannot all be placed.

    Raises:
        PackingError: degrees that do not divide each other, and no answer within ``SEARCH_STEPS``.
    """
    order = sorted(range(len(workers)), key=lambda i: -workers[i])
    sizes = [workers[i] for i in order]
    placed = _first_fit(list(nodes), sizes)
    if placed is None and not divide_each_other(sizes):
        placed = _search(list(nodes), sizes)
    if placed is None:
        return None
    found = [0] * len(workers)
    for i, node in zip(order, placed, strict=True):
        found[i] = node
    return found


def holds(nodes: Sequence[int], workers: Sequence[int], placed: Sequence[int]) -> bool:
    """Return whether a placement is one: every worker on one node, no node over its size."""
    if len(placed) != len(workers):
        return False
    used = [0] * len(nodes)
    for degree, node in zip(workers, placed, strict=True):
        if not 0 <= node < len(nodes):
            return False
        used[node] += degree
    return all(taken <= size for taken, size in zip(used, nodes, strict=True))


def divide_each_other(degrees: Sequence[int]) -> bool:
    """Return whether each degree divides the next larger one, as powers of two do."""
    return all(larger % smaller == 0 for smaller, larger in pairwise(sorted(set(degrees))))


def _first_fit(free: list[int], sizes: Sequence[int]) -> list[int] | None:
    """Place the largest first, each on the first node with room.

    Exact for degrees that divide each other: all that lies on a node when a worker of size s is placed is a multiple of
    s, so a node of size c holds floor(c / s) slots of s less those taken, however the larger ones were placed.
    """
    placed = []
    start, last = 0, 0
    for size in sizes:
        node = start if size == last else 0
        while node < len(free) and free[node] < size:
            node += 1
        if node == len(free):
            return None
        free[node] -= size
        placed.append(node)
        start, last = node, size  # nodes before have no room for this size
    return placed


def _search(free: list[int], sizes: Sequence[int]) -> list[int] | None:
    """Try every placement, largest first, leaving out those that differ only by equal nodes or equal workers."""
    dead: set[tuple[int, tuple[int, ...]]] = set()
    placed: list[int] = []
    steps = 0

    def place(at: int) -> bool:
        nonlocal steps
        if at == len(sizes):
            return True
        state = (at, tuple(sorted(free)))
        if state in dead:
            return False
        tried: set[int] = set()
        for node, room in enumerate(free):
            if room < sizes[at] or room in tried:
                continue
            tried.add(room)
            steps += 1
            if steps > SEARCH_STEPS:
                raise PackingError(f"workers: no answer after {SEARCH_STEPS} placements; use powers of two as degrees")
            free[node] -= sizes[at]
            placed.append(node)
            if place(at + 1):
                return True
            placed.pop()
            free[node] += sizes[at]
        dead.add(state)
        return False

    return list(placed) if sum(sizes) <= sum(free) and place(0) else None
