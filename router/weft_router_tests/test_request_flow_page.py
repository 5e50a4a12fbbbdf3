"""The page and picture of a request's way name modules and classes that exist."""

import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PACKAGES = "auth|engines|http|limits|openai|roles|rounds|routing|sessions|state|telemetry|workers"
NAMES = re.compile(rf"\b((?:{PACKAGES})(?:\.[a-z_]+)+(?:\.[A-Za-z_]+)?)")


def names() -> list[str]:
    page = (DOCS / "request-flow.md").read_text()
    picture = (DOCS / "request-flow.svg").read_text()
    shown = re.findall(r'class="code[^>]*>([^<]+)<', picture) + re.findall(r"\(([^)]+)\)\.</text>", picture)
    found = [name for text in re.findall(r"`([^`]+)`", page) + shown for name in NAMES.findall(text)]
    return sorted(set(found))


def test_the_page_and_the_picture_name_much_of_the_way() -> None:
    assert len(names()) > 25


@pytest.mark.parametrize("name", names())
def test_every_name_exists(name: str) -> None:
    parts = name.split(".")
    try:
        importlib.import_module("weft_router." + name)
    except ModuleNotFoundError:
        module = importlib.import_module("weft_router." + ".".join(parts[:-1]))
        assert hasattr(module, parts[-1])
