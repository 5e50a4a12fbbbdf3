"""The checker of placements against trying everything, and against the program's own conditions."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from weft_planner.programs.packing import divide_each_other, holds, pack
from weft_planner.programs.placement import placeable, slots_suffice


def possible(nodes: list[int], workers: list[int]) -> bool:
    return any(holds(nodes, workers, placed) for placed in product(range(len(nodes)), repeat=len(workers)))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=3), st.lists(st.integers(1, 6), max_size=6))
def test_workers_are_placed_exactly_when_that_is_possible(nodes: list[int], workers: list[int]) -> None:
    placed = pack(nodes, workers)
    assert (placed is not None) == possible(nodes, workers)
    assert placed is None or holds(nodes, workers, placed)


powers = st.sampled_from([1, 2, 4, 8])


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.lists(powers, max_size=30))
def test_counting_slots_is_exact_for_powers_of_two(nodes: list[int], workers: list[int]) -> None:
    counts = {degree: workers.count(degree) for degree in set(workers)}
    assert (pack(nodes, workers) is not None) == slots_suffice(nodes, counts)


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.tuples(st.integers(1, 7), st.integers(0, 4)),
    st.tuples(st.integers(1, 7), st.integers(0, 4)),
)
def test_two_degrees_of_any_kind_agree_with_the_program_s_rule(
    nodes: list[int], one: tuple[int, int], other: tuple[int, int]
) -> None:
    workers = [one[0]] * one[1] + [other[0]] * other[1]
    assert (pack(nodes, workers) is not None) == placeable(nodes, [one, other])


def test_a_placement_over_a_node_s_size_or_off_the_nodes_is_none() -> None:
    assert holds([4, 4], [4, 2, 2], [0, 1, 1])
    assert not holds([4, 4], [4, 2, 2], [0, 0, 1])
    assert not holds([4, 4], [4, 2, 2], [0, 1, 2])
    assert not holds([4, 4], [4], [])


def test_what_divides_what() -> None:
    assert divide_each_other([8, 2, 1, 4, 4])
    assert divide_each_other([3, 6])
    assert not divide_each_other([2, 3])


def test_four_hundred_workers_on_a_hundred_nodes_are_placed_at_once() -> None:
    workers = [8] * 20 + [4] * 60 + [2] * 120 + [1] * 160
    placed = pack([8] * 100, workers)
    assert placed is not None
    assert holds([8] * 100, workers, placed)
    assert pack([8] * 100, [*workers, 1]) is None
