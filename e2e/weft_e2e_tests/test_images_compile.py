"""What is compiled of the router, and how its sources are rewritten for that; `make test-compiled` runs the outcome."""

import ast
import dataclasses
import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest

from weft_e2e.images.catalogue import repository_root


@pytest.fixture(scope="module")
def compiling() -> ModuleType:
    spec = importlib.util.spec_from_file_location("weft_compiling", repository_root() / "images/compile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SOURCE = '''
from dataclasses import dataclass, field

@dataclass(frozen=True, slots=True)
class Point:
    """Has a docstring
    of two lines."""

    x: int
    y: int = 2
    seen: dict[str, int] = field(default_factory=lambda: {"begun": 1})
    parts: list[int] = field(default_factory=list, repr=False)
    area: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "area", self.x * self.y)

@dataclass(frozen=True, slots=True, eq=False)
class Place(Point):
    """A base's fields come first."""

    name: str = ""

class Plain:
    __slots__ = ("a",
                 "b")

    def where(self) -> int:
        raise LookupError
'''


def test_a_rewritten_dataclass_takes_and_holds_what_it_did(compiling: ModuleType) -> None:
    known: dict[str, Any] = {}
    for name, source in (("before", SOURCE), ("after", compiling.rewritten(SOURCE))):
        sys.modules[name] = module = ModuleType(name)
        exec(compile(source, name, "exec"), module.__dict__)  # noqa: S102 - the text above
        known[name] = module
    before, after = known["before"], known["after"]
    for words in ({"x": 3}, {"x": 3, "y": 4, "seen": {}, "parts": [1]}):
        old, new = before.Point(**words), after.Point(**words)
        assert dataclasses.asdict(new) == dataclasses.asdict(old)
        assert repr(new) == repr(old)
        assert new == after.Point(**words)
    assert after.Point(1).parts is not after.Point(1).parts
    assert dataclasses.replace(after.Point(3), x=5).area == 10
    assert after.Place(3, name="here").area == 6
    words = {"x": 3, "seen": "", "parts": ""}
    assert hash(after.Point(**words)) == hash(before.Point(**words))
    assert not hasattr(after.Plain, "__slots__")


def test_a_rewritten_source_keeps_its_lines(compiling: ModuleType) -> None:
    for path in compiling.modules():
        package = path.partition("/")[0]
        source = (repository_root() / compiling.PACKAGES[package] / path).read_text()
        new = compiling.rewritten(source)
        compile(new, path, "exec")
        assert "slots=True" not in new, path
        old_lines, new_lines = source.split("\n"), new.split("\n")
        assert len(old_lines) == len(new_lines), path
        assert [line for line in old_lines if line.lstrip().startswith("return ")] == [
            line.replace("_held_", "") for line in new_lines if line.lstrip().startswith("return ")
        ], path


def test_each_module_to_compile_is_named_once(compiling: ModuleType) -> None:
    found = compiling.modules()
    assert len(found) == len(set(found))


def test_no_class_that_is_interpreted_inherits_from_a_compiled_one(compiling: ModuleType) -> None:
    """Making an object of such a class fails, and only then."""
    compiled: set[str] = set()
    interpreted: dict[str, set[str]] = {}
    for package, parent in compiling.PACKAGES.items():
        root = repository_root() / parent
        for path in sorted((root / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.ClassDef):
                    continue
                bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
                if str(path.relative_to(root)) not in compiling.modules():
                    interpreted[f"{path.name}: {node.name}"] = bases
                elif not bases & {"NamedTuple", "Protocol"}:  # which stay what they were
                    compiled.add(node.name)
    mixed = {name for name, bases in interpreted.items() if bases & compiled}
    assert mixed == {"analytic.py: ModelDoesNotFit"}, "the planner's, which runs without what is compiled"
