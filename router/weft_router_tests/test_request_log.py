"""The request log: one line a round with what the planner needs, rotated, and never a word of the conversation."""

import logging
from pathlib import Path
from typing import Any

import orjson
import pytest

from weft_core.policies.snapshot import PrefillTask
from weft_planner.traces.reading import read_trace
from weft_router.config import LimitsConfig, ModelConfig, RequestLogConfig
from weft_router.engines.adapter import EngineRequest
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import check_request
from weft_router.openai.prompt_history import history_of
from weft_router.rounds.request_log import RequestLog
from weft_router.sessions.round import Round
from weft_router.sessions.session import PrefixMatch
from weft_router_tests.stack import Stack, router_json

MODEL = ModelConfig.model_validate({"name": "m", "maxModelLen": 1000})


def config(**fields: object) -> RequestLogConfig:
    return RequestLogConfig.model_validate(fields)


def read(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.component
@pytest.mark.parametrize("stream", [True, False])
async def test_each_round_is_a_line_that_the_planner_reads(stack: Stack, tmp_path: Path, stream: bool) -> None:
    path = tmp_path / "rounds.jsonl"
    stack.config = {**router_json(), "requestLog": {"to": str(path)}}
    await stack.up()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "a secret question " * 30}]
    for k in range(3):
        answer = await stack.chat(messages, session="s", stream=stream)
        assert answer.status == 200
        messages = [*messages, {"role": "assistant", "content": answer.text}, {"role": "user", "content": f"and {k}"}]
    await stack.close()

    rows = read(path)
    assert [(row["event"], row["round"], row["outcome"]) for row in rows] == [("round", k, "ok") for k in range(3)]
    assert all(row["prompt_tokens"] == row["history_tokens"] + row["increment_tokens"] for row in rows)
    assert rows[0]["history_tokens"] == 0
    assert rows[1]["history_tokens"] > 0
    assert all((row["ttft_seconds"] is not None) == stream for row in rows)
    assert {row["worker"] for row in rows} == {"d0"}
    assert "secret" not in path.read_text()
    trace = read_trace(path)
    assert trace.form == "request-log"
    (session,) = trace.sessions
    assert [r.decode_tokens for r in session.rounds] == [row["decode_tokens"] for row in rows]
    assert all(r.gap_s is not None and r.gap_s >= 0 for r in session.rounds)


def write(log: RequestLog, **facts: object) -> None:
    """Write a round that began at 10 s, had its first token at 11 s, and ended at 13 s."""
    inference = check_request(
        "/v1/completions", {"model": "m", "prompt": "hello"}, RequestLimits(MODEL, LimitsConfig())
    )
    rnd = Round(
        id="weft-1", session="s", inference=inference, prompt_history=history_of(inference),
        prefix_match=PrefixMatch(PrefillTask(0, 10), later=False, continues=False), started=10.0, first_at=11.0,
        engine_request=EngineRequest(inference, "weft-1"), export=False,
        facts={"prompt_tokens": 100, "completion_tokens": 5, "history": 100, **facts},
    )  # fmt: skip
    log.write(rnd, now=13.0)


def test_times_lengths_and_failures(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    log = RequestLog(config(to=str(path)), worker="d0")
    write(log)
    write(log, completion_tokens=None)
    log.close()
    first, failed = read(path)
    assert (first["history_tokens"], first["increment_tokens"]) == (99, 1)  # at least one token is always new
    assert (first["ttft_seconds"], first["itl_seconds"], first["seconds"]) == (1.0, 0.5, 3.0)
    assert (failed["outcome"], failed["itl_seconds"]) == ("failed", None)


def test_files_are_rotated_and_the_oldest_removed(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    log = RequestLog(config(to=str(path), maxBytes=2**16, files=2), worker="d0")
    for k in range(1000):
        write(log, prompt_tokens=1000 + k)
    log.close()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["rounds.jsonl", "rounds.jsonl.1"]
    assert all(item.stat().st_size <= 2**16 for item in tmp_path.iterdir())
    kept = [row["prompt_tokens"] for name in ("rounds.jsonl.1", "rounds.jsonl") for row in read(tmp_path / name)]
    assert kept == list(range(kept[0], 2000))


def test_standard_output_and_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    log = RequestLog(config(to="stdout"), worker="d0")
    write(log)
    log.close()
    assert orjson.loads(capfd.readouterr().out)["event"] == "round"
    silent = RequestLog(config(), worker="d0")
    write(silent)
    silent.close()
    assert capfd.readouterr().out == ""


def test_lines_that_cannot_be_written_are_counted_in_the_processes_own_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = RequestLog(config(to=str(tmp_path / "no" / "rounds.jsonl")), worker="d0")
    with caplog.at_level(logging.ERROR):
        write(log)
        write(log)
        log.close()
    assert [record.getMessage() for record in caplog.records] == ["request_log_not_written"]
    assert "No such file" in str(caplog.records[0].__dict__["error"])


@pytest.mark.parametrize("fields", [{"to": "file"}, {"to": "stdout", "maxBytes": 1}, {"to": "off", "files": 0}])
def test_a_target_that_makes_no_sense_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"to|maxBytes|files"):
        config(**fields)
