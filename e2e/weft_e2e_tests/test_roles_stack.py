"""Roles as real processes on loopback: they change under load, and workers with both roles serve."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from weft_core.profile_json import profile_from_json
from weft_e2e.checks import check_no_failures
from weft_e2e.checks.failed import CheckFailed
from weft_e2e.checks.sessions import FOUR_ROUNDS
from weft_e2e.metrics import growth
from weft_e2e.replay.client import Deadlines, SessionTranscript, replay
from weft_e2e.replay.records import RoundRecord
from weft_e2e.replay.sessions import PlannedSession
from weft_e2e.scenarios.draining import costs
from weft_e2e.scenarios.role_changes import RoleChange, RoleResults, check_changes, run, times
from weft_e2e.stack import Stack, StackConfig, StackWorker, running
from weft_mock.tokenizer import filler


@pytest.mark.component
@pytest.mark.timeout(300)
def test_fifty_changes_of_roles_under_load_fail_no_request_and_lose_no_session(tmp_path: Path) -> None:
    seen = run(50, tmp_path, say=print)
    assert len(seen.changes) == 50
    assert times(seen.changes, hands_over=True)
    assert times(seen.changes, hands_over=False)[-1] <= 3.0


LAYOUTS = {
    "symmetric": (StackWorker("b-0", "both", 1), StackWorker("b-1", "both", 1)),
    "hybrid": (StackWorker("p-0", "prefill", 1), StackWorker("b-0", "both", 1), StackWorker("d-0", "decode", 1)),
}


@pytest.fixture(params=sorted(LAYOUTS))
def stack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    """Run a layout with workers of the role both."""
    config = StackConfig(
        profile=profile_from_json(costs(0.02)), workers=LAYOUTS[request.param], policy="always-remote",
        binding="round-robin", max_model_len=8192,
    )  # fmt: skip
    with running(config, tmp_path) as found:
        yield found


@pytest.mark.component
async def test_layouts_with_both_roles_serve_sessions_and_read_their_history(stack: Stack) -> None:
    before = stack.metrics_pages()
    sessions = [PlannedSession(f"s-{k}", 0.05 * k, FOUR_ROUNDS.rounds) for k in range(8)]

    result = await replay(sessions, stack.target, filler=filler, deadlines=Deadlines(replay_s=60))

    check_no_failures(result.records)
    decode = {worker.name for worker in stack.config.workers if worker.role != "prefill"}
    assert {record.worker for record in result.records} == decode
    assert {record.route for record in result.records if record.index} == {"remote"}
    grown = growth(before, stack.metrics_pages())
    assert grown.total("weft_router_history_tokens_total", kind="read") > 0
    both = [worker.name for worker in stack.config.workers if worker.role == "both"]
    for name in both:
        assert int(str(stack.ledger(name)["prefilled_tokens"])) > 0, "it prefills for the others' sessions"


def results(*changes: RoleChange, **fields: object) -> RoleResults:
    record = RoundRecord("s", 0, "first", 10, 4, 0.0, 1.0, "ok")
    given: dict[str, object] = {
        "changes": changes, "records": (record,), "transcripts": (SessionTranscript("s", [], [record]),), "moved": 1.0,
        "processes": frozenset(), **fields,
    }  # fmt: skip
    return RoleResults(**given)  # type: ignore[arg-type]


def test_a_change_that_takes_too_long_restarts_a_process_or_moves_nothing_is_found() -> None:
    at_once, handed = RoleChange("w", "prefill", "both", 1.0), RoleChange("w", "both", "prefill", 8.0)
    check_changes(results(at_once, handed))
    for wrong, words in (
        (results(RoleChange("w", "decode", "both", 3.1)), "w took 3.1 s from decode to both, 3 s at most"),
        (results(RoleChange("w", "decode", "prefill", 13.2)), "w took 13.2 s from decode to prefill"),
        (results(at_once, processes=frozenset({1})), "restarts none"),
        (results(handed, moved=0.0), "no session moved"),
    ):
        with pytest.raises(CheckFailed, match=words):
            check_changes(wrong)
