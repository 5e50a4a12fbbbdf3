"""Tell whether planned workers fit onto nodes: a worker never spans nodes, so free GPUs alone do not say it."""

from collections.abc import Sequence


def node_sizes(gpus: int, gpus_per_node: int) -> list[int]:
    """Return a pool's nodes as GPU counts: full nodes, then one with the rest."""
    full, rest = divmod(gpus, gpus_per_node)
    return [gpus_per_node] * full + ([rest] if rest else [])


def placeable(nodes: Sequence[int], workers: Sequence[tuple[int, int]]) -> bool:
    """Tell exactly whether (degree, count) workers of at most two degrees pack onto the nodes.

    For each number of the larger workers on a node the rest goes to the smaller ones; the best total of smaller
    workers, over all ways to spread the larger ones, is found by dynamic programming.

    Raises:
        ValueError: more than two different degrees.
    """
    wanted: dict[int, int] = {}
    for degree, count in workers:
        if count:
            wanted[degree] = wanted.get(degree, 0) + count
    if len(wanted) > 2:
        raise ValueError(f"workers: {sorted(wanted)} are more than two degrees")
    if not wanted:
        return True
    large = max(wanted)
    small = min(wanted)
    if large == small:
        return sum(size // large for size in nodes) >= wanted[large]
    return _most_small(nodes, large=large, count=wanted[large], small=small) >= wanted[small]


def _most_small(nodes: Sequence[int], *, large: int, count: int, small: int) -> int:
    """Return the most small workers that fit beside ``count`` large ones, -1 when those do not fit at all."""
    most = [0] + [-1] * count  # most[a]: small workers possible with a large ones on the nodes so far
    for size in nodes:
        following = [-1] * (count + 1)
        for placed, smalls in enumerate(most):
            if smalls < 0:
                continue
            for here in range(min(size // large, count - placed) + 1):
                total = smalls + (size - here * large) // small
                following[placed + here] = max(following[placed + here], total)
        most = following
    return most[count]
