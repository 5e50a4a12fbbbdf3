"""What is compiled of the router, and how its sources are rewritten for that; `make test-compiled` runs the outcome."""

import ast
import dataclasses
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from weft_compile import exercise
from weft_compile.path import PACKAGES, UNTRACKED, modules, native
from weft_compile.rewriting import rewritten
from weft_e2e.images.catalogue import repository_root
from weft_router.engines.watch import Engine
from weft_router_tests.test_untracked import kept

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


def test_a_rewritten_dataclass_takes_and_holds_what_it_did() -> None:
    known: dict[str, Any] = {}
    for name, source in (("before", SOURCE), ("after", rewritten(SOURCE))):
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


KEPT = '''
"""A module."""

from dataclasses import dataclass

@dataclass(slots=True)
class Session:
    """What is kept."""

    rounds: int

class Pace:
    """So is this."""

class Other:
    """This is not."""
'''


def test_of_what_sessions_keep_the_collector_is_not_told() -> None:
    told: list[tuple[type, dict[str, bool]]] = []

    def attr(**words: bool) -> Callable[[type], type]:
        def noted(kind: type) -> type:
            told.append((kind, words))
            return kind

        return noted

    known: dict[str, Any] = {"__name__": "kept", "_mypyc_attr": attr}
    sys.modules["kept"] = ModuleType("kept")
    exec(rewritten(KEPT), known)  # noqa: S102 - the text above
    assert told == [(known[name], {"acyclic": True}) for name in ("Session", "Pace")]
    assert known["__doc__"] == "A module."


def test_each_class_that_the_collector_is_not_told_of_is_compiled() -> None:
    compiled = [name for _, name in native()]
    assert all(compiled.count(name) == 1 for name in UNTRACKED)
    assert {type(one).__name__ for one in kept()} == UNTRACKED, "each is freed in a test"


CATCHING = """
def tell(key: str) -> str:
    try:
        try:
            return str({"a": 1}[key])
        except KeyError as error:
            told = f"no {error} " f"at {error!r:>20}"
            try:
                int(key)
            except (ValueError,
                    OverflowError) as error:
                raise LookupError(told, error.args) from error
            return told + key
    except LookupError as error:
        return f"{error} of {error.__cause__}"
"""


def test_what_a_rewritten_function_catches_has_a_name_of_its_own() -> None:
    new = rewritten(CATCHING)
    caught = [node.name for node in ast.walk(ast.parse(new)) if isinstance(node, ast.ExceptHandler)]
    assert len(set(caught)) == 3
    told: list[dict[str, Any]] = [{}, {}]
    for source, names in zip((CATCHING, new), told, strict=True):
        exec(source, names)  # noqa: S102 - the text above
    for key in ("a", "b", "3"):
        assert told[0]["tell"](key) == told[1]["tell"](key)


def test_no_class_has_a_default_that_compiling_loses() -> None:
    """Without a word mypyc leaves an attribute undefined whose default is None among more than one other type."""
    lost = []
    for path in modules():
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ == module.__name__ and not dataclasses.is_dataclass(kind):
                unset = [field for field in inspect.get_annotations(kind) if vars(kind).get(field, ...) is None]
                hints = typing.get_type_hints(kind) if unset else {}
                lost += [f"{name}.{field}" for field in unset if len(typing.get_args(hints[field])) > 2]
    assert not lost, "give them their first value in `__init__`"


def returns(lines: list[str]) -> list[tuple[int, str]]:
    """Where lines return what, but for the names of what was caught or is held."""
    found = ((number, line) for number, line in enumerate(lines) if line.lstrip().startswith("return "))
    return [(number, re.sub(r"_held_|_\d+\b", "", line)) for number, line in found]


def test_a_rewritten_source_keeps_its_lines() -> None:
    for path in modules():
        package = path.partition("/")[0]
        source = (repository_root() / PACKAGES[package] / path).read_text()
        new = rewritten(source)
        compile(new, path, "exec")
        assert "slots=True" not in new, path
        old_lines, new_lines = source.split("\n"), new.split("\n")
        assert len(old_lines) == len(new_lines), path
        assert returns(old_lines) == returns(new_lines), path


def test_each_module_to_compile_is_named_once() -> None:
    found = modules()
    assert len(found) == len(set(found))


def test_no_class_that_is_interpreted_inherits_from_a_compiled_one() -> None:
    """Making an object of such a class fails, and only then."""
    compiled: set[str] = set()
    interpreted: dict[str, set[str]] = {}
    for package, parent in PACKAGES.items():
        root = repository_root() / parent
        for path in sorted((root / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.ClassDef):
                    continue
                bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
                if str(path.relative_to(root)) not in modules():
                    interpreted[f"{path.name}: {node.name}"] = bases
                elif not bases & {"NamedTuple", "Protocol"}:  # which stay what they were
                    compiled.add(node.name)
    mixed = {name for name, bases in interpreted.items() if bases & compiled}
    assert mixed == {"analytic.py: ModelDoesNotFit"}, "the planner's, which runs without what is compiled"


@pytest.mark.parametrize("form", ["alone", "sidecars"])
async def test_the_exercise_goes_every_way_that_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """What it did not reach would be laid out as if nothing had been counted, and nobody would notice."""
    monkeypatch.setattr(Engine, "poll", Engine.poll)  # for what the exercise puts in its place to go afterwards
    ways: set[tuple[bool, bool, bool]] = set()
    answer = exercise._answer

    def noted(asked: bytes) -> list[bytes]:
        if asked:
            marks = (b'"do_remote_decode":true', b'"remote_engine_id":"engine-1"', b'"stream":true')
            prefill, handed, streamed = (mark in asked for mark in marks)
            ways.add((prefill, handed, streamed))
        return answer(asked)

    monkeypatch.setattr(exercise, "_answer", noted)
    service = exercise.Service(tmp_path)
    wired = service.alone() if form == "alone" else service.sidecars()
    await wired.start()
    for first in range(0, 5 * exercise.CLIENTS, exercise.CLIENTS):
        talks = [exercise.Conversation(first + n) for n in range(exercise.CLIENTS)]
        for _ in range(2):
            await exercise.rounds(wired, talks, service.key)
    await wired.stop()
    decodes = {(False, handed, streamed) for handed in (False, True) for streamed in (False, True)}
    assert ways >= {(True, False, False), *decodes}
