"""Workers larger than a node: they take whole nodes, so their degree is a multiple of a node's GPUs."""


def fits_nodes(degree: int, gpus_per_node: int) -> bool:
    """Return whether a worker of a degree lies within a node, or fills some nodes up."""
    return degree <= gpus_per_node or degree % gpus_per_node == 0


def nodes_spanned(degree: int, gpus_per_node: int) -> int:
    """Return how many nodes a worker of a degree lies on.

    Raises:
        ValueError: it would fill a node only in part.
    """
    if not fits_nodes(degree, gpus_per_node):
        raise ValueError(f"degree {degree} is above {gpus_per_node} GPUs of a node and no multiple of them")
    return max(1, degree // gpus_per_node)
