"""Workers go while sessions are held: no request fails, no session is lost, and KV goes along."""

from pathlib import Path

import pytest

from weft_e2e.checks.drains import (
    check_drained,
    check_ends_early,
    check_fewer_recomputed,
    check_no_lost_sessions,
    check_sessions_moved,
)
from weft_e2e.checks.failed import CheckFailed
from weft_e2e.drains import OTHERS, compared, parts_of
from weft_e2e.leaving import Gone
from weft_e2e.replay.client import SessionTranscript
from weft_e2e.replay.records import RoundRecord
from weft_e2e.scenarios.draining import CHECKS, DrainScenario, run, scale_ins

FEW = DrainScenario("five scale-ins", scale_ins(5), CHECKS, streams=40, decode=3, step_s=0.25)


@pytest.mark.component
@pytest.mark.timeout(300)
def test_five_workers_go_and_no_session_is_lost(tmp_path: Path) -> None:
    seen = run(FEW, tmp_path, print)
    assert {one.worker[0] for one in seen.gone} == {"d", "p"}


def said(**fields: object) -> Gone:
    drain: dict[str, object] = {"seconds": 2.0, "forced": 0, "sessions_left": 0, "moved_by_handle": 1, **fields}
    return Gone("d-0", 3.0, drain, 100, killed=False)


def test_a_drain_that_was_not_one_is_found() -> None:
    check_drained([said(), said(seconds=9.5)], drain_s=8.0)
    for wrong in (said(seconds=18.5), Gone("d-0", 1.0, {}, 0, killed=False), Gone("d-0", 18.0, said().drain, 0, True)):
        with pytest.raises(CheckFailed):
            check_drained([said(), wrong], drain_s=8.0)


def test_drains_that_all_sit_out_their_time_are_found() -> None:
    check_ends_early([said(), said(seconds=8.0)], drain_s=8.0)
    with pytest.raises(CheckFailed, match="1 of 3"):
        check_ends_early([said(), said(seconds=8.0), said(seconds=8.1)], drain_s=8.0)


def test_sessions_that_left_their_kv_behind_are_found() -> None:
    check_sessions_moved([said(), said(moved_by_handle=0)], least=1)
    with pytest.raises(CheckFailed, match="1 sessions moved"):
        check_sessions_moved([said(), said(moved_by_handle=0)], least=2)
    check_fewer_recomputed(40, 100)
    with pytest.raises(CheckFailed):
        check_fewer_recomputed(51, 100)


def test_a_session_that_stopped_or_changed_its_words_is_lost() -> None:
    with pytest.raises(CheckFailed, match="0 of 0"):
        check_no_lost_sessions([])
    refused = RoundRecord("s", 0, "first", 10, 4, 0.0, 1.0, "refused", error="HTTP 503: draining")
    with pytest.raises(CheckFailed, match="1 of 1 sessions did not go on: s round 1 refused"):
        check_no_lost_sessions([SessionTranscript("s", [], [refused])])
    served = RoundRecord("s", 0, "first", 10, 4, 0.0, 1.0, "ok")
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "not what the model says"}]
    with pytest.raises(CheckFailed, match="the answer differs"):
        check_no_lost_sessions([SessionTranscript("s", talk, [served])])


def part(name: str, recomputed: int, *, requests: int = 1000, scale_ins: int = 10) -> dict[str, object]:
    return {"scenario": name, "recomputed_tokens": recomputed, "requests": requests, "scale_ins": scale_ins}


def test_ways_to_scale_in_are_compared_without_what_rounds_compute_anyway() -> None:
    calm = part("calm", 500, requests=500, scale_ins=0)
    ours = part("value", 2000)
    assert compared({"calm": calm, "value": ours, "ordinal": part("ordinal", 3000)}) == []
    wrong = compared({"calm": calm, "value": ours, "ordinal": part("ordinal", 2900), "sleep": part("sleep", 9000)})
    assert len(wrong) == 1
    assert "ordinal" in wrong[0]
    assert compared({"value": ours, "ordinal": part("ordinal", 2900)}) == [], "not measured, not compared"


def test_each_way_replaces_and_scales_in_the_same_workers_at_the_same_pace() -> None:
    parts = parts_of(whole_=5, beside_=6, streams=20, step_s=0.2)
    shapes = {name: [(e.named, e.within_s, e.rested) for e in parts[name].events] for name in ("value", *OTHERS)}
    assert len({tuple(shape) for shape in shapes.values()}) == 1
    assert [e.victims for e in parts["value"].events if not e.named] == ["value"] * 6
    assert {e.hook for e in parts["sleep"].events if not e.named} == {"sleep"}
