"""The pages of promises and of attackers name tests and make targets that exist, and no promise is without."""

import ast
import re
from functools import cache
from itertools import chain

import pytest

from weft_e2e.images.catalogue import repository_root

ROOT = repository_root()
PAGE = (ROOT / "docs/reliability.md").read_text()
THREATS = (ROOT / "docs/threat-model.md").read_text()
ROWS = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in re.findall(r"^\| .*\|$", PAGE, re.MULTILINE)]
PROMISES = [row for row in ROWS if re.match(r"[A-D]\d", row[0])]
PROPERTIES = {"A": 17, "B": 6, "C": 17, "D": 5}
TEST = re.compile(r"`(test_\w+)::(test_\w+)`")
TARGET = re.compile(r"`(?:\w+=\S+ )*make ([a-z0-9-]+)")


@cache
def defined() -> frozenset[tuple[str, str]]:
    """Return every test of the repository: the file's name and the function's."""
    files = chain.from_iterable((ROOT / part).rglob("test_*.py") for part in ("core", "planner", "router", "operator"))
    files = chain(files, (ROOT / "e2e").rglob("test_*.py"), (ROOT / "charts").rglob("test_*.py"))
    return frozenset(
        (path.stem, node.name)
        for path in files
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_property_is_there_once_with_promise_and_test() -> None:
    names = [row[0].split()[0] for row in PROMISES]
    assert names == [f"{area}{n}" for area, count in PROPERTIES.items() for n in range(1, count + 1)]
    for row in PROMISES:
        assert len(row) == 4, row
        assert all(row), row
        assert TEST.search(row[2]) or TARGET.search(row[2]), row


@pytest.mark.parametrize(("page", "least"), [(PAGE, 100), (THREATS, 35)], ids=["reliability", "threat-model"])
def test_every_test_and_target_on_the_page_exists(page: str, least: int) -> None:
    named = set(TEST.findall(page))
    assert len(named) > least
    assert named - defined() == set()
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(TARGET.findall(page)) - targets == set()


def test_what_stops_an_attacker_has_a_test() -> None:
    rows = [line.strip("|").split(" | ") for line in re.findall(r"^\| (?!attacker|---).*\|$", THREATS, re.MULTILINE)]
    for row in rows:
        assert len(row) == 4, row
        assert TEST.search(row[3]) or row[2].startswith(("**nothing here**", "nothing")), row


def test_files_that_are_to_be_run_exist() -> None:
    paths = re.findall(r"pytest (\S+\.py)", PAGE)
    assert len(paths) > 3
    assert [path for path in paths if not (ROOT / path).is_file()] == []
