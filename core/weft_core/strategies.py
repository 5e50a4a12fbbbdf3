"""The parallelism strategies worth a look where none are named: few, and each for a reason that can be said."""

from collections.abc import Callable, Iterable, Iterator
from itertools import product

from weft_core.analytic import LARGEST_DEGREE
from weft_core.dimensions import ModelDimensions
from weft_core.parallelism import Degree, degree_of, gpus_of, parallelism_of
from weft_core.spans import MAX_NODES, fits_nodes

JOINED_GPUS = 8
"""GPUs over which tensors are split where NVLink joins several nodes: those of the usual node."""
LONGEST_TEXT = 9
"""Letters that ``str`` of one of these takes at most: tp32dp2ep."""


def powers_of_two(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4 and so on, up to ``most``."""
    return tuple(1 << k for k in range(most.bit_length()))


def candidate_strategies(
    model: ModelDimensions, *, node_gpus: int, holds: Callable[[Degree], bool], rack_gpus: int = 0
) -> tuple[Degree, ...]:
    """Return strategies for a model on nodes of ``node_gpus`` GPUs, in order; empty: none up to 64 GPUs holds it.

    ``holds`` says whether a worker of a strategy has room for its part of the model and for the context.
    ``rack_gpus`` are those that NVLink joins over several nodes; 0: it ends at the node. Up to 8 of them count as a
    node here.

    * By tensors alone: powers of two within a node. Links between nodes are too slow for all-reduces.
    * Of a mixture of experts also whole experts (``ep``), under attention by tensors, by ranks of one GPU and by ranks
      of two: on a node, and on the fewest GPUs within it that hold the model. Ranks do not repeat KV heads and latents.
    * Where such a model needs a whole node, ranks over two nodes too: weights leave more room for KV there. In a rack
      ranks over twice and four times as many GPUs, whatever the model needs.
    * On several nodes, by tensors, by a stage for each node, or by experts, only where no node holds the model: on the
      fewest, of 2, 4 and 8.
    """
    joined = max(node_gpus, min(rack_gpus, JOINED_GPUS))
    in_node = [n for n in powers_of_two(joined) if holds(n)]
    largest = powers_of_two(joined)[-1]
    found: list[Degree] = [*in_node]
    if model.experts > 1:
        least = min(in_node, default=largest)
        sizes = sorted({least, largest} - {1})
        found += [degree for size in sizes for degree in _with_experts(size) if holds(degree)]
        widths = (2 * largest, 4 * largest) if rack_gpus else (2 * node_gpus,) if least == node_gpus > 1 else ()
        for gpus in widths if found else ():
            wide = (degree_of(dp=gpus, ep=True), degree_of(tp=2, dp=gpus // 2, ep=True))
            found += [degree for degree in wide if gpus <= LARGEST_DEGREE and holds(degree)]
    nodes = 2
    while not found and nodes * node_gpus <= LARGEST_DEGREE:
        found = [degree for degree in _over_nodes(model, node_gpus, nodes) if holds(degree)]
        nodes *= 2
    return tuple(dict.fromkeys(found))


def near_strategies(wanted: Degree, *, node_gpus: int) -> list[Degree]:
    """Return strategies that lie on nodes of ``node_gpus`` GPUs, the most similar to ``wanted`` first.

    Each rank and each stage lies on one node. None has more than twice the GPUs.
    """
    sizes = powers_of_two(min(64, 2 * gpus_of(wanted)))
    found = (
        degree_of(tp=tp, pp=pp, dp=dp, ep=ep)
        for tp, pp, dp, ep in product(sizes, sizes[:3], sizes, (False, True))
        if tp * pp * dp <= min(2 * gpus_of(wanted), MAX_NODES * node_gpus)
        and tp * pp <= node_gpus
        and fits_nodes(tp * pp * dp, node_gpus)
        and (dp == 1 or tp * pp * dp <= node_gpus or node_gpus % (tp * pp) == 0)
    )
    return [degree for degree in most_similar(wanted, found) if degree != wanted]


def most_similar(wanted: Degree, degrees: Iterable[Degree]) -> list[Degree]:
    """Return degrees, those first that have most parts in common with ``wanted``, of them those of like size."""
    parts = parallelism_of(wanted)

    def distance(degree: Degree) -> tuple[int, int, str]:
        other = parallelism_of(degree)
        same = (other.tp == parts.tp) + (other.pp == parts.pp) + (other.dp == parts.dp) + (other.ep == parts.ep)
        return -same, abs(other.gpus - parts.gpus), str(degree)

    return sorted(set(degrees), key=distance)


def _with_experts(gpus: int) -> Iterator[Degree]:
    yield degree_of(tp=gpus, ep=True)
    yield degree_of(dp=gpus, ep=True)
    if gpus >= 4:
        yield degree_of(tp=2, dp=gpus // 2, ep=True)


def _over_nodes(model: ModelDimensions, node_gpus: int, nodes: int) -> Iterator[Degree]:
    yield nodes * node_gpus
    yield degree_of(tp=node_gpus, pp=nodes)
    if model.experts > 1:
        yield degree_of(tp=nodes * node_gpus, ep=True)
        yield degree_of(tp=node_gpus, dp=nodes, ep=True)
        yield degree_of(dp=nodes * node_gpus, ep=True)
