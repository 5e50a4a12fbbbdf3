"""The source of a module as it is compiled: what mypyc cannot take, or compiles into something slow, is rewritten.

It is done line by line, so that tracebacks name the lines of the real sources. ``__slots__`` goes, since compiled
classes have none but fields of C; a dataclass gets its ``__init__`` written out, since the one that ``dataclass`` makes
at run time is not compiled; what an ``except`` catches gets a name of its own, since a name has one type in a compiled
function; what a module imports of interpreted ones and calls is held in a ``Final``, which is a variable of C, where a
module's other names are looked up in its dict each time; and of what sessions keep the collector is not told.
"""

import ast

from weft_compile.path import UNTRACKED, native

SPECIAL = frozenset({"typing", "dataclasses"})
"""Modules whose names mean something to the compiler itself."""
_ATTRIBUTES = "if _typing.TYPE_CHECKING: from mypy_extensions import mypyc_attr as _mypyc_attr"
"""The compiler alone has a use for them."""


class Lines:
    """A source whose lines can be replaced without moving those after them."""

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self._source = source
        self._lines = source.split("\n")

    def text(self, node: ast.AST) -> str:
        """Return what stands there, on one line."""
        return ast.unparse(node)

    def put(self, node: ast.stmt | ast.expr, text: str) -> None:
        """Put one line in the place of a node that has its lines for itself but for what stands before it."""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        before = self._lines[first].encode()[: node.col_offset].decode()
        after = self._lines[last].encode()[node.end_col_offset or 0 :].decode()
        self._lines[first] = before + text + after
        for number in range(first + 1, last + 1):
            self._lines[number] = ""

    def name_caught(self, handler: ast.ExceptHandler, name: str) -> None:
        """Give what a handler catches another name, in the line of its ``except`` alone."""
        assert handler.type is not None  # noqa: S101 - only what has a type is named
        number = (handler.type.end_lineno or handler.lineno) - 1
        self._lines[number] = self._lines[number].replace(f" as {handler.name}:", f" as {name}:")

    def add(self, node: ast.stmt, text: str) -> None:
        """Put more on the line where a statement ends."""
        line = (node.end_lineno or node.lineno) - 1
        whole = self._lines[line].encode()
        end = node.end_col_offset or 0
        self._lines[line] = whole[:end].decode() + text + whole[end:].decode()

    def fill(self, number: int, text: str) -> None:
        """Put something on an empty line, counted from 1.

        Raises:
            ValueError: it is not empty.
        """
        if self._lines[number - 1]:
            raise ValueError(f"line {number} is not empty, as it is wanted to be: {self._lines[number - 1]}")
        self._lines[number - 1] = text

    def __str__(self) -> str:
        return "\n".join(self._lines)


def rewritten(source: str) -> str:
    """Return a module's source as it is compiled."""
    lines = Lines(_held(source))
    classes = {node.name: node for node in ast.walk(lines.tree) if isinstance(node, ast.ClassDef)}
    for node in classes.values():
        for part in node.body:
            if isinstance(part, ast.Assign) and [lines.text(target) for target in part.targets] == ["__slots__"]:
                lines.put(part, "pass")
        decorator = _dataclass(node)
        if decorator is not None:
            _write_out(lines, node, decorator, classes)
    _untrack(lines)
    _name_what_is_caught(lines)
    return str(lines)


def _untrack(lines: Lines) -> None:
    """Have the collector not know of a module's classes whose objects sessions keep."""
    kept = [node for node in lines.tree.body if isinstance(node, ast.ClassDef) and node.name in UNTRACKED]
    if not kept:
        return
    doc = lines.tree.body[0]
    lines.add(doc, "; import typing as _typing")
    lines.fill((doc.end_lineno or 1) + 1, _ATTRIBUTES)
    for node in kept:
        first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
        lines.fill(first - 1, "@_mypyc_attr(acyclic=True)")


def _name_what_is_caught(lines: Lines) -> None:
    """Name what each handler catches after its line: of several that catch it by one name, the first gives its type."""
    named: set[ast.expr] = set()
    handlers = [node for node in ast.walk(lines.tree) if isinstance(node, ast.ExceptHandler)]
    for handler in reversed(handlers):  # the inner ones first: what they call so is theirs
        if handler.name is None:
            continue
        old, new = handler.name, f"{handler.name}_{handler.lineno}"
        lines.name_caught(handler, new)
        for node in (node for statement in handler.body for node in ast.walk(statement)):
            if isinstance(node, ast.Name) and node.id == old:
                node.id = new
                named.add(node)
    # Python 3.11 does not tell where in a text a name stands, so the whole text is put anew.
    texts = {node for node in ast.walk(lines.tree) if isinstance(node, ast.JoinedStr) and named & {*ast.walk(node)}}
    inside = {part for text in texts for part in ast.walk(text) if part is not text}
    for node in sorted((named | texts) - inside, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        lines.put(node, lines.text(node))


def _held(source: str) -> str:
    """Hold in a ``Final`` each imported name that functions call and that compiled code would look up."""
    lines = Lines(source)
    imported = {
        alias.asname or alias.name: (node, node.module, alias.name)
        for node in lines.tree.body
        if isinstance(node, ast.ImportFrom) and node.module not in SPECIAL
        for alias in node.names
    }
    own = {node.id for node in ast.walk(lines.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in ast.walk(lines.tree) if isinstance(node, ast.arg)}
    texts = (node for node in ast.walk(lines.tree) if isinstance(node, ast.JoinedStr))
    nowhere = {
        part for text in texts for part in ast.walk(text)
    }  # Python 3.11 does not tell where in a text a name stands
    known = {name for name, (_, module, real) in imported.items() if (module, real) not in native()} - own
    calls = {
        (call.func.lineno, call.func.col_offset): call.func
        for function in ast.walk(lines.tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for part in function.body
        for call in ast.walk(part)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in known
        and call not in nowhere
    }
    for place in sorted(calls, reverse=True):  # from the end, so that what is before stays where it is
        lines.put(calls[place], f"_held_{calls[place].id}")
    held: dict[ast.ImportFrom, list[str]] = {}
    for name in sorted({call.id for call in calls.values()}):
        held.setdefault(imported[name][0], []).append(f"_held_{name}: _Final = {name}")
    for node, statements in sorted(held.items(), key=lambda item: -item[0].lineno):
        lines.add(node, "; ".join(["", "from typing import Final as _Final", *statements]))
    return str(lines)


def _dataclass(node: ast.ClassDef) -> ast.expr | None:
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(called, ast.Name) and called.id == "dataclass":
            return decorator
    return None


def _write_out(lines: Lines, node: ast.ClassDef, decorator: ast.expr, classes: dict[str, ast.ClassDef]) -> None:
    """Write out the ``__init__`` of a dataclass in the place of its docstring, and take its slots and its frost."""
    given = {word.arg: lines.text(word.value) for word in decorator.keywords} if isinstance(decorator, ast.Call) else {}
    given.pop("slots", None)
    if given.pop("frozen", None) and given.get("eq") != "False":
        given["unsafe_hash"] = "True"
    doc = node.body[0]
    fields = _fields(node, classes)
    if fields is not None and isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
        given["init"] = "False"
        lines.put(doc, _init(lines, fields, after=_has_post_init(node, classes)))
    words = ", ".join(f"{name}={value}" for name, value in given.items())
    lines.put(decorator, f"dataclass({words})")


def _fields(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> list[ast.AnnAssign] | None:
    """Return the fields of a dataclass and its bases; None where a base is elsewhere."""
    found: dict[str, ast.AnnAssign] = {}
    for base in node.bases:
        known = classes.get(base.id) if isinstance(base, ast.Name) else None
        inherited = _fields(known, classes) if known is not None else None
        if inherited is None:
            return None
        found |= {part.target.id: part for part in inherited if isinstance(part.target, ast.Name)}
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            if "ClassVar" in ast.unparse(part.annotation):
                continue
            found[part.target.id] = part
    return list(found.values())


def _has_post_init(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> bool:
    """Tell whether a class or one of its bases here has a ``__post_init__``."""
    if any(isinstance(part, ast.FunctionDef) and part.name == "__post_init__" for part in node.body):
        return True
    bases = (classes.get(base.id) for base in node.bases if isinstance(base, ast.Name))
    return any(base is not None and _has_post_init(base, classes) for base in bases)


def _init(lines: Lines, fields: list[ast.AnnAssign], *, after: bool) -> str:
    """Return the ``__init__`` of these fields, on one line; ``after`` it calls ``__post_init__``."""
    given, statements = ["self"], []
    for part in fields:
        words = _field_words(part.value) or {}
        if "init" in words and not {"default", "default_factory"} & set(words):
            continue  # `__post_init__` sets it
        name, kind = lines.text(part.target), lines.text(part.annotation)
        made = _factory(lines, part.value)
        if made is None:
            default = part.value if _field_words(part.value) is None else None
            given.append(f"{name}: {kind}" + (f" = {lines.text(default)}" if default is not None else ""))
            statements.append(f"self.{name} = {name}")
        elif made[1]:
            given.append(f"{name}: {kind} | None = None")
            statements.append(f"self.{name} = {made[0]} if {name} is None else {name}")
        else:
            statements.append(f"self.{name} = {made[0]}")
    if after:
        statements.append("self.__post_init__()")
    return f"def __init__({', '.join(given)}) -> None: {'; '.join(statements)}"


def _factory(lines: Lines, value: ast.expr | None) -> tuple[str, bool] | None:
    """Return what makes a field's default, and whether it may be given; None for a plain default or none."""
    words = _field_words(value)
    if words is None:
        return None
    given = lines.text(words["init"]) != "False" if "init" in words else True
    if "default_factory" in words:
        factory = words["default_factory"]
        made = lines.text(factory.body) if isinstance(factory, ast.Lambda) else f"{lines.text(factory)}()"
        return made, given
    if "default" in words:
        return lines.text(words["default"]), given
    return None


def _field_words(value: ast.expr | None) -> dict[str | None, ast.expr] | None:
    """Return what ``field`` is called with, None where it is not."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        return {word.arg: word.value for word in value.keywords}
    return None
