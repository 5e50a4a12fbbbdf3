import pytest

from weft_core.spans import fits_nodes, nodes_spanned


@pytest.mark.parametrize(
    ("degree", "gpus", "nodes"), [(1, 8, 1), (8, 8, 1), (16, 8, 2), (64, 8, 8), (12, 6, 2), (2, 1, 2)]
)
def test_a_worker_lies_within_a_node_or_fills_several(degree: int, gpus: int, nodes: int) -> None:
    assert fits_nodes(degree, gpus)
    assert nodes_spanned(degree, gpus) == nodes


def test_no_node_is_filled_in_part() -> None:
    assert not fits_nodes(8, 6)
    with pytest.raises(ValueError, match="no multiple"):
        nodes_spanned(8, 6)
