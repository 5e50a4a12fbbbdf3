"""Workers larger than a node: they take whole nodes, so their GPUs are a multiple of a node's."""

from typing import Final

from weft_core.parallelism import Degree, gpus_of

MAX_NODES: Final = 64
"""Nodes that one worker may lie on: 256 data-parallel ranks of one GPU on nodes of 4, as in GB200 NVL72. A pod runs on
each, and all of them start and end together."""


def fits_nodes(degree: Degree, gpus_per_node: int) -> bool:
    """Return whether a worker of a degree lies within a node, or fills some nodes up."""
    return (gpus := gpus_of(degree)) <= gpus_per_node or gpus % gpus_per_node == 0


def nodes_spanned(degree: Degree, gpus_per_node: int) -> int:
    """Return how many nodes a worker of a degree lies on.

    Raises:
        ValueError: it would fill a node only in part.
    """
    if not fits_nodes(degree, gpus_per_node):
        raise ValueError(f"degree {degree} has more than the {gpus_per_node} GPUs of a node and no multiple of them")
    return max(1, gpus_of(degree) // gpus_per_node)
