"""AMPD's Eq. (5) as printed: its optimum, and how many layouts share it."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.layouts import ROLES, PlannedGroup
from weft_planner.programs.as_printed import PrintedOptimum, WorkerLatency, build, optimum_of, worker_latencies
from weft_planner.programs.inputs import prepare_inputs
from weft_planner.tables import text_of
from weft_planner.tables.as_printed import as_printed_body, as_printed_parts
from weft_planner_tests.instances import optimum
from weft_planner_tests.requests import request

PAPER = (
    WorkerLatency("prefill", "a", 4, 0.9), WorkerLatency("prefill", "a", 8, 0.5),
    WorkerLatency("decode", "a", 1, 0.06), WorkerLatency("decode", "a", 2, 0.04), WorkerLatency("decode", "a", 4, 0.03),
)  # fmt: skip


def solved(kinds: tuple[WorkerLatency, ...], gpus: int) -> PrintedOptimum:
    values = optimum(build(kinds, gpus=gpus))
    assert values is not None
    return optimum_of(kinds, values, gpus=gpus)


def as_good(kinds: tuple[WorkerLatency, ...], gpus: int, z: float) -> list[int]:
    """Return the GPUs of every layout whose worst worker is at Z, by trying all counts."""
    found = []
    for counts in product(*(range(gpus // kind.gpus + 1) for kind in kinds)):
        used = [(kind, count) for kind, count in zip(kinds, counts, strict=True) if count]
        taken = sum(kind.gpus * count for kind, count in used)
        both = {kind.role for kind, _ in used} == set(ROLES)
        if both and taken <= gpus and max(kind.seconds for kind, _ in used) <= z:
            found.append(taken)
    return found


def test_one_worker_of_each_phase_is_as_good_as_all_that_fit() -> None:
    found = solved(PAPER, 16)
    assert found.z_s == 0.5
    assert [kind.degree for kind in found.allowed] == [8, 1, 2, 4]
    assert (found.least, found.budget, found.itl_binds) == (9, 16, False)
    assert found.layouts == len(as_good(PAPER, 16, 0.5))
    assert sum(group.gpus for group in found.groups) <= 16


SECONDS = st.sampled_from([0.01, 0.02, 0.03, 0.05])


@given(st.lists(SECONDS, min_size=4, max_size=4), st.integers(4, 9))
def test_the_optimum_is_the_larger_of_both_phases_best_and_all_as_good_are_counted(
    seconds: list[float], gpus: int
) -> None:
    kinds = tuple(
        WorkerLatency(role, "a", degree, of) for (role, degree), of in zip(product(ROLES, (1, 2)), seconds, strict=True)
    )
    found = solved(kinds, gpus)
    possible = [kind for kind in kinds if kind.gpus < gpus]
    assert found.z_s == max(min(kind.seconds for kind in possible if kind.role == role) for role in ROLES)
    layouts = as_good(kinds, gpus, found.z_s)
    assert (found.layouts, found.least) == (len(layouts), min(layouts))


def test_no_layout_fits_too_few_gpus() -> None:
    assert optimum(build(PAPER, gpus=4)) is None


def test_latencies_of_one_worker_fall_with_its_degree_and_stand_in_the_table() -> None:
    asked = request()
    kinds = worker_latencies(prepare_inputs(asked))
    for role in ROLES:
        of_role = [kind.seconds for kind in kinds if kind.role == role]
        assert of_role == sorted(of_role, reverse=True)
        assert all(0 < seconds < 60 for seconds in of_role)
    groups = (PlannedGroup("prefill", 8, 1, "h20"), PlannedGroup("decode", 2, 3, "h20"))
    found = PrintedOptimum(kinds, 0.5, groups, kinds[:1], layouts=1234, least=9, budget=16, itl_binds=False)
    text = text_of(as_printed_parts(found, request=asked, name="agents"))
    assert "1,234 layouts of 9 to 16 GPUs have this Z" in text
    assert "P8x1 D2x3 (14 GPUs)" in text
    assert as_printed_body(found)["optimalLayouts"] == 1234


def test_the_table_says_which_latency_counts_for_nothing() -> None:
    slow = tuple(WorkerLatency(kind.role, "a", kind.degree, 1.0) for kind in PAPER if kind.role == "decode")
    found = solved(PAPER[:2] + slow, 16)
    assert found.itl_binds
    assert "TTFT counts for nothing" in text_of(as_printed_parts(found, request=request(), name=""))


@pytest.mark.parametrize("extra", [["--top", "3"], ["--rate-match"], ["--report", "r.html"], ["--objective", "cost"]])
def test_the_command_refuses_options_of_a_plan(extra: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    import weft_cli

    assert weft_cli.main(["plan", "-f", "none.yaml", "--as-printed", *extra]) == 2
    assert "--as-printed makes no plan" in capsys.readouterr().err
