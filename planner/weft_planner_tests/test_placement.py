from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_planner.programs.placement import node_sizes, placeable


def test_nodes_are_full_but_for_the_last() -> None:
    assert node_sizes(20, 8) == [8, 8, 4]
    assert node_sizes(16, 8) == [8, 8]
    assert node_sizes(3, 8) == [3]


def test_free_gpus_alone_do_not_make_room() -> None:
    assert not placeable([4, 4], [(8, 1)])
    assert placeable([8], [(4, 1), (2, 2)])
    assert not placeable([6, 6], [(4, 2), (2, 3)])  # 14 GPUs wanted, 12 there
    assert not placeable([6, 6], [(4, 3)])  # 12 GPUs wanted and there, but only one of 4 per node
    assert placeable([6, 6], [(3, 4)])
    assert placeable([8, 8], [(3, 2), (5, 2)])
    assert not placeable([8, 8], [(3, 3), (5, 2)])
    assert placeable([1], [])


def test_more_than_two_degrees_are_refused() -> None:
    with pytest.raises(ValueError, match="more than two degrees"):
        placeable([8], [(1, 1), (2, 1), (4, 1)])


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.tuples(st.integers(1, 9), st.integers(0, 5)),
    st.tuples(st.integers(1, 9), st.integers(0, 5)),
)
def test_it_agrees_with_trying_every_node_for_every_worker(
    nodes: list[int], first: tuple[int, int], second: tuple[int, int]
) -> None:
    items = tuple([first[0]] * first[1] + [second[0]] * second[1])

    @cache
    def fits(free: tuple[int, ...], left: tuple[int, ...]) -> bool:
        if not left:
            return True
        return any(
            fits(tuple(sorted((*free[:i], size - left[0], *free[i + 1 :]))), left[1:])
            for i, size in enumerate(free)
            if size >= left[0]
        )

    assert placeable(nodes, [first, second]) == fits(tuple(sorted(nodes)), items)
