"""The page of failure rules names modules and tests that exist, and every rule has both."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parents[1] / "docs" / "failure-rules.md").read_text()
ROWS = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in re.findall(r"^\| .*\|$", PAGE, re.MULTILINE)]
RULES = [row for row in ROWS if row[0] != "situation" and not row[0].startswith("---")]
NAMED = sorted(set(re.findall(r"`(test_\w+)::(test_\w+)`", PAGE)))


@cache
def defined_in(module: str) -> frozenset[str]:
    tree = ast.parse((TESTS / f"{module}.py").read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_rule_says_what_happens_where_it_lives_and_what_tests_it() -> None:
    assert len(RULES) > 60
    for rule in RULES:
        assert len(rule) == 4, rule
        assert all(rule), rule
        assert re.fullmatch(r"`test_\w+::test_\w+`(, `test_\w+::test_\w+`)*", rule[3]), rule
        assert re.fullmatch(r"`[\w.]+`(, `[\w.]+`)*", rule[2]), rule


@pytest.mark.parametrize(("module", "name"), NAMED)
def test_every_test_on_the_page_exists(module: str, name: str) -> None:
    assert name in defined_in(module)


@pytest.mark.parametrize("module", sorted({name for rule in RULES for name in re.findall(r"`([\w.]+)`", rule[2])}))
def test_every_module_on_the_page_exists(module: str) -> None:
    importlib.import_module("weft_router." + module)
