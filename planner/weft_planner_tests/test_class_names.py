"""No two public classes of the core, the planner and the command line share a name: one word, one meaning."""

import ast
from collections import defaultdict
from pathlib import Path

import weft_cli
import weft_core
import weft_planner


def test_a_class_name_stands_for_one_class() -> None:
    defined = defaultdict(set)
    for package in (weft_core, weft_planner, weft_cli):
        for path in Path(str(package.__file__)).parent.rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    defined[node.name].add(path.name)
    assert {name: files for name, files in defined.items() if len(files) > 1} == {}
