"""What a finished round teaches: only prompts whose characters are its tokens, only answers that the client has."""

import logging
from array import array
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pytest

from weft_core.kv_tiers import t_load
from weft_core.policies.snapshot import PrefillTask
from weft_router.engines.adapter import EngineRequest
from weft_router.engines.handles import KvHandle
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import check_request
from weft_router.openai.prompt_history import history_of
from weft_router.openai.reply import Reply
from weft_router.openai.tokens import AnswerTokens, CharsPerToken
from weft_router.rounds.accounting import Accounting, meter_of
from weft_router.rounds.tier_savings import saved_seconds
from weft_router.sessions.round import Round
from weft_router.sessions.session import PrefixMatch
from weft_router.sessions.session_table import SessionTable
from weft_router.telemetry.metrics import Metrics
from weft_router.telemetry.sliding_window import SlidingWindow
from weft_router_tests.stack import MODEL, settings

HELLO = {"role": "user", "content": "hello " * 50}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SAID = "word"
HANDLE = {
    "remote_engine_id": "d0", "remote_request_id": "r", "remote_host": "h", "remote_port": 1, "tp_size": 1,
    "remote_block_ids": [[1]], "remote_num_tokens": 5,
}  # fmt: skip


class Blocks:
    """What events say of an engine with blocks of 16 tokens."""

    block_tokens = 16

    def served(self, _: object) -> None:
        """Take no prompt in."""


class Book:
    """The books of one decode worker with one session, ``s``."""

    def __init__(self, folder: Path) -> None:
        self.metrics = Metrics()
        self.settings = settings(folder, "decode", port=1, worker="d0")
        config = self.settings.config
        self.sessions = SessionTable(ttl_s=600)
        self.unusable: list[KvHandle] = []
        self.intake: list[int] = []
        self.ratio = CharsPerToken()
        self.accounting = Accounting(
            self.settings, sessions=self.sessions, itl=SlidingWindow(10), metrics=self.metrics,
            meter=meter_of(config, self.metrics), ratio=self.ratio, answers=AnswerTokens(),
            observed=lambda _, __: None, learned=lambda _, __: None, unusable=self.unusable.append,
            count_intake=self.intake.append, kv_cache=cast(Any, Blocks()),
        )  # fmt: skip

    def round(self, path: str, **fields: Any) -> Round:
        config = self.settings.config
        inference = check_request(path, {"model": MODEL, **fields}, RequestLimits(config.model, config.limits))
        return Round(
            id="weft-1", session="s", inference=inference, prompt_history=history_of(inference),
            prefix_match=PrefixMatch(PrefillTask(0, 10), later=False, continues=False), started=0.0,
            engine_request=EngineRequest(inference, "weft-1"), export=True,
        )  # fmt: skip

    def finish(self, rnd: Round, reply: Reply) -> None:
        self.accounting.finish(rnd, None, reply, tokens=2, clock=None)


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path)


def reply(*, diverged: bool = False, kind: Any = "chat") -> Reply:
    made = Reply(kind)
    made.text.append(SAID)
    made.prompt_tokens, made.completion_tokens, made.finish_reason = 10_000, 2, "stop"
    made.prompt_ids, made.output_ids = array("I", range(10)), array("I", [7, 8])
    made.handle = dict(HANDLE)
    made.diverged = diverged
    return made


def test_what_comes_into_the_engines_cache_is_counted(book: Book) -> None:
    rnd = book.round(CHAT, messages=[HELLO])
    book.finish(rnd, reply())
    rnd.prefix_match = PrefixMatch(PrefillTask(9_000, 1_000), later=True, continues=True)
    book.finish(rnd, reply())
    assert book.intake == [10_002, 1_002]


@pytest.mark.parametrize(
    ("expected", "cached", "outcome"),
    [(64, 64, "within-block"), (64, 80, "within-block"), (64, 48, "within-block"), (64, 96, "low"), (64, 0, "high")],
)
def test_a_prediction_of_cached_tokens_is_held_against_the_engine(
    book: Book, expected: int, cached: int, outcome: str
) -> None:
    rnd, answer = book.round(CHAT, messages=[HELLO]), reply()
    rnd.expected_cached, answer.cached_tokens = expected, cached
    book.finish(rnd, answer)
    assert book.metrics.kv_predictions.labels(outcome).value == 1
    assert (rnd.facts["expected_cached_tokens"], rnd.facts["cached_tokens"]) == (expected, cached)


@pytest.mark.parametrize("change", [{"expected_cached": None}, {"cached_here": True}], ids=["unknown", "put there"])
def test_what_events_did_not_say_is_no_prediction(book: Book, change: dict[str, Any]) -> None:
    rnd, answer = book.round(CHAT, messages=[HELLO]), reply()
    rnd.expected_cached, answer.cached_tokens = 64, 64
    for name, value in change.items():
        setattr(rnd, name, value)
    book.finish(rnd, answer)
    assert "expected_cached_tokens" not in rnd.facts
    assert book.metrics.kv_predictions.labels("within-block").value == 0


def saved(book: Book) -> dict[str, float]:
    return {tier: book.metrics.kv_saved.labels(tier).value for tier in ("cpu", "disk")}


@pytest.mark.parametrize(
    ("cached", "cpu", "disk"),
    [(9_000, 3_000, 2_000), (8_000, 3_000, 1_000), (6_000, 2_000, 0), (4_000, 0, 0), (0, 0, 0)],
    ids=["all", "part of the disk", "part of memory", "the GPU's", "nothing"],
)
def test_what_was_loaded_saves_its_prefill_less_the_load(book: Book, cached: int, cpu: int, disk: int) -> None:
    profile, speeds = book.settings.profile, book.settings.config.engine.tier_speeds()
    rnd, answer = book.round(CHAT, messages=[HELLO]), reply()
    below = {"cpu": 3_000, "disk": 2_000}
    rnd.prefix_match = PrefixMatch(PrefillTask(9_000, 1_000), later=True, continues=True).loaded(below)
    answer.cached_tokens = cached
    book.finish(rnd, answer)
    before = 4_000
    for tier, tokens in (("cpu", cpu), ("disk", disk)):
        computed_s = profile.t_pre(history=before, increment=tokens, degree=book.settings.degree) if tokens else 0.0
        load_s = t_load({tier: tokens}, profile.kv_bytes_per_token, speeds)
        assert saved(book)[tier] == pytest.approx(computed_s - load_s)
        assert (saved(book)[tier] > 0) == bool(tokens)
        before += tokens


def test_a_tier_that_is_slower_than_computing_saves_nothing() -> None:
    found = saved_seconds(
        {"cpu": 100, "remote": 50}, gpu=0, cached=150, computed_s=lambda _, n: n / 100, loaded_s=lambda _, n: n / 75
    )
    assert found == {"cpu": 0.0, "remote": 0.0}


CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
PARTS = [{"type": "text", "text": "look"}, IMAGE]


@pytest.mark.parametrize(
    ("path", "fields", "learns"),
    [
        (CHAT, {"messages": [HELLO]}, True),
        (CHAT, {"messages": [HELLO, {"role": "user", "content": PARTS[:1]}]}, True),
        (CHAT, {"messages": [HELLO, {"role": "user", "content": PARTS}]}, False),
        (TEXT, {"prompt": "hello " * 50}, True),
        (TEXT, {"prompt": [1, 2, 3]}, False),
        (RESPONSES, {"input": "hello " * 50}, True),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "look"}]}]}, True),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,x"}]}]}, False),
        (RESPONSES, {"input": [{"type": "function_call_output", "call_id": "c", "output": "4"}]}, True),
        (RESPONSES, {"input": [{"type": "function_call_output", "call_id": "c", "output": [IMAGE]}]}, False),
        (RESPONSES, {"input": "and then?", "previous_response_id": "resp_1"}, False),
    ],
)  # fmt: skip
def test_characters_per_token_are_learned_where_both_are_of_the_same_text(
    book: Book, path: str, fields: dict[str, Any], learns: bool
) -> None:
    before = book.ratio.ratio
    rnd = book.round(path, **fields)
    book.finish(rnd, reply(kind=rnd.inference.kind))
    assert (book.ratio.ratio < before) == learns


def test_an_answer_leaves_its_handle_and_its_tokens(book: Book, caplog: pytest.LogCaptureFixture) -> None:
    book.finish(book.round(CHAT, messages=[HELLO]), reply())
    held = book.sessions._sessions["s"]
    assert held.handle is not None
    assert held.tokens == 10_001
    assert not book.unusable
    assert not caplog.records


def test_an_answer_that_the_client_has_otherwise_leaves_its_prompt_alone(
    book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    rnd = book.round(CHAT, messages=[HELLO])
    with caplog.at_level(logging.WARNING):
        book.finish(rnd, reply(diverged=True))
    held = book.sessions._sessions["s"]
    assert (held.handle, held.tokens, held.prompt_history) == (None, 10_000, rnd.prompt_history)
    assert [handle.params["remote_request_id"] for handle in book.unusable] == ["r"]
    assert book.metrics.kv_handles.labels("history_changed").value == 1
    (said,) = caplog.records
    assert (said.getMessage(), said.__dict__["request_id"]) == ("first_token_diverged", "weft-1")
    assert SAID not in repr({name: value for name, value in said.__dict__.items() if name != "pathname"})

    told = [HELLO, {"role": "assistant", "content": "other words"}, {"role": "user", "content": "and?"}]
    following = book.round(CHAT, messages=told)
    prefix_match = book.sessions.begin("s", following.inference, following.prompt_history, book.ratio)
    assert (prefix_match.continues, prefix_match.task.history, prefix_match.handle) == (True, 10_000, None)


def test_of_several_answers_the_session_goes_on_from_none(book: Book) -> None:
    rnd = book.round(CHAT, messages=[HELLO], n=2)
    book.finish(rnd, reply())
    held = book.sessions._sessions["s"]
    assert (held.tokens, held.prompt_history) == (10_000, rnd.prompt_history)


def whole(book: Book, answer: Reply, *, first_in: float, predicted: bool = True) -> tuple[Round, float | None]:
    """Count an answer in one piece that took a second; return its round and its mean gap."""
    rnd = book.round(CHAT, messages=[HELLO])
    now = monotonic()
    rnd.started = now - 1.0
    clock = book.accounting.whole_answer(
        rnd, answer, first_at=now - 1.0 + first_in, sent=now - 1.0, predicted=predicted
    )
    return rnd, None if clock is None else clock.mean(answer.completion_tokens)


def test_the_gaps_of_an_answer_in_one_piece_share_the_time_after_its_first_token(book: Book) -> None:
    answer = reply()
    answer.completion_tokens, answer.prompt_tokens = 11, 10
    rnd, mean = whole(book, answer, first_in=0.4)
    assert mean == pytest.approx(0.06, rel=0.1)
    assert rnd.first_at == pytest.approx(rnd.started + 0.4)
    assert not rnd.first_seen
    assert "ttft" not in rnd.facts


def test_an_answer_that_ended_before_its_predicted_first_token_has_equal_shares(book: Book) -> None:
    answer = reply()
    answer.completion_tokens, answer.prompt_tokens = 10, 10
    _, mean = whole(book, answer, first_in=2.0)
    assert mean == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize(("prompt", "cached", "computed"), [(10, None, 10), (10, 8, 2), (30, None, 30), (5, 9, 10)])
def test_a_prediction_is_corrected_by_the_engines_counts(
    book: Book, prompt: int, cached: int | None, computed: int
) -> None:
    answer = reply()
    answer.completion_tokens, answer.prompt_tokens, answer.cached_tokens = 11, prompt, cached
    spared = (10 - computed) * 1e-4  # of the profile's seconds per token
    rnd, _ = whole(book, answer, first_in=0.4)
    assert rnd.first_at == pytest.approx(rnd.started + 0.4 - spared, abs=1e-6)
    rnd, _ = whole(book, answer, first_in=0.4, predicted=False)
    assert rnd.first_at == pytest.approx(rnd.started + 0.4, abs=1e-6)


def test_an_answer_of_one_token_is_its_own_first_token(book: Book) -> None:
    answer = reply()
    answer.completion_tokens = 1
    rnd, mean = whole(book, answer, first_in=0.1)
    assert (mean, rnd.first_seen) == (None, True)
    assert rnd.facts["ttft"] == pytest.approx(1.0, abs=0.2)


def test_without_a_count_nothing_is_recorded_of_its_times(book: Book) -> None:
    answer = reply()
    answer.completion_tokens = 0
    rnd, mean = whole(book, answer, first_in=0.1)
    assert (rnd.first_at, mean) == (None, None)
