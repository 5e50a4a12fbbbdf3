"""Kinds and names of layouts."""

import pytest

from weft_core.layouts import LayoutKind, PlannedGroup, WorkerRole, in_order, kind_of, layout_name, named_workers
from weft_core.parallelism import Degree, degree_of


def group(role: WorkerRole, degree: Degree = 4, replicas: int = 1, pool: str = "a") -> PlannedGroup:
    return PlannedGroup(role, degree, replicas, pool)


@pytest.mark.parametrize(
    ("roles", "kind"),
    [
        (("prefill", "decode"), "disaggregated"),
        (("decode",), "colocated"),
        (("both",), "symmetric"),
        (("prefill", "both"), "hybrid"),
        (("decode", "both"), "hybrid"),
        (("prefill", "decode", "both"), "hybrid"),
    ],
)
def test_the_roles_of_workers_say_what_kind_of_layout_they_make(roles: tuple[WorkerRole, ...], kind: str) -> None:
    assert kind_of(group(role) for role in roles) == kind


@pytest.mark.parametrize(
    ("groups", "kind", "named", "name"),
    [
        ((group("decode", 8), group("prefill", 4, 2)), "disaggregated", False, "P4x2 D8x1"),
        ((group("decode", 4, 4),), "colocated", False, "C4x4"),
        ((group("both", 4, 4),), "symmetric", False, "B4x4"),
        ((group("both", 2), group("decode", 2, 3), group("prefill", 2)), "hybrid", False, "P2x1 D2x3 B2x1"),
        ((group("prefill"), group("decode", degree_of(dp=16, ep=True), 2)), "disaggregated", False, "P4x1 D[dp16ep]x2"),
        ((group("prefill", 4, 1, "b"), group("decode", 4), group("decode", 8)), "disaggregated", False,
         "P4x1@b D8x1@a D4x1@a"),
        ((group("both"),), "symmetric", True, "B4x1@a"),
    ],
)  # fmt: skip
def test_layouts_have_one_notation(groups: tuple[PlannedGroup, ...], kind: LayoutKind, named: bool, name: str) -> None:
    assert layout_name(groups, kind, named=named) == name


def test_plans_list_their_groups_in_one_order() -> None:
    groups = (group("both"), group("decode", 2), group("decode", 8), group("prefill", 1, 1, "b"), group("prefill"))
    expected = [("prefill", "a"), ("prefill", "b"), ("decode", "a"), ("decode", "a"), ("both", "a")]
    assert [(one.role, one.pool) for one in in_order(groups)] == expected
    assert [one.degree for one in in_order(groups) if one.role == "decode"] == [8, 2]


def test_sentences_name_the_workers_of_a_role() -> None:
    assert named_workers("prefill") == "prefill workers"
    assert named_workers("both") == "workers with both roles"
