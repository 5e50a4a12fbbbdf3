"""The glossary and CONTRIBUTING's table "Where is what" name modules, functions and classes that exist."""

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULE = re.compile(r"`(weft_\w+(?:\.\w+)*)`")
TOPICS = {
    "queue order", "condition reasons", "engine flags", "heartbeats", "drift", "failover of a stream",
    "scale-down victim", "work queue", "exponential backoff", "leader election", "event recorder",
    "canary analysis", "rollback", "connection pool", "admission", "rate limits", "MILP objective",
    "discrete-event loop", "KV handles",
}  # fmt: skip


def rows(page: str, part: str) -> list[list[str]]:
    """Return the cells of the tables in one part of a page, without their heads."""
    text = (ROOT / page).read_text().partition(part)[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines if not line.startswith("---")][1:]


def places() -> list[tuple[str, str]]:
    """Return every module of the table with a name in it: the first name with the first module, and so on."""
    found: list[tuple[str, str]] = []
    for _, modules, names in rows("CONTRIBUTING.md", "## Where is what"):
        where = MODULE.findall(modules)
        what = re.findall(r"`([\w.]+)`", names)
        assert len(where) in {1, len(what)}, modules
        found += [(where[min(at, len(where) - 1)], name) for at, name in enumerate(what)]
    return found


def glossary_modules() -> list[str]:
    return sorted(set(MODULE.findall((ROOT / "docs/glossary.md").read_text())))


@pytest.mark.parametrize(("module", "name"), places())
def test_every_function_in_the_table_exists(module: str, name: str) -> None:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)


def test_the_table_has_every_topic_that_newcomers_look_for() -> None:
    told = "\n".join(row[0] for row in rows("CONTRIBUTING.md", "## Where is what"))
    assert {topic for topic in TOPICS if topic not in told} == set()


@pytest.mark.parametrize("name", glossary_modules())
def test_every_module_in_the_glossary_exists(name: str) -> None:
    assert importlib.util.find_spec(name) is not None


def test_every_term_in_the_glossary_has_a_meaning_and_a_place() -> None:
    lines = re.findall(r"^\| (.*) \|$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    terms = [line.split(" | ") for line in lines if not line.startswith(("---", "term |"))]
    assert len(terms) > 60
    for cells in terms:
        assert len(cells) == 3, cells
        assert all(cell.strip() for cell in cells), cells
        assert MODULE.search(cells[2]), cells
