"""Write the mock engine's tokenizer for Hugging Face's libraries: ``python -m weft_mock.tokenizer_files FOLDER``.

Load tools count tokens with the model's tokenizer. Behind a mock engine this one counts as the engine does, and makes
prompts of exactly the length that was asked for. Text outside ASCII is the exception: a run of it is one unknown token.
"""

import json
import sys
from pathlib import Path
from typing import Any

import click

from weft_cli.running import run
from weft_mock.tokenizer import BOS, END_OF_TURN, SPLIT, VOCABULARY, text_of

UNKNOWN = 0
_SPECIAL = {UNKNOWN: "<unknown>", BOS: "<begin>", END_OF_TURN: "<end>"}
_CHARACTERS = 100_000
"""The longest run of letters that is cut; a longer one is one unknown token."""


def vocabulary() -> dict[str, int]:
    """Return the text of every id; what has none of its own, such as half a character, has a name that no text has."""
    return {_SPECIAL.get(id_) or text_of(id_) or f"<{id_}>": id_ for id_ in range(VOCABULARY)}


def tokenizer() -> dict[str, Any]:
    """Return the content of ``tokenizer.json``.

    WordPiece without a prefix for what continues a word is the engine's own rule: of each piece of text the longest
    known beginning, again and again.
    """
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": id_,
                "content": name,
                "special": True,
                **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
            }
            for id_, name in _SPECIAL.items()
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": SPLIT.pattern},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "WordPiece",
            "unk_token": _SPECIAL[UNKNOWN],
            "continuing_subword_prefix": "",
            "max_input_chars_per_word": _CHARACTERS,
            "vocab": vocabulary(),
        },
    }


def write_tokenizer(folder: Path) -> None:
    """Write the two files that ``AutoTokenizer.from_pretrained`` needs into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[BOS],
        "eos_token": _SPECIAL[END_OF_TURN],
        "unk_token": _SPECIAL[UNKNOWN],
        "model_max_length": 1_000_000,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def tokenizer_files(*, folder: Path) -> int:
    """Write the mock engine's tokenizer into FOLDER, for clients that count tokens with Hugging Face's libraries."""
    write_tokenizer(folder)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run as a program and return the exit status."""
    return run(tokenizer_files, arguments, prog="python -m weft_mock.tokenizer_files")


if __name__ == "__main__":
    sys.exit(main())
