"""The helper that looks for secrets finds them in every disguise, and nothing else."""

import base64
import json
import urllib.parse

import pytest

from weft_router_tests.canary import CANARIES, assert_no_secrets


@pytest.mark.parametrize("word", CANARIES.values())
@pytest.mark.parametrize(
    "disguise",
    [
        str,
        str.upper,
        json.dumps,
        repr,
        urllib.parse.quote,
        urllib.parse.quote_plus,
        lambda word: word.encode().hex(),
        lambda word: word[::-1],
        *(lambda word, pad=pad: base64.b64encode(b"x" * pad + word.encode()).decode() for pad in range(3)),
    ],
)
def test_a_secret_is_found(word: str, disguise: "type[str]") -> None:
    with pytest.raises(AssertionError, match="leaks"):
        assert_no_secrets(f"before {disguise(word)} after")
    with pytest.raises(AssertionError, match="leaks"):
        assert_no_secrets(f"before {disguise(word)} after".encode())


def test_harmless_text_passes() -> None:
    assert_no_secrets('{"event": "request", "session": "0af7651916cd43dd8448eb211c80319c", "tenant": "acme"} canary')


def test_what_is_allowed_passes_and_nothing_else_does() -> None:
    for name, word in CANARIES.items():
        assert_no_secrets(word, allow=[name])
        for other in CANARIES.keys() - {name}:
            with pytest.raises(AssertionError, match=f"the {name} leaks"):
                assert_no_secrets(CANARIES[other] + word, allow=[other])
