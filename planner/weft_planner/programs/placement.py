"""What the integer programs know of nodes: a worker lies on one or fills several, so free GPUs alone do not tell.

A worker larger than a node is so many parts of a node each, and the parts lie anywhere: what is asked here is asked of
parts (``Limits.part``).

``packing`` proves a finished plan without these rules.
"""

from collections.abc import Mapping, Sequence


def node_sizes(gpus: int, gpus_per_node: int) -> list[int]:
    """Return a pool's nodes as GPU counts: full nodes, then one with the rest."""
    full, rest = divmod(gpus, gpus_per_node)
    return [gpus_per_node] * full + ([rest] if rest else [])


def slots(nodes: Sequence[int], size: int) -> int:
    """Return how many workers of one size the nodes hold: the sum of floor(GPUs of the node / size)."""
    return sum(gpus // size for gpus in nodes)


def slots_suffice(nodes: Sequence[int], counts: Mapping[int, int]) -> bool:
    """Return whether workers of degrees that divide each other fit: for each d, sum_{n >= d} (n/d) x[n] <= slots(d).

    A worker of degree n takes n / d slots of the smaller degree d wherever it lies, so the inequalities are
    necessary, and placing the largest first shows that they suffice.
    """
    degrees = [degree for degree, count in counts.items() if count]
    return all(sum(n // d * counts[n] for n in degrees if n >= d) <= slots(nodes, d) for d in degrees)


def placeable(nodes: Sequence[int], workers: Sequence[tuple[int, int]]) -> bool:
    """Return exactly whether (degree, count) workers of at most two degrees pack onto the nodes.

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
    if large % small == 0:
        return slots_suffice(nodes, wanted)
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
