"""The report: well-formed, self-contained, said in words too, and right about what it draws."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.prediction import Estimate
from weft_planner.report import plots
from weft_planner.report.bars import Bar, Bars
from weft_planner.report.bars import draw as draw_bars
from weft_planner.report.chart import Chart, Line, Marker, Threshold, draw
from weft_planner.report.facts import Facts, LayoutScore, LoadPoint, ReportTimeline, Sensitivity, SensitivityCell
from weft_planner.report.page import page
from weft_planner.report.scales import Scale, linear_ticks, log_ticks, plain
from weft_planner_tests.plans import MISSED, PLAN
from weft_planner_tests.requests import request

VOID = {"meta", "br", "line", "rect", "path"}


def around(value: float) -> Estimate:
    return Estimate(value, value * 0.9, value * 1.1)


def score(name: str, gpus: int, ttft: float, *, chosen: bool = False, runnable: bool = True) -> LayoutScore:
    return LayoutScore(name, "weft (ia)", chosen, runnable, True, gpus, 3.0 * gpus, around(1.2), ttft, 0.02, held=True)


LAYOUTS = [
    score("P4x2 D8x1", 16, 1.1, chosen=True),
    score("P8x1 D8x1", 16, 1.4),
    score("P4x1 D4x1", 8, 3.0),
    score("<script>", 12, 2.5, runnable=False),
]
FACTS = Facts(
    service="demo & <sons>",
    request=request(),
    plan=PLAN,
    version="1.2.3",
    load=[LoadPoint(r, around(r), around(r / 2), around(0.02 * r), Estimate(0.9, 0.8, 1.0)) for r in (0.4, 0.8, 1.6)]
    + [LoadPoint(2.4, Estimate(math.inf, 9.0, math.inf), around(9.0), around(0.06), Estimate(0.2, 0.1, 0.3))],
    layouts=LAYOUTS,
    timeline=ReportTimeline([0.0, 1.0, 2.0], [0, 3, 1], [4, 5, 6], [0.1, 0.2, 0.3]),
    sensitivity=Sensitivity(
        [0.5, 1.0], [1.0, 0.8], [[SensitivityCell("P4x2 D8x1", 1.0, 1.0)] * 2, [SensitivityCell("C8x2", 0.9, 0.7)] * 2]
    ),
    method=("Made by a test.",),
)


class Checker(HTMLParser):
    """Fail on a tag that is not closed in order; collect addresses and texts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "action", "data", "poster")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID, f"{tag} {attrs}"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parts() -> list[Facts]:
    bare = replace(FACTS, load=(), layouts=(), timeline=None, sensitivity=None, interrupted=True)
    return [FACTS, bare, replace(FACTS, plan=MISSED), replace(FACTS, layouts=LAYOUTS[:1], load=FACTS.load[:1])]


@pytest.mark.parametrize("facts", parts(), ids=["whole", "interrupted", "missed", "little"])
def test_the_page_is_well_formed_and_asks_nothing_of_the_network(facts: Facts) -> None:
    text = page(facts)
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert checker.addresses == []
    assert "<script" not in text
    assert "url(" not in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert "demo &amp; &lt;sons&gt;" in text
    assert len(text) < 300_000


def test_every_picture_is_well_formed_and_told_in_words() -> None:
    pictures = re.findall(r"<svg.*?</svg>", page(FACTS), flags=re.S)
    assert len(pictures) == 8
    names = set()
    for picture in pictures:
        root = ElementTree.fromstring(picture)  # noqa: S314  our own text
        space = "{http://www.w3.org/2000/svg}"
        title, words = root.find(f"{space}title"), root.find(f"{space}desc")
        assert title is not None
        assert words is not None
        assert title.text
        assert words.text
        assert len(words.text) > 30
        assert root.get("role") == "img"
        assert root.get("aria-labelledby") == f"{title.get('id')} {words.get('id')}"
        names.add(title.get("id"))
        width, height = (float(v) for v in (root.get("viewBox") or "").split()[2:])
        for dot in root.iter(f"{space}circle"):
            assert 0 <= float(dot.get("cx", "")) <= width
            assert 0 <= float(dot.get("cy", "")) <= height
    assert len(names) == len(pictures), "ids are unique on the page"


def test_the_page_says_what_a_manager_asks() -> None:
    text = page(FACTS)
    for words in (
        "P4x2 D8x1 on 16 GPUs holds the service levels at 0.8 sessions per second",
        "The smallest that would do is P4x1 D4x1 on 8 GPUs",
        "48.00",
        "stays the choice in 2 of 4 cases",
        "GPUs 20 % slower",
        "Made by a test.",
        "Weft 1.2.3",
    ):
        assert words in text, words
    assert "misses the service levels" in page(replace(FACTS, plan=MISSED))
    assert "24 GPUs would hold the SLO" in page(replace(FACTS, plan=MISSED))


def test_the_front_is_what_nothing_beats() -> None:
    front = [row.name for row in plots.pareto(LAYOUTS, 5.0, 0.05)]
    assert front == ["P4x1 D4x1", "<script>", "P4x2 D8x1"], "P8x1 D8x1 costs as much as the last and is no faster"


def test_the_words_of_a_curve_say_how_far_it_holds() -> None:
    assert "is within the SLO of 5 s up to 1.6 sessions per second" in plots.ttft_by_load(FACTS)


def test_values_beyond_the_scale_are_drawn_at_its_edge() -> None:
    chart = Chart(
        name="c",
        title="t",
        description="d",
        x_label="x",
        y_label="y",
        lines=[Line("l", [(0, 1), (1, 1e9), (2, math.inf), (3, 2)], 1, band=[(0, 0.5, 2), (1, 1, math.inf)])],
        spots=[Marker(1, math.inf, "nowhere", 1), Marker(1, 5, "here", 2)],
        thresholds=[Threshold("y", 10, "SLO"), Threshold("x", 2.9, "late")],
        y_most=50,
    )
    picture = draw(chart)
    assert "nowhere" not in picture
    assert "nan" not in picture
    assert "inf" not in picture
    ys = [float(y) for y in re.findall(r'cy="([-0-9.]+)"', picture)]
    assert min(ys) >= 0


def test_bars_show_what_is_unknown_as_unknown() -> None:
    picture = draw_bars(Bars("b", "t", "d", "x", [Bar("a", 2, 1, 3, 1), Bar("b", math.nan, 0, 0, 2)], needed=1.5))
    assert "unknown" in picture
    assert picture.count('class="whisker"') == 3


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_round_few_and_inside(low: float, span: float) -> None:
    ticks = linear_ticks(low, low + span)
    assert len(ticks) <= 7
    assert all(low - 1e-6 * span <= tick <= low + span * (1 + 1e-6) for tick in ticks)
    assert ticks == sorted(set(ticks))


@given(st.floats(1e-6, 1e6), st.floats(2, 1e6))
def test_logarithmic_ticks_are_inside(low: float, factor: float) -> None:
    assert all(low <= tick <= low * factor for tick in log_ticks(low, low * factor))


@given(st.floats(0.1, 10), st.booleans())
def test_a_scale_keeps_order_and_ends(value: float, log: bool) -> None:
    scale = Scale(0.1, 10, 300, 20, log=log)
    assert scale.at(0.1) == 300
    assert scale.at(10) == pytest.approx(20)
    assert 20 <= scale.at(value) <= 300
    assert scale.at(value * 0.5) >= scale.at(value)


def test_numbers_on_axes_are_short() -> None:
    assert [plain(v) for v in (0, 0.25, 12, 1500)] == ["0", "0.25", "12", "1,500"]
