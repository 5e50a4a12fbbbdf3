"""The day of ``make bench-roles``: services that differ in one thing, how sessions are judged, and the page."""

from dataclasses import replace
from pathlib import Path

import pytest
from bench.roles.day import (
    ANSWERS,
    CONTENDERS,
    FIXED,
    PHASES,
    PROMPTS,
    RESTARTS,
    SWITCHES,
    Day,
    Session,
    judge,
    manifest,
    mean_traffic,
)
from bench.roles.page import ratio, write

from weft_e2e.replay.client import SessionTranscript
from weft_e2e.replay.records import RoundRecord
from weft_operator.api.service import DisaggInferenceServiceSpec


def spec_of(contender: str) -> DisaggInferenceServiceSpec:
    return DisaggInferenceServiceSpec.model_validate(manifest(contender, start_s=90, image="mock")["spec"])


def test_contenders_differ_in_fixed_roles_and_in_who_plans_again() -> None:
    modes = {one: spec_of(one).planning.mode for one in CONTENDERS}
    assert modes == {SWITCHES: "Auto", RESTARTS: "Auto", FIXED: "Off"}
    fixed = {one: [item.component for item in spec_of(one).pod_templates] for one in CONTENDERS}
    assert fixed == {SWITCHES: [None], RESTARTS: ["prefill", "decode"], FIXED: [None]}
    assert len({str(spec_of(one).capacity) for one in CONTENDERS}) == 1


def test_the_mean_of_the_day_weighs_sessions() -> None:
    mean = mean_traffic()
    assert mean.sessions_per_s == pytest.approx((PROMPTS.sessions_per_s + ANSWERS.sessions_per_s) / 2)
    for k in (0, 1):
        tokens = sorted(one.rounds[k].added_tokens for one in (PROMPTS, ANSWERS))
        assert tokens[0] < mean.rounds[k].added_tokens < sum(tokens) / 2, "more sessions come with short prompts"


def record(ttft_s: float, gaps: int, gap_s: float, *, ok: bool = True) -> RoundRecord:
    return RoundRecord(
        session="s", index=0, phase="first", added_tokens=1, decode_tokens=gaps + 1, sent_s=0.0, total_s=1.0,
        outcome="ok" if ok else "refused", ttft_s=ttft_s, gaps_s=(gap_s,) * gaps, completion_tokens=gaps + 1,
    )  # fmt: skip


def test_a_session_meets_the_slo_with_all_its_rounds_or_not() -> None:
    good, late, slow = record(1.0, 20, 0.03), record(17.0, 20, 0.03), record(1.0, 20, 0.06)
    failed = record(1.0, 20, 0.03, ok=False)
    cases = {
        "met": ([good] * 3, True),
        "a late first token": ([good, late, good], False),
        "gaps too long in the mean": ([slow] * 3, False),
        "one round of slow gaps": ([good, good, record(1.0, 5, 0.06)], True),
        "failed": ([good, failed], False),
        "not over": ([good, good], False),
    }
    transcripts = [SessionTranscript("s", records=list(rounds)) for rounds, _ in cases.values()]
    found = judge(transcripts, [0] * len(cases))
    assert {name: one.met for name, one in zip(cases, found, strict=True)} == {n: met for n, (_, met) in cases.items()}
    assert [one.failed for one in found] == [False] * 4 + [True, False]
    assert [one.error for one in found] == [""] * 4 + ["refused, status None", ""]
    assert [one.late for one in found] == [False, True, False, False, False, False]
    assert [one.stalled for one in found] == [False, False, True, False, False, False]


def test_the_page_says_why_sessions_failed(tmp_path: Path) -> None:
    errors = ["no answer after 120 s", "no answer after 119 s", "status 503", ""]
    sessions = tuple(Session(0, False, failed=bool(error), answered=0, error=error) for error in errors)
    days = [replace(day(SWITCHES, 90), sessions=sessions), day(RESTARTS, 45)]
    write(days, tmp_path / "RESULTS.md", machine="this one", start_s=90, aim=1.3)
    page = (tmp_path / "RESULTS.md").read_text()
    assert f"Failures with {SWITCHES}: no answer after N s (2); status N (1)." in page
    assert page.count("Failures with") == 1


def day(contender: str, met: int) -> Day:
    sessions = tuple(Session(phase % len(PHASES), phase < met, failed=False, answered=90) for phase in range(100))
    return Day(contender, ("P1x3 D1x1",) * len(PHASES), sessions, 60.0, 0)


def test_the_page_holds_role_switches_to_the_better_of_the_others(tmp_path: Path) -> None:
    days = [day(SWITCHES, 90), day(RESTARTS, 45), day(FIXED, 60)]
    assert ratio(days) == pytest.approx(1.5)
    assert ratio(days[1:]) != ratio(days[1:])
    found = write(days, tmp_path / "RESULTS.md", machine="this one", start_s=90, aim=1.3)
    page = (tmp_path / "RESULTS.md").read_text()
    assert "aim 1.3: 1.50 (met)" in found
    assert found.splitlines()[0] in page
    assert "90% of 100" in page
    assert ANSWERS.rounds[0].decode_tokens == 200
    assert "200 in an answer" in page
