"""The table and the page say what was measured, and nothing else."""

import base64
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from weft_core.plan import PlannedPolicy
from weft_core.prediction import LatencyQuantiles
from weft_core.slo import Reading
from weft_e2e.demo import page, table
from weft_e2e.demo.engines import EnginePace
from weft_e2e.demo.facts import bytes_words, limit_words, load_findings, seconds_words, share_words
from weft_e2e.demo.measures import summarise
from weft_e2e_tests.demo_samples import LOAD, PLAN, SLO, a_round, facts, many_rounds

VOID = {"meta", "img", "br", "link"}


class Outline(HTMLParser):
    """Collect the text, and fail on tags that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.pictures: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "img":
            assert values["alt"]
            self.pictures.append(values["src"] or "")
        self.links += [v for k, v in attrs if k in ("href", "src") and v and not v.startswith("data:")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)


@cache
def plain_page() -> str:
    """Draw the page of the plain facts once: its pictures take some seconds of processor time."""
    return page.render(facts())


def read(html: str) -> Outline:
    outline = Outline()
    outline.feed(html)
    outline.close()
    assert outline.open == []
    return outline


def test_the_page_stands_alone_and_its_pictures_are_well_formed() -> None:
    outline = read(plain_page())

    assert outline.links == []
    assert len(outline.pictures) == 5
    for source in outline.pictures:
        svg = base64.b64decode(source.removeprefix("data:image/svg+xml;base64,"))
        assert ElementTree.fromstring(svg).tag.endswith("svg")  # noqa: S314 - our own picture


def test_the_same_facts_give_the_same_page() -> None:
    assert page.render(facts()) == plain_page()


def test_table_and_page_hold_the_figures() -> None:
    made = facts()
    assert made.summary.ttft_all is not None
    shown = seconds_words(made.summary.ttft_all.p95)
    text = table.render(made)
    words = " ".join(read(plain_page()).text)

    for output in (text, words):
        assert shown in output
        assert "1.10 s" in output  # the plan's P95 of the TTFT
        assert "21.0 ms" in output
        assert share_words(made.summary.default_attained.met, made.summary.sessions) in output
        assert "every TTFT met and the session's mean inter-token gap met" in output
        assert "41.2 GB" in output
        assert "143,200" in output
        assert "pauses between rounds were scaled by 0.2" in output
        assert "the engine: it follows the cost profile in real time" in output


def test_a_simulated_plan_stands_beside_every_measurement_that_it_predicts() -> None:
    predicted = replace(
        PLAN.predicted,
        source="simulation",
        ttft=LatencyQuantiles(0.31, 1.1),
        ttft_first=LatencyQuantiles(0.72, 1.9),
        ttft_later=LatencyQuantiles(0.23, 0.81),
        itl=LatencyQuantiles(0.017, 0.021),
        readings={Reading().name: 0.943, Reading("round").name: 0.991},
    )
    policy = PlannedPolicy("weft", "ia", "moore-hodgson", "kv-headroom", chunked=False)
    shown = table.render(replace(facts(), plan=replace(PLAN, predicted=predicted, policy=policy)))
    rows = {line[:22].rstrip(): line[22:] for line in shown.splitlines()}

    assert rows["TTFT, first rounds"].split()[-4:] == ["720", "ms", "1.90", "s"]
    assert rows["TTFT, later rounds"].split()[-4:] == ["230", "ms", "810", "ms"]
    assert rows["TTFT, all rounds"].split()[-6:] == ["310", "ms", "1.10", "s", "400", "ms"]
    assert rows["ITL, mean of a round"].split()[-6:] == ["17.0", "ms", "21.0", "ms", "18.0", "ms"]
    assert ", plan 94.3 % (per session" in rows["SLO attainment"]
    assert "simulating policy weft/ia on the fitted workload" in shown
    text = " ".join(read(page.render(replace(facts(), plan=replace(PLAN, predicted=predicted, policy=policy)))).text)
    assert all(words in text for words in ("720 ms", "810 ms", "94.3 %", "99.1 %", "simulating policy weft/ia"))


def test_a_plan_that_was_not_simulated_says_so() -> None:
    shown = table.render(facts())
    assert "without a simulation" in shown
    assert ", plan " not in shown.split("SLO attainment")[1]


def test_failures_are_the_first_thing_said() -> None:
    records = (*many_rounds(4), a_round("bad", 0, outcome="truncated", error="no <end>", ttft_s=None, gaps_s=()))
    html = page.render(facts(records))
    outline = read(html)

    assert "1 of 15 rounds failed." in html or re.search(r"1 of \d+ rounds failed\.", html)
    assert "no <end>" in "".join(outline.text)
    assert "1 rounds FAILED" in table.render(facts(records))


def test_a_missed_slo_is_not_called_held() -> None:
    records = tuple(replace(r, ttft_s=3.0) for r in many_rounds(5))
    made = facts(records)

    html = page.render(made)

    assert "but the SLO was missed" in html
    assert "the SLO was held" not in html
    assert "class=over" in html


def test_what_was_not_measured_is_not_shown() -> None:
    record = a_round("s", 0, outcome="refused", status=503, error="no worker", ttft_s=None, gaps_s=(), route=None)
    made = facts((record,), kv=None)

    text = table.render(made)
    html = page.render(made)

    assert "KV moved              not measured" in text
    assert re.search(r"TTFT, all rounds +- +- +- ", text)
    assert "GB" not in " ".join(read(html).text)
    assert read(html).pictures


def test_a_plan_without_steady_state_is_said_to_be_unbounded() -> None:
    endless = replace(PLAN, predicted=replace(PLAN.predicted, ttft_p95_s=float("inf"), slo_met=False))

    made = facts(plan=endless)

    assert "unbounded" in table.render(made)
    assert "the plan expects a missed SLO" in table.render(made)
    assert "it expects the SLO to be missed" in page.render(made)


def test_a_busy_client_or_machine_or_late_engines_are_named_as_a_cause() -> None:
    busy = replace(LOAD, lag_p99_s=0.05, machine_busy_cores=1.95)

    late = EnginePace(lost_s=1.5, worst_step_s=0.2)
    findings = load_findings(busy, late)

    assert len(findings) == 3
    assert load_findings(LOAD, None) == ()
    assert all(f in table.render(facts(load=busy, pace=late)) for f in findings)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (seconds_words(0.0123), "12.3 ms"),
        (seconds_words(0.9996), "1.00 s"),
        (seconds_words(0.999), "999 ms"),
        (seconds_words(123.4), "123 s"),
        (limit_words(2.0), "2 s"),
        (limit_words(0.04), "40 ms"),
        (bytes_words(999), "999 B"),
        (bytes_words(2.5e9), "2.5 GB"),
        (share_words(1, 3), "1/3 = 33.3 %"),
        (share_words(0, 0), "0/0"),
    ],
)
def test_figures_read_well(words: str, text: str) -> None:
    assert words == text


def test_samples_are_summarised_under_their_slo() -> None:
    made = facts()

    assert made.summary == summarise(made.records, SLO)
