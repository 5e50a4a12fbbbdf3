import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_mock.model import answer
from weft_mock.tokenizer import (
    ASSISTANT,
    BOS,
    END_OF_TURN,
    VOCABULARY,
    ChatError,
    UnknownTokenError,
    chat_ids,
    check_ids,
    completion_ids,
    decode,
    encode,
    filler,
    id_bytes,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@settings(max_examples=150)
@given(TEXT)
def test_decoding_what_was_encoded_gives_the_text(text: str) -> None:
    ids = encode(text)
    assert decode(ids) == text
    check_ids(ids)


@pytest.mark.parametrize(
    "text", ["", " ", "  a", "a  b\n\n c", "\x00\x7f", "naïve 日本語 🙂", "<|im_end|> [BOS]", "A1 b22  .. ,x"]
)
def test_odd_texts_survive(text: str) -> None:
    assert decode(encode(text)) == text


def test_text_never_becomes_a_special_token() -> None:
    assert min(encode("".join(map(chr, range(0x300))))) >= 16


def test_english_takes_about_three_characters_a_token() -> None:
    text = "the scheduler moves the history of each session between the workers " * 20
    assert 2.5 < len(text) / len(encode(text)) < 4.5


@settings(max_examples=60)
@given(st.lists(TEXT, min_size=1, max_size=4), st.integers(1, 80))
def test_an_answer_sent_back_is_cut_into_the_ids_that_were_generated(contents: list[str], n: int) -> None:
    messages: list[dict[str, object]] = [{"role": "user", "content": c} for c in contents]
    prompt = chat_ids(messages)
    made = answer(prompt, n)
    said: list[dict[str, object]] = [
        *messages,
        {"role": "assistant", "content": decode(made)},
        {"role": "user", "content": "more"},
    ]
    following = chat_ids(said)
    words = made[:-1] if made[-1] == END_OF_TURN else made
    assert following[: len(prompt) + len(words) + 1] == [*prompt, *words, END_OF_TURN]


@pytest.mark.parametrize("n", [0, 1, 2, 17, 1000])
def test_filler_has_exactly_the_tokens_asked_for(n: int) -> None:
    assert len(encode(filler(n, 7))) == n
    assert filler(n, 7) == filler(n, 7)
    before = chat_ids([{"role": "user", "content": ""}])
    assert len(chat_ids([{"role": "user", "content": filler(n, 3)}])) == len(before) + n


def test_filler_differs_by_seed() -> None:
    assert len({filler(20, seed) for seed in range(50)}) == 50


def test_chat_template() -> None:
    ids = chat_ids([{"role": "system", "content": "be"}, {"role": "user", "content": None}])
    assert ids == [BOS, 3, *encode("be"), END_OF_TURN, 4, END_OF_TURN, ASSISTANT]
    assert completion_ids("x") == [BOS, *encode("x")]


def test_chat_takes_tools_tool_calls_and_text_parts() -> None:
    plain: list[dict[str, object]] = [{"role": "user", "content": "hi"}]
    parts: list[dict[str, object]] = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert chat_ids(plain) == chat_ids(parts)
    assert len(chat_ids(plain, tools=[{"type": "function"}])) > len(chat_ids(plain))
    calls: list[dict[str, object]] = [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]
    assert len(chat_ids(calls)) > len(chat_ids([{"role": "assistant", "content": None}]))


def test_the_final_message_can_be_continued() -> None:
    ids = chat_ids([{"role": "assistant", "content": "bak"}], continue_final_message=True)
    assert ids == [BOS, ASSISTANT, *encode("bak")]


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([{"role": "king", "content": "x"}], "messages[0].role"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
    ],
)
def test_messages_that_cannot_be_rendered_are_named(messages: list[dict[str, object]], field: str) -> None:
    with pytest.raises(ChatError, match=field.replace("[", r"\[").replace("]", r"\]")):
        chat_ids(messages)


@pytest.mark.parametrize("ids", [[-1], [VOCABULARY], [5, 10**9]])
def test_ids_outside_the_vocabulary_are_refused(ids: list[int]) -> None:
    with pytest.raises(UnknownTokenError):
        check_ids(ids)


def test_ids_are_read_as_big_endian_numbers() -> None:
    assert id_bytes([1, 258]) == b"\0\0\0\1\0\0\1\2"


def test_long_texts_are_remembered_without_being_changed() -> None:
    text = filler(500, 5)
    first = encode(text)
    kept = list(first)
    first.append(7)
    assert encode(text) == kept
    for seed in range(1200):
        encode(filler(500, seed))
    assert encode(text) == kept
