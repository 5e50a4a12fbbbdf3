"""What mypyc gets wrong without a word is not in what is compiled; `make test-compiled` runs the outcome."""

import ast
import dataclasses
import importlib
import inspect
import typing
from collections import defaultdict
from collections.abc import Iterator

from compile_router import PACKAGES, modules
from weft_e2e.images.catalogue import repository_root
from weft_router_tests.test_untracked import kept


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Give the compiled modules, parsed."""
    for path in modules():
        source = repository_root() / PACKAGES[path.partition("/")[0]] / path
        yield path, ast.parse(source.read_text())


def test_each_class_that_the_collector_is_not_told_of_is_freed_in_a_test() -> None:
    """See ``weft_router.mypyc_compat``: a class that is acyclic has to be one."""
    found = {
        node.name
        for _, tree in trees()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and any("acyclic=True" in ast.unparse(one) for one in node.decorator_list)
    }
    assert found == {type(one).__name__ for one in kept()}


def handlers(function: ast.AST) -> Iterator[ast.ExceptHandler]:
    """Give the handlers of a function, without those of functions within."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.ExceptHandler):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from handlers(node)


def test_what_a_function_catches_by_one_name_is_of_one_type() -> None:
    """Compiled, the first handler gives the name its type, and another's object is a TypeError."""
    mixed = []
    for path, tree in trees():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                types = defaultdict[str, set[str]](set)
                for one in handlers(function):
                    if one.name is not None and one.type is not None:
                        types[one.name].add(ast.unparse(one.type))
                mixed += [f"{path}: {function.name}: {name}" for name, found in types.items() if len(found) > 1]
    assert not mixed, "give each handler's error a name of its own"


def test_nothing_is_awaited_while_an_error_is_handled() -> None:
    """Compiled, the error stays that of the thread meanwhile, and whoever handles another one loses that."""
    found = []
    for path, tree in trees():
        for function in ast.walk(tree):
            if isinstance(function, ast.AsyncFunctionDef):
                parts: list[ast.AST] = list(handlers(function))
                parts += [end for node in ast.walk(function) if isinstance(node, ast.Try) for end in node.finalbody]
                if any(isinstance(node, ast.Await) for part in parts for node in ast.walk(part)):
                    found.append(f"{path}: {function.name}")
    assert not found, "note the error in the clause, and await behind it"


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
    assert mixed == {"analytic.py: ModelDoesNotFit", "speculation.py: SpeculationError"}, (
        "the planner's, which runs without what is compiled"
    )
