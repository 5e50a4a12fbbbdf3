"""What is seen of changes of roles on a cluster, and the table that ``make e2e-roles`` prints."""

from typing import Any

import pytest

from weft_e2e.checks.failed import CheckFailed
from weft_e2e.replay.client import SessionTranscript
from weft_e2e.replay.records import RoundRecord
from weft_e2e.role_switches import Row, table
from weft_e2e.scenarios.role_changes import RoleChange
from weft_e2e.scenarios.role_switches import RATIOS, SwitchResults, check_changes
from weft_e2e.scenarios.role_watch import RoleWatch


def pod(worker: str, role: str, **metadata: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{worker}-0", "labels": {"weft.dev/worker": worker, "weft.dev/role": role}, **metadata}
    }


def group(name: str, roles: dict[str, int], *rows: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"roles": roles, "workers": list(rows)}}


def test_a_change_lasts_from_the_pods_label_to_the_status_that_confirms_it() -> None:
    seen = RoleWatch()
    seen.take_pod(pod("w-0", "prefill"), 1.0)
    seen.take_group(group("g", {"prefill": 1}, {"name": "w-0", "role": "prefill"}), 1.0)
    assert (seen.changes, seen.confirmed) == ([], {"prefill": 1})
    seen.take_pod(pod("w-0", "decode"), 10.0)
    seen.take_pod(pod("w-0", "decode"), 10.5)
    seen.take_group(group("g", {"prefill": 1}, {"name": "w-0", "role": "prefill"}), 10.6)
    seen.take_group(group("g", {}, {"name": "w-0", "role": "decode", "switching": True}), 11.0)
    assert (seen.changes, seen.confirmed) == ([], {})
    seen.take_group(group("g", {"decode": 1}, {"name": "w-0", "role": "decode"}), 12.0)
    seen.take_group(group("g", {"decode": 1}, {"name": "w-0", "role": "decode"}), 13.0)
    assert seen.changes == [RoleChange("w-0", "prefill", "decode", 2.0)]
    seen.take_group(group("other", {"decode": 2}), 13.0)
    assert seen.confirmed == {"decode": 3}


def test_pods_that_are_no_workers_or_end_change_no_roles() -> None:
    seen = RoleWatch()
    for item in (
        {"metadata": {"name": "demo-abc", "labels": {"app.kubernetes.io/component": "coordinator"}}},
        {"metadata": {"name": "bare"}},
        pod("w-0", "prefill", deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("w-0", "decode"),
    ):
        seen.take_pod(item, 1.0)
    seen.take_group(group("g", {"decode": 1}, {"name": "w-0", "role": "decode"}), 2.0)
    assert seen.changes == []


def test_each_ratio_differs_from_the_one_before_in_one_worker() -> None:
    for before, after in zip((RATIOS[-1], *RATIOS[:-1]), RATIOS, strict=True):
        changed = [after.get(role, 0) - before.get(role, 0) for role in ("prefill", "decode", "both")]
        assert sorted(changed) == [-1, 0, 1], (before, after)


def results(*changes: RoleChange, moved: float = 1.0) -> SwitchResults:
    record = RoundRecord("s", 0, "first", 10, 4, 0.0, 1.0, "ok")
    return SwitchResults(changes, (record,), (SessionTranscript("s", [], [record]),), moved)


def test_changes_that_are_missing_or_late_or_move_nothing_are_found() -> None:
    at_once, handed = RoleChange("w", "prefill", "both", 1.0), RoleChange("w", "both", "prefill", 7.0)
    check_changes(results(at_once, handed), 2, timed=True)
    late = RoleChange("w", "prefill", "decode", 3.5)
    check_changes(results(late), 1, timed=False)
    for wrong, words in (
        (results(late), "w took 3.5 s from prefill to decode, 3 s at most"),
        (results(), "0 workers changed their role, 1 should have"),
        (results(handed, moved=0.0), "no session moved"),
    ):
        with pytest.raises(CheckFailed, match=words):
            check_changes(wrong, 1, timed=True)


def test_the_table_has_the_median_and_the_longest_of_both_directions() -> None:
    seen = results(
        RoleChange("w", "prefill", "both", 1.0), RoleChange("w", "prefill", "decode", 2.0),
        RoleChange("w", "both", "prefill", 4.0),
    )  # fmt: skip
    failed = RoundRecord("t", 0, "first", 10, 4, 0.0, 1.0, "stream_error")
    broken = SessionTranscript("t", [], [failed])
    row = Row("cluster", seen.changes, (*seen.records, failed), (*seen.transcripts, broken))
    assert table([row]).splitlines() == [
        "where    changes  to decode             to prefill            failed requests  lost sessions",
        "cluster  3        1.5 s, at most 2.0 s  4.0 s, at most 4.0 s  1 of 2           1 of 2",
    ]
