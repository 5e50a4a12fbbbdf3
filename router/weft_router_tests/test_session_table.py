"""What a decode sidecar expects of a session's next round, and that a handle is offered once."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.snapshot import PrefillTask
from weft_router.config import LimitsConfig, ModelConfig
from weft_router.engines.handles import KvHandle
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import Inference, check_request
from weft_router.openai.prompt_history import history_of, with_reply
from weft_router.openai.tokens import CharsPerToken
from weft_router.sessions.session import CachedPrompt, PrefixMatch, recompute_reason
from weft_router.sessions.session_table import LESS, MAX_SESSIONS, SessionTable

MODEL = ModelConfig.model_validate({"name": "m", "maxModelLen": 100_000})
LIMITS = LimitsConfig.model_validate({})
FIRST = [{"role": "user", "content": "x" * 400}]
REPLY: dict[str, Any] = {"role": "assistant", "content": "y" * 40}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def chat(messages: list[dict[str, Any]]) -> Inference:
    return check_request("/v1/chat/completions", {"model": "m", "messages": messages}, RequestLimits(MODEL, LIMITS))


def handle(deadline: float = 1100.0) -> KvHandle:
    return KvHandle(params={}, tokens=100, deadline=deadline, digest=None)


def started(clock: Clock, kept: KvHandle | None, on_spare: Callable[[KvHandle], None] | None = None) -> SessionTable:
    """Return sessions after one round of session ``s``: 100 prompt tokens, 10 generated."""
    sessions = SessionTable(ttl_s=600, clock=clock, on_spare=on_spare)
    asked = chat(FIRST)
    seen = with_reply(history_of(asked), asked, REPLY)
    sessions.finish(
        "s", prompt_history=seen, tokens=110, chars=440, handle=kept, prefilled={"p0": CachedPrompt(100, clock.now)}
    )
    return sessions


def begin(sessions: SessionTable, messages: list[dict[str, Any]], key: str = "s") -> PrefixMatch:
    inference = chat(messages)
    return sessions.begin(key, inference, history_of(inference), CharsPerToken())


FOLLOW = [*FIRST, REPLY, {"role": "user", "content": "z" * 80}]


def test_an_unknown_session_has_no_history() -> None:
    sessions = SessionTable(ttl_s=600, clock=Clock())
    assert begin(sessions, FIRST) == PrefixMatch(PrefillTask(0, 100), later=False, continues=False)
    assert begin(sessions, FOLLOW) == PrefixMatch(PrefillTask(0, 130), later=True, continues=False)


def test_a_continuation_has_exact_history_an_estimated_increment_and_the_handle_once() -> None:
    clock = Clock()
    sessions = started(clock, handle())
    clock.now += 7
    prefix_match = begin(sessions, FOLLOW)
    assert prefix_match.task == PrefillTask(110, 20)
    assert prefix_match.handle == handle()
    assert (prefix_match.continues, prefix_match.gap_s, prefix_match.prefilled) == (
        True,
        7.0,
        {"p0": CachedPrompt(100, 1000.0)},
    )
    again = begin(sessions, FOLLOW)
    assert (again.handle, again.lost) == (None, None)


def test_each_prefill_worker_of_a_session_is_known_by_the_latest_prompt_that_it_had() -> None:
    clock = Clock()
    sessions = started(clock, None)
    seen = with_reply(history_of(chat(FIRST)), chat(FIRST), REPLY)
    known = []
    for number, worker in enumerate(["p1", "", "p0"], start=2):
        before = begin(sessions, FOLLOW).prefilled
        clock.now += 1
        sessions.finish(
            "s", prompt_history=seen, tokens=110, chars=440, handle=None, prefilled=before, prefilled_by=worker,
            prefilled_tokens=number * 100,
        )  # fmt: skip
        known.append(begin(sessions, FOLLOW).prefilled)
    p0, p1 = CachedPrompt(100, 1000.0), CachedPrompt(200, 1001.0)
    assert known == [{"p0": p0, "p1": p1}, {"p0": p0, "p1": p1}, {"p0": CachedPrompt(400, 1003.0), "p1": p1}]


def test_a_dead_handle_and_a_changed_history_say_what_was_lost() -> None:
    clock = Clock()
    late = begin(started(clock, handle(deadline=1000.0)), FOLLOW)
    assert (late.handle, late.lost, late.task) == (None, "expired", PrefillTask(110, 20))
    edited = [FIRST[0], {**REPLY, "content": "other"}, FOLLOW[2]]
    changed = begin(started(clock, handle()), edited)
    assert (changed.handle, changed.lost, changed.continues) == (None, "history_changed", False)
    assert changed.task.history == pytest.approx(99, abs=2)
    assert changed.task.history + changed.task.increment == round((400 + 5 + 80) / 4)


def test_idle_sessions_are_forgotten() -> None:
    clock = Clock()
    sessions = started(clock, handle())
    clock.now += 601
    assert begin(sessions, FOLLOW).task.history == 0
    sessions.expire()
    assert len(sessions) == 0


def test_the_ratio_follows_what_engines_report() -> None:
    ratio = CharsPerToken()
    assert ratio.estimate(400) == 100
    for _ in range(500):
        ratio.learn(300, 100)
    assert ratio.ratio == pytest.approx(3.0, abs=0.1)
    ratio.learn(5, 0)
    ratio.learn(0, 5)
    assert ratio.estimate(0) == 1


def test_whoever_ends_is_told_of_once_with_its_class_and_rounds() -> None:
    clock = Clock()
    ended: list[tuple[str, str, int, bool]] = []
    sessions = SessionTable(
        ttl_s=600, clock=clock, on_end=lambda key, s: ended.append((key, s.class_, s.rounds, s.handle is not None))
    )
    seen = history_of(chat(FIRST))
    for key in ("a", "b", "a"):
        sessions.finish(key, prompt_history=seen, tokens=1, chars=4, handle=handle(), prefilled={}, class_="gold")
    sessions.close("b")
    sessions.close("b")
    sessions.close("nobody")
    assert ended == [("b", "gold", 1, True)]
    clock.now += 601
    sessions.expire()
    assert ended[1:] == [("a", "gold", 2, True)]
    assert len(sessions) == 0


def test_the_handle_of_a_round_beside_another_is_told_of_and_one_not_used_is_kept() -> None:
    spare: list[KvHandle] = []
    first = handle()
    sessions = started(Clock(), first, spare.append)
    asked = chat(FIRST)
    seen = with_reply(history_of(asked), asked, REPLY)
    second = handle(1200.0)
    sessions.finish("s", prompt_history=seen, tokens=110, chars=440, handle=second, prefilled={})
    assert spare == [first]
    assert begin(sessions, FOLLOW).handle is second
    sessions.put_back("s", second)
    assert begin(sessions, FOLLOW).handle is second
    assert spare == [first]


def test_above_the_bound_the_oldest_go_some_at_a_time() -> None:
    clock, ended = Clock(), list[str]()
    sessions = SessionTable(ttl_s=600, clock=clock, on_end=lambda key, _: ended.append(key))
    seen = history_of(chat(FIRST))

    def finish(number: int) -> None:
        sessions.finish(f"s{number}", prompt_history=seen, tokens=1, chars=4, handle=None, prefilled={})

    for number in range(MAX_SESSIONS):
        finish(number)
    finish(0)
    assert (len(sessions), ended) == (MAX_SESSIONS, [])
    finish(MAX_SESSIONS)
    assert len(sessions) == sessions.tokens == MAX_SESSIONS - LESS
    assert ended == [f"s{number}" for number in range(1, LESS + 2)], "not the first, which was used since"
    finish(MAX_SESSIONS + 1)
    assert len(ended) == LESS + 1


@given(st.lists(st.tuples(st.sampled_from(["finish", "take", "hand", "look"]), st.integers(0, 4), st.integers(1, 9))))
def test_sessions_end_as_if_the_oldest_was_looked_at_each_second(steps: list[tuple[str, int, int]]) -> None:
    clock, ttl_s, ends = Clock(), 20, dict[str, float]()
    sessions = SessionTable(ttl_s=ttl_s, clock=clock)
    asked = history_of(chat(FIRST))
    for what, number, later in steps:
        key = f"s{number}"
        clock.now += later
        if what == "finish":
            ends.pop(key, None)
            ends[key] = clock.now + ttl_s
            sessions.finish(key, prompt_history=asked, tokens=1, chars=4, handle=None, prefilled={})
        elif what == "take" and (found := sessions.hand_over(key)) is not None:
            ends.pop(key)
            ends[key] = clock.now - 10 + ttl_s
            sessions.take_over(key, replace(found, ended_at=clock.now - 10))
        elif what == "hand":
            ends.pop(key, None)
            sessions.hand_over(key)
        else:
            sessions.expire()
        while what != "hand" and ends and clock.now > next(iter(ends.values())):
            ends.pop(next(iter(ends)))
        assert [session.ended_at + ttl_s for session in sessions.idle()] == list(ends.values())


TASK = PrefillTask(100, 20)
LOCAL = PrefixMatch(TASK, later=True, continues=True)


@pytest.mark.parametrize(
    ("match", "remote", "read", "reason"),
    [
        (LOCAL, False, False, "evicted"),
        (replace(LOCAL, lost="expired"), False, False, "evicted"),
        (replace(LOCAL, handle=handle()), True, True, "evicted"),
        (replace(LOCAL, handle=handle()), True, False, "not_read"),
        (LOCAL, True, False, "no_handle"),
        (replace(LOCAL, lost="expired"), True, False, "handle_expired"),
        (replace(LOCAL, lost="history_changed"), True, False, "history_changed"),
        (replace(LOCAL, task=PrefillTask(0, 120), forgone=100), False, False, "moved"),
        (replace(LOCAL, handle=handle(), away=True), True, True, "moved"),
    ],
)
def test_why_history_was_computed_again(match: PrefixMatch, remote: bool, read: bool, reason: str) -> None:
    assert recompute_reason(match, remote=remote, read=read) == reason
