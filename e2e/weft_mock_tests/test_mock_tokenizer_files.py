"""The tokenizer for load tools has the mock engine's rules; `make test-load-tools` holds their library to them."""

import json
import re
from pathlib import Path

import pytest

from weft_mock.tokenizer import VOCABULARY, decode, encode
from weft_mock.tokenizer_files import main, tokenizer, vocabulary

TEXTS = (
    "the scheduler moves the history of each session between the workers, 24 of them\n\n  at a time (or 25).",
    "".join(map(chr, range(128))),
    " \t x  y\n",
    "bab dod fuf",
)


def by_its_rules(text: str) -> list[int]:
    """Cut a text as the library does by what is written: pieces, and of each the longest known beginning."""
    made = tokenizer()
    known, ids = made["model"]["vocab"], []
    for piece in re.findall(made["pre_tokenizer"]["pattern"]["Regex"], text):
        at = 0
        while at < len(piece):
            end = next(end for end in range(len(piece), at, -1) if piece[at:end] in known)
            ids.append(known[piece[at:end]])
            at = end
    return ids


@pytest.mark.parametrize("text", TEXTS)
def test_it_cuts_as_the_engine_does(text: str) -> None:
    assert by_its_rules(text) == encode(text)


def test_every_id_has_a_text_of_its_own() -> None:
    texts = vocabulary()

    assert sorted(texts.values()) == list(range(VOCABULARY))
    ordinary = [
        id_ for text, id_ in texts.items() if not (text.startswith("<") and text.endswith(">") and len(text) > 2)
    ]
    assert all(decode([id_]) for id_ in ordinary)


def test_the_files_are_written_where_they_are_wanted(tmp_path: Path) -> None:
    assert main([str(tmp_path / "new/tokenizer")]) == 0

    settings = json.loads((tmp_path / "new/tokenizer/tokenizer_config.json").read_text())
    content = json.loads((tmp_path / "new/tokenizer/tokenizer.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    names = [token["content"] for token in content["added_tokens"]]
    assert {settings["bos_token"], settings["eos_token"], settings["unk_token"]} == set(names)
    assert len(content["model"]["vocab"]) == VOCABULARY
