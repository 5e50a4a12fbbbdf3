"""The papers' page says what was left out, what one cell alone adds, and how sure each ratio is."""

import math
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benches are no package of the installation

from bench.paper.cells import CELLS, SETTINGS, Length
from bench.paper.goodputs import READINGS, Carried
from bench.paper.page import Results, write
from bench.paper.peers import CONTENDERS, PEERS, Row
from bench.paper.retention import CONTENDERS as RETENTION_CONTENDERS
from bench.paper.retention import RetentionRow
from bench.paper.svg import dots
from bench.paper.uplift import Score, scoring_tasks, spread


def score(cell: int, reading: str, *, ampd: float | None, planned: float) -> Score:
    def carried(rate: float | None) -> Carried | None:
        return None if rate is None else Carried(rate, (0.9 * rate, rate, 1.1 * rate))

    return Score(
        str(CELLS[cell]), SETTINGS[0].name, reading, carried(ampd), carried(2.0), carried(3.0), "imd 0.7",
        carried(planned), "P4x1 D4x1 imd",
    )  # fmt: skip


def test_the_page_says_what_carries_its_means(tmp_path: Path) -> None:
    scores = [
        one
        for reading in READINGS
        for one in (
            score(0, reading, ampd=1.0, planned=2.0),
            score(1, reading, ampd=1.0, planned=8.0),
            score(2, reading, ampd=None, planned=1.0),
        )
    ]
    write(Results(scores=scores), tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "4.00 (2.00 to 8.00), 1 left out, without its best cell 2.00 on mean ITL" in text
    assert "AMPD holds the goal nowhere: 2 of 6. In 2 of these" in text
    assert "3.00 ± 0.00" in text  # the same change with every seed
    assert "imd 0.7 / imd 0.7" in text
    assert "Below 1 with it: none" in text


def test_rules_are_measured_against_the_best_router_of_each_cell(tmp_path: Path) -> None:
    def row(cell: str, *, router: float | None, other: float) -> Row:
        carried = {name: Carried(1.0, (1.0,)) if router is not None else None for name in CONTENDERS}
        carried["power-of-two"] = None if router is None else Carried(router, (router,))
        return Row(cell, "P1x1 D1x1", {**carried, "weft, ia": Carried(other, (other,))})

    rows = [row("a", router=2.0, other=4.0), row("b", router=0.5, other=8.0), row("c", router=None, other=1.0)]
    assert [one.ratio("weft, ia") for one in rows] == [2.0, 8.0, math.inf]
    assert math.isnan(rows[2].ratio("ampd"))
    write(Results(peers=rows), tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "| weft, ia | 4.00 (2.00 to 8.00), 1 left out |" in text
    assert re.search(r"^\| a \|.* \| power-of-two \|$", text, re.MULTILINE)
    assert re.search(rf"^\| b \|.* \| {PEERS[0]} \|$", text, re.MULTILINE)


def test_retention_is_compared_with_vllm_at_every_size_of_memory(tmp_path: Path) -> None:
    def row(share: float, **rates: float) -> RetentionRow:
        carried = {name: Carried(1.0, (1.0,)) for name in RETENTION_CONTENDERS}
        return RetentionRow("a", share, {**carried, **{name: Carried(rate, (rate,)) for name, rate in rates.items()}})

    write(Results(retention=[row(1.0), row(0.25, Continuum=1.5)]), tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "| Continuum | 1.00 (1.00 to 1.00) | 1.50 (1.50 to 1.50) |" in text
    assert "| a | 25% | 1.00 | 1.50 | 1.00 | 1.00 |" in text


def test_no_dot_lies_at_the_edge_because_its_value_is_beyond_the_axis() -> None:
    drawn = dots("goodput", {"a cell": {"weft": 9.64, "ampd": 0.3}}, ticks=(0.5, 1, 8), unit="times AMPD")
    places = {
        hint: float(place)
        for place, hint in re.findall(r'<circle[^>]* cx="([0-9.]+)"[^>]*>\s*<title>([^<]*)</title>', drawn)
    }
    edges = [float(place) for place in re.findall(r'<line[^>]* x1="([0-9.]+)"', drawn)]
    assert min(edges) < places["ampd: 0.3"] < places["weft: 9.64"] < max(edges)
    assert ">16<" in drawn
    assert ">0.25<" in drawn


def test_ratios_to_nothing_are_counted_and_not_averaged() -> None:
    found = spread([2.0, 8.0, math.inf, math.nan])
    assert (found.mean, found.least, found.most, found.left_out) == (4.0, 2.0, 8.0, 2)
    assert spread([2.0, 0.0]).mean == 0.0
    assert math.isnan(spread([math.nan]).mean)


def test_settings_of_equal_costs_share_one_choice_and_only_the_first_is_planned_for() -> None:
    main, others = Length(2, 2, (1, 2)), Length(1, 1, (1,))
    found = scoring_tasks(CELLS[:2], SETTINGS, main=main, others=others, plan_too=True)
    each = [setting.name for task in found if task.cell == CELLS[0] for setting in task.settings]
    assert sorted(each) == sorted(setting.name for setting in SETTINGS)
    assert len(found) == 2 * len({setting.efficiency for setting in SETTINGS})
    assert all(len({setting.efficiency for setting in task.settings}) == 1 for task in found)
    assert [task.plan_too for task in found] == [SETTINGS[0] in task.settings for task in found]
    for task in found:
        assert task.lengths == tuple(main if one is SETTINGS[0] else others for one in task.settings)
