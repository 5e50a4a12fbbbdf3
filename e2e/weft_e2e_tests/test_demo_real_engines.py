"""What the demo with real engines says of a conversation."""

from typing import Any

from weft_e2e.demo.real_engines import RoundTrace, problems, table
from weft_e2e.engines.counters import Sources
from weft_e2e.replay.records import RoundRecord


def heard(index: int, prefill: Sources, **seen: Any) -> RoundTrace:
    record: dict[str, Any] = {
        "session": "s", "index": index, "phase": "later" if index else "first", "added_tokens": 180,
        "decode_tokens": 3, "sent_s": 0.0, "total_s": 1.0, "outcome": "ok", "ttft_s": 0.0944, "gaps_s": (0.008, 0.01),
        "prompt_tokens": 1047, "route": "remote",
    }  # fmt: skip
    return RoundTrace(RoundRecord(**record | seen), {"prefill": prefill, "decode": Sources(0, 0, 279)})


def test_a_row_has_route_times_and_where_the_prompt_came_from() -> None:
    head, row = table([heard(1, Sources(computed=185, cached=640, read=1222))])
    assert len(head) == len(row)
    assert row.split() == ["2", "prefill", "worker", "1,047", "94", "ms", "9.0", "ms", "1,222,", "640,", "185", "279"]


def test_a_round_that_failed_is_told_and_has_no_times() -> None:
    failed = heard(0, Sources(0, 0, 0), outcome="refused", error="HTTP 503: no worker", ttft_s=None, gaps_s=(),
                   route=None, prompt_tokens=None)  # fmt: skip
    assert "HTTP 503: no worker" in table([failed])[1]
    assert problems([failed]) == ("round 1: HTTP 503: no worker",)


def test_history_that_nobody_read_is_a_problem_of_later_remote_rounds_only() -> None:
    nothing = Sources(computed=700, cached=0, read=0)
    assert problems([heard(0, nothing), heard(1, nothing, route="local"), heard(1, Sources(185, 640, 222))]) == ()
    (found,) = problems([heard(2, nothing)])
    assert found == "round 3 was prefilled on the prefill worker, which read no history"
