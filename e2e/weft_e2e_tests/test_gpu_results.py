"""The figures of whole passes on real GPUs follow from the files of the runs."""

import re
from pathlib import Path
from typing import Any

import pytest
from bench.gpu import comparison, operators
from bench.gpu.record import read
from bench.gpu.setting import Setting, on_gpu

from weft_planner.profiling.validation import predict_cell

ROOT = Path(__file__).parents[2]
CARDS = ("h100", "h200")
TOPIC = "## Profile against whole passes on real GPUs"
ROUNDING = 0.0051
"""Figures have one place of a percent; a fit may end half a percent elsewhere where numpy's products differ."""


def documented() -> dict[tuple[str, str], list[tuple[float, ...]]]:
    """Return median, P95 and bias of each card by source and kind, as the page has them."""
    topic = (ROOT / "docs/figures.md").read_text(encoding="utf-8").split(TOPIC)[1].split("\n## ")[0]
    figures = re.compile(r"([\d.]+) %, ([\d.]+) % \(([+-][\d.]+) %\)")
    return {
        (source, kind): [tuple(float(value) / 100 for value in found) for found in figures.findall(rest)]
        for source, kind, rest in re.findall(r"^\| ([^|]+) \| (\w+), \d+ \| (.*)$", topic, re.MULTILINE)
    }


def results(card: str, name: str) -> dict[str, Any]:
    found = read(ROOT / "bench/gpu/results" / card / name)
    assert found is not None
    return found


def compared(setting: Setting, card: str) -> dict[str, list[comparison.Agreement]]:
    timed, passes = results(card, operators.NAME), results(card, comparison.PASSES)
    profile, notes = operators.fitted(setting, timed)
    assert not notes
    measured = comparison.truth(passes)
    assert len(measured) == len(setting.predicted)
    sums = operators.composed_seconds(setting, timed, list(measured))
    return {
        "fitted profile": comparison.agreements(comparison.points(measured, lambda cell: predict_cell(profile, cell))),
        "sum of operators": comparison.agreements(comparison.points(measured, sums.get)),
    }


@pytest.mark.parametrize("card", CARDS)
def test_the_documented_errors_follow_from_the_files(card: str) -> None:
    page = documented()
    for source, rows in compared(on_gpu(f"nvidia-{card}"), card).items():
        assert [row.kind for row in rows] == list(comparison.KINDS)
        for row in rows:
            figures = page[source, row.kind][CARDS.index(card)]
            assert (row.median, row.p95, row.bias) == pytest.approx(figures, abs=ROUNDING), (source, row)
            assert row.met, (source, row)


@pytest.mark.parametrize("card", CARDS)
def test_the_documented_errors_of_the_tables_are_those_of_the_run(card: str) -> None:
    page, recorded = documented(), results(card, "silicon.json")
    assert len(recorded["siliconPoints"]) == 100
    for kind, row in recorded["silicon"].items():
        figures = page["NVIDIA's tables", kind][CARDS.index(card)]
        assert (row["median"], row["p95"], row["bias"]) == pytest.approx(figures, abs=ROUNDING / 5)


@pytest.mark.parametrize("card", CARDS)
def test_all_files_of_a_card_are_of_it_and_of_one_software(card: str) -> None:
    files = [results(card, name) for name in (operators.NAME, comparison.PASSES, comparison.NAME)]
    assert {found["gpu"] for found in files} == {f"nvidia-{card}"}
    assert len({(found["card"]["driver_version"], found["software"]["torch"]) for found in files}) == 1
    assert not files[0]["failed"]
    assert not files[1]["failed"]
