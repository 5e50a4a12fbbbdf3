"""What plans may bring where pools leave parallelism strategies to the planner: objects are prepared for it.

Only then no running worker is restarted when the first of another strategy comes.
"""

from weft_core.analytic import LARGEST_DEGREE
from weft_core.parallelism import gpus_of, parallelism_of
from weft_core.strategies import powers_of_two
from weft_operator.api.capacity import Capacity, Pool
from weft_operator.api.model import Model, known_dimensions


def most_ranks(model: Model, capacity: Capacity) -> int:
    """Return the most data-parallel ranks that a worker may have; dense models have none but those that are named."""
    named = [parallelism_of(degree).dp for pool in capacity.pools for degree in pool.named_degrees or ()]
    dimensions = known_dimensions(model)
    if any(pool.named_degrees is None for pool in capacity.pools) and (dimensions is None or dimensions.experts > 1):
        return max([LARGEST_DEGREE, *named])
    return max([1, *named])


def may_span_nodes(pool: Pool) -> bool:
    """Return whether a worker of a pool may lie on several nodes."""
    return pool.named_degrees is None or any(gpus_of(degree) > pool.gpus_per_node for degree in pool.named_degrees)


def possible_sizes(capacity: Capacity) -> tuple[int, ...]:
    """Return how many GPUs a worker may have: what pools name, and where one names nothing all that may fit."""
    sizes: set[int] = set()
    for pool in capacity.pools:
        if pool.named_degrees is not None:
            sizes |= set(map(gpus_of, pool.named_degrees))
        else:
            of_nodes = {nodes * pool.gpus_per_node for nodes in powers_of_two(LARGEST_DEGREE)}
            sizes |= {size for size in {*powers_of_two(LARGEST_DEGREE), *of_nodes} if size <= LARGEST_DEGREE}
    return tuple(sorted(sizes))
