"""The chain of what an engine saw: only an exact continuation extends it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_router.config import LimitsConfig, ModelConfig
from weft_router.openai import digest
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.identity import SessionIndex, derived_identity, explicit_identity, session_key
from weft_router.openai.inference import Inference, check_request
from weft_router.openai.prompt_history import extends, history_of, prefix_hashes, shared_share, with_reply

MODEL = ModelConfig.model_validate({"name": "m", "maxModelLen": 100_000})
LIMITS = LimitsConfig.model_validate({})
words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
turns = st.lists(words, min_size=1, max_size=4)


def chat(messages: list[dict[str, Any]], **fields: Any) -> Inference:
    return check_request(
        "/v1/chat/completions", {"model": "m", "messages": messages, **fields}, RequestLimits(MODEL, LIMITS)
    )


def text(prompt: object) -> Inference:
    return check_request("/v1/completions", {"model": "m", "prompt": prompt}, RequestLimits(MODEL, LIMITS))


def conversation(texts: list[str]) -> list[dict[str, Any]]:
    return [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]


@settings(max_examples=100)
@given(turns, words, words)
def test_the_next_round_extends_and_any_change_does_not(texts: list[str], reply: str, more: str) -> None:
    asked = chat(conversation(texts))
    own = history_of(asked)
    seen = with_reply(own, asked, {"role": "assistant", "content": reply})
    assert with_reply(own, asked, {"role": "assistant", "content": reply}) == seen == with_reply(own, asked, reply)
    history = [*conversation(texts), {"role": "assistant", "content": reply}]
    follow = chat([*history, {"role": "user", "content": more}])
    assert extends(follow, history_of(follow), seen)
    assert shared_share(history_of(follow), seen) == 1.0
    for i in range(len(history)):
        changed = [dict(message) for message in history]
        changed[i]["content"] += "!"
        edited = chat([*changed, {"role": "user", "content": more}])
        assert not extends(edited, history_of(edited), seen)
        assert shared_share(history_of(edited), seen) < 1.0
    same = chat(history)
    assert not extends(same, history_of(same), seen)


LONG_ONE = "word " * 2000


@pytest.mark.parametrize("fast", [True, False])
def test_long_texts_are_condensed_and_still_all_of_them_counts(monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    if not fast:
        monkeypatch.setattr(digest, "_mac", lambda _: None)
    asked = chat([{"role": "user", "content": LONG_ONE}])
    seen = with_reply(history_of(asked), asked, {"role": "assistant", "content": LONG_ONE})
    answered = {"role": "assistant", "content": LONG_ONE}
    same = chat([{"role": "user", "content": LONG_ONE}, answered, {"role": "user", "content": "x"}])
    assert extends(same, history_of(same), seen)
    for place in (0, 5_000, len(LONG_ONE) - 1):
        other = LONG_ONE[:place] + "\u00fc" + LONG_ONE[place + 1 :]
        changed = chat([{"role": "user", "content": other}, answered, {"role": "user", "content": "x"}])
        assert not extends(changed, history_of(changed), seen)
    prompt = text(LONG_ONE)
    told = with_reply(history_of(prompt), prompt, "a")
    assert extends(text(LONG_ONE + "ab"), history_of(text(LONG_ONE + "ab")), told)
    assert not extends(text(LONG_ONE + "bb"), history_of(text(LONG_ONE + "bb")), told)


def test_processes_with_the_same_secret_find_the_same_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest._Key, "value", b"0" * 16)
    asked = chat([{"role": "user", "content": LONG_ONE}])
    found = []
    for secret in (b"one", b"two", b"one"):
        digest.use_key(secret)
        found.append(prefix_hashes(history_of(asked))[-1])
    assert found[0] == found[2] != found[1]


def test_a_digest_in_place_of_a_text_is_another_message() -> None:
    raw = digest.condensed(LONG_ONE.encode())
    forged = chat([{"role": "user", "content": raw.decode("latin-1")}])
    real = chat([{"role": "user", "content": LONG_ONE}])
    assert history_of(forged).links != history_of(real).links


def test_what_templates_render_besides_messages_counts() -> None:
    user = {"role": "user", "content": "x"}
    asked = chat([user])
    seen = with_reply(history_of(asked), asked, {"role": "assistant", "content": "y"})
    messages = [user, {"role": "assistant", "content": "y"}, user]
    for fields in ({"tools": [{"type": "function"}]}, {"chat_template_kwargs": {"thinking": True}}):
        other = chat(messages, **fields)
        assert not extends(other, history_of(other), seen)
    same = chat(messages, temperature=0.5, seed=7)
    assert extends(same, history_of(same), seen)


@pytest.mark.parametrize(
    "echo",
    [
        {"role": "assistant", "content": None,
         "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "assistant", "content": "", "refusal": None,
         "tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]},
    ],
)  # fmt: skip
def test_clients_echo_tool_calls_in_their_own_ways(echo: dict[str, Any]) -> None:
    user = {"role": "user", "content": "x"}
    asked = chat([user])
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    seen = with_reply(history_of(asked), asked, {"role": "assistant", "content": "", "tool_calls": [call]})
    follow = chat([user, echo, {"role": "tool", "tool_call_id": "c", "content": "1"}])
    assert extends(follow, history_of(follow), seen)


@settings(max_examples=100)
@given(words, words, words)
def test_text_prompts_extend_by_their_characters(prompt: str, reply: str, more: str) -> None:
    asked = text(prompt)
    seen = with_reply(history_of(asked), asked, reply)
    follow = text(prompt + reply + more)
    assert extends(follow, history_of(follow), seen)
    for other in ("!" + prompt + reply + more, prompt + reply):
        not_follow = text(other)
        assert extends(not_follow, history_of(not_follow), seen) == (
            other.startswith(prompt + reply) and len(other) > len(prompt + reply)
        )


def test_id_prompts_extend_by_their_ids_and_never_mix_with_text() -> None:
    asked = text([1, 2])
    seen = with_reply(history_of(asked), asked, [3])
    assert extends(text([1, 2, 3, 4]), history_of(text([1, 2, 3, 4])), seen)
    assert not extends(text([1, 2, 9, 4]), history_of(text([1, 2, 9, 4])), seen)
    assert not extends(text("[1,2,3,4]"), history_of(text("[1,2,3,4]")), seen)
    mixed = with_reply(history_of(asked), asked, "x")
    assert not extends(text([1, 2, 3]), history_of(text([1, 2, 3])), mixed)


@settings(max_examples=50)
@given(turns, words, words)
def test_a_nameless_follow_up_finds_its_conversation(texts: list[str], reply: str, more: str) -> None:
    texts = texts[: len(texts) - (len(texts) + 1) % 2]
    known = SessionIndex(ttl_s=60)
    first = chat(conversation(texts))
    one = derived_identity("t", first, history_of(first), fresh="1")
    assert known.find(one.parents) is None
    known.put(one.prefix_hash, one.key)
    follow = chat([*conversation([*texts, reply, more])])
    two = derived_identity("t", follow, history_of(follow), fresh="2")
    assert known.find(two.parents) == one.key
    stranger = derived_identity("other", follow, history_of(follow), fresh="2")
    assert known.find(stranger.parents) is None
    again = derived_identity("t", first, history_of(first), fresh="3")
    assert known.find(again.parents) is None


def test_heads_are_bounded() -> None:
    known = SessionIndex(ttl_s=60, limit=2)
    for i in range(3):
        known.put(str(i), f"s{i}")
    assert known.find(("0",)) is None
    assert known.find(("9", "2")) == "s2"


def test_heads_are_forgotten_with_their_time() -> None:
    now = 0.0
    known = SessionIndex(ttl_s=60, clock=lambda: now)
    known.put("a", "s")
    now = 40.0
    known.put("b", "s")
    now = 61.0
    assert known.find(("a",)) is None
    assert known.find(("b", "a")) == "s"
    known.put("c", "s")
    assert len(known) == 2, "those at the front whose time is over are let go"


def test_named_sessions_take_the_header_first_and_stay_with_their_tenant() -> None:
    body: dict[str, object] = {"session_id": "b", "conversation_id": "c"}
    named = explicit_identity("t", {"x-session-id": "h"}, body)
    assert named is not None
    assert named.shown == "h"
    for field in ("session_id", "conversation_id", "previous_response_id", "prompt_cache_key"):
        found = explicit_identity("t", {}, {field: "same"})
        assert found is not None
        assert found.key == session_key("t", "id", "same")
    assert explicit_identity("t", {}, {"session_id": ""}) is None
    assert session_key("t", "id", "x") != session_key("u", "id", "x")
    assert session_key("a", "id", "b|x") != session_key("a|id", "b", "x")


def test_prefix_hashes_depend_on_all_before_them() -> None:
    one, two = (prefix_hashes(history_of(chat(conversation(texts)))) for texts in (["a", "b", "c"], ["z", "b", "c"]))
    assert one[0] == two[0]
    assert all(x != y for x, y in zip(one[1:], two[1:], strict=True))
