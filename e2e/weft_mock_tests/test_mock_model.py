from hypothesis import given, settings
from hypothesis import strategies as st

from weft_mock.model import START, answer, block_states, fold, generator
from weft_mock.tokenizer import ASSISTANT, BOS, END_OF_TURN, VOCABULARY, chat_ids, decode, filler

IDS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=120)


@settings(max_examples=100)
@given(IDS, IDS)
def test_folding_composes(a: list[int], b: list[int]) -> None:
    assert fold(fold(START, a), b) == fold(START, a + b)


@settings(max_examples=100)
@given(IDS, st.sampled_from([1, 4, 16]))
def test_block_states_are_the_states_at_block_ends(ids: list[int], size: int) -> None:
    states = block_states(ids, size)
    assert len(states) == len(ids) // size
    assert states == [fold(START, ids[: (k + 1) * size]) for k in range(len(states))]


@settings(max_examples=100)
@given(IDS, st.data())
def test_any_other_context_has_another_state(ids: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(ids) - 1))
    other = data.draw(st.integers(0, VOCABULARY - 1).filter(lambda t: t != ids[at]))
    assert fold(START, ids) != fold(START, [*ids[:at], other, *ids[at + 1 :]])
    assert fold(START, ids) != fold(START, ids[:at])


def chat(text: str) -> list[int]:
    return chat_ids([{"role": "user", "content": text}])


@settings(max_examples=60)
@given(st.text("abc ", max_size=30), st.integers(0, 30), st.integers(1, 60))
def test_an_answer_can_be_continued_from_any_cut(text: str, cut: int, held: int) -> None:
    prompt = chat(text)
    whole = answer(prompt, 60)
    cut = min(cut, len(whole) - 1)
    context = prompt + whole[:cut]
    assert answer(context, 60 - cut) == whole[cut:]
    held = min(held, len(context))
    words = generator(context, held=held, held_state=fold(START, context[:held]))
    assert [words.next(may_end=True) for _ in whole[cut:]] == whole[cut:]


def test_wrong_kv_gives_another_answer() -> None:
    prompt = chat(filler(100, 1))
    right, wrong = (
        [words.next(may_end=False) for _ in range(20)]
        for words in (
            generator(prompt, held=64, held_state=fold(START, prompt[:64])),
            generator(prompt, held=64, held_state=fold(START, prompt[1:65])),
        )
    )
    assert right == answer(prompt, 20, ignore_eos=True)
    assert right != wrong


def test_chat_answers_end_by_themselves_after_16_to_64_tokens() -> None:
    lengths = {len(answer(chat(filler(5, seed)), 1000)) for seed in range(200)}
    assert min(lengths) >= 16
    assert max(lengths) <= 64
    assert len(lengths) > 20
    assert answer(chat("x"), 1000)[-1] == END_OF_TURN


def test_limits_shape_the_answer() -> None:
    prompt = chat("hello")
    natural = answer(prompt, 1000)
    assert answer(prompt, 5) == natural[:5]
    assert len(answer(prompt, 200, ignore_eos=True)) == 200
    assert END_OF_TURN not in answer(prompt, 200, ignore_eos=True)
    longer = answer(prompt, 1000, min_tokens=100)
    assert len(longer) == 101
    assert longer[-1] == END_OF_TURN


def test_a_plain_prompt_is_continued_without_end() -> None:
    assert len(answer([BOS, 500, 501], 500)) == 500
    assert len(answer([ASSISTANT, END_OF_TURN], 500)) == 500


def test_answers_are_words_and_variants_differ() -> None:
    prompt = chat("hello")
    text = decode(answer(prompt, 10, ignore_eos=True))
    assert text.replace(" ", "").isalpha()
    assert len(text) == 39
    assert len({tuple(answer(prompt, 10, ignore_eos=True, variant=v)) for v in range(8)}) == 8
