"""The pure parts of `make bench-profile` and `make gpu-check`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.gpu.card import catalogued
from bench.gpu.rounds import Figures
from bench.profile.figures import errors, interval, p95
from bench.profile.rounds import FRAMING, Row, table, words_of
from bench.profile.timing import GRID, HELD_OUT

from weft_planner.profiling.measurements import GridCell, Measurement, Measurements
from weft_planner.profiling.validation import predict_cell
from weft_planner_tests.profiled import measured, profile

ROOT = Path(__file__).parents[2]


def test_errors_are_those_of_medians_by_function_and_way() -> None:
    truth = profile(degrees=(1,))
    cells = [GridCell("prefill", 1, increment=n) for n in (100, 200, 300)]
    cells += [
        GridCell("transfer", 1, tokens=n, destination=1, way=way) for n in (500, 900) for way in ("there", "back")
    ]
    rows = []
    for cell in cells:
        right = predict_cell(truth, cell)
        assert right is not None
        off = 1.25 if cell.way == "back" else 1.0
        rows += [Measurement(cell, right * off * factor) for factor in (0.9, 1.0, 5.0)]
    found = {one.name: one for one in errors(truth, Measurements(measured(truth, []).about, tuple(rows)))}
    assert found["T_pre"].median == pytest.approx(0.0)
    assert found["T_pre"].met
    assert (found["T_kv there"].shapes, found["T_kv back"].shapes) == (2, 2)
    assert found["T_kv back"].p95 == pytest.approx(0.2)
    assert found["T_kv back"].met is None


def test_held_out_lengths_are_in_no_grid() -> None:
    for name in ("increments", "contexts", "transfers"):
        assert not set(getattr(GRID, name)) & set(getattr(HELD_OUT, name)), name


def test_intervals_draw_whole_sessions() -> None:
    groups = {f"s{k}": [float(k)] * 5 for k in range(20)}
    low, high = interval(groups, p95)
    assert low < 18.1 <= high <= 19
    assert interval({"s": [2.0, 2.0]}, p95) == (2.0, 2.0)


def test_texts_have_a_token_for_each_character_and_tables_a_row_for_each_figure() -> None:
    assert len(words_of(77, 3)) == 77
    assert words_of(9, 1) != words_of(9, 2)
    assert FRAMING == (3, 4)
    assert "| P95 TTFT | 100.0 [90.0, 110.0] | 120.0 [100.0, 150.0] | +20% |" in table(
        [Row("P95 TTFT", (0.1, 0.09, 0.11), (0.12, 0.1, 0.15))]
    )


def test_figures_of_a_gpu_are_right_when_answers_are_equal_and_kv_went_both_ways() -> None:
    figures = Figures(rounds=3, equal=3, bytes_there=1.0, bytes_back=1.0)
    assert figures.right
    assert figures.dump()["equal"] == 3
    assert not Figures(rounds=3, equal=3, bytes_there=1.0).right
    assert not Figures().right


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "nvidia-h100"),
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA A100-SXM4-40GB", "nvidia-a100-40"),
        ("NVIDIA A100 80GB PCIe", "nvidia-a100-80"),
        ("NVIDIA GB200", "nvidia-gb200"),
        ("NVIDIA L40S", "nvidia-l40s"),
        ("NVIDIA GeForce RTX 4090", ""),
    ],
)
def test_a_gpu_is_found_in_the_catalogue_by_what_it_calls_itself(told: str, name: str) -> None:
    assert catalogued(told) == name


def test_a_machine_without_a_gpu_is_told_so_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu"],
        cwd=ROOT,
        env={**os.environ, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "there is no NVIDIA GPU here; nothing was checked" in done.stdout
