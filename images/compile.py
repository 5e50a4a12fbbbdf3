"""Compiles the router's path of a request with mypyc, from the sources that run without it, too.

    compile.py --into FOLDER [--jobs 2]

Writes whole copies of the packages below into an empty folder, with a compiled module beside each source of ``PATH``.
An interpreter that has the folder first on its path runs the compiled ones, and one of the router's image has them
among its packages: docs/decisions/0017. Needs mypy (with mypyc), setuptools and a C compiler.

What mypyc cannot take, or compiles into something slow, is rewritten in the copies it compiles, line by line so that
tracebacks name the lines of the real sources: ``__slots__`` goes, since compiled classes have none but fields of C; a
dataclass gets its ``__init__`` written out, since the one that ``dataclass`` makes at run time is not compiled; what
an ``except`` catches gets a name of its own, since a name has one type in a compiled function; and what a module
imports of interpreted ones and calls is held in a ``Final``, which is a variable of C, where a module's other names are
looked up in its dict each time.
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"weft_core": "core", "weft_router": "router"}
PATH = (
    "weft_core/policies/{live,live_binding,earliest,weft,fleet,trust,kv_headroom,decide_binding,snapshot}",
    "weft_core/{timing,cost,heartbeat}",
    "weft_router/errors",
    "weft_router/api/{body,bounds,events,inference,identity,reply,responses_tap,tap,tokens,transcript,usual}",
    "weft_router/engines/{adapter,handles,vllm,openai,neuron,sglang,tensorrt_llm,watch,load,resume}",
    "weft_router/express/{lane,passage}",
    "weft_router/guard/{auth,key_file,classes,admission,shares,rates,salt,caller}",
    "weft_router/roles/{duty,placing,server,front,telling}",
    "weft_router/rounds/{accounts,answering,affinity,placement,batch,deciding,decoding,dispatched,outlet,passing}",
    "weft_router/rounds/{policies,prefill_queue,prefilling,remote,routing,round,sessions,standing,taking,turns,worker,job,canary}",
    "weft_router/signals/{access,decisions,ids,instruments,pace,request_log,rounds,window}",
    "weft_router/state/{bindings,registry,store}",
    "weft_router/wire/{connection,exchange,request,head,heads,plain,response,upstream,pool,leg,lines,light_task}",
)
"""The modules that a usual request goes through, and those with classes that inherit from theirs: all or none of a
family can be compiled."""
UNWANTED = "Unsupported default attribute value"
"""A warning of mypyc's: a class's default would be looked up anew for each object, not once."""
SPECIAL = frozenset({"typing", "dataclasses"})
"""Modules whose names mean something to the compiler itself."""
TYPED = ("--ignore-missing-imports", "--follow-imports=silent", "--python-version=3.11")


def modules() -> list[str]:
    """Return the paths of ``PATH`` in full."""
    found = []
    for pattern in PATH:
        head, _, rest = pattern.partition("{")
        found += [f"{head}{name}.py" for name in rest.rstrip("}").split(",")] if rest else [f"{head}.py"]
    return found


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
    _name_what_is_caught(lines)
    return str(lines)


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


@cache
def native() -> frozenset[tuple[str, str]]:
    """Return module and name of every function and class that compiled code calls without a look at a module's dict."""
    found = set()
    for path in modules():
        tree = ast.parse((ROOT / PACKAGES[path.partition("/")[0]] / path).read_text())
        for node in tree.body:
            interpreted = isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not interpreted:
                found.add((path.removesuffix(".py").replace("/", "."), node.name))
    return frozenset(found)


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


SETUP = """
import sys
from concurrent.futures import ThreadPoolExecutor
from setuptools import setup
from distutils.unixccompiler import UnixCCompiler  # setuptools' own copy, under the name by which it builds
from mypyc.build import mypycify

def compile(self, sources, output_dir=None, macros=None, include_dirs=None, debug=0, extra_preargs=None,
            extra_postargs=None, depends=None):
    macros, objects, extra_postargs, pp_opts, build = self._setup_compile(
        output_dir, macros, include_dirs, sources, depends, extra_postargs)
    words = [*self._get_cc_args(pp_opts, debug, extra_preargs), "-ffp-contract=off"]
    def one(made):
        self._compile(made, *build[made], words, extra_postargs, pp_opts)
    with ThreadPoolExecutor(int(sys.argv[1])) as threads:
        list(threads.map(one, objects))
    return objects

UnixCCompiler.compile = compile
setup(name="weft-compiled", script_args=["-q", "build_ext", "--inplace"],
      ext_modules=mypycify(sys.argv[2:], opt_level="2", debug_level="0", multi_file=True))
"""
"""What runs the compilers. Decisions have to be the interpreter's and the simulator's to the last bit, so no compiler
may round `a * b + c` once only, which on ARM it would."""


def compile_into(into: Path, *, jobs: int) -> None:
    """Write the packages with their compiled modules into a folder.

    Raises:
        SystemExit: what the compiler said.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for package, parent in PACKAGES.items():
            shutil.copytree(ROOT / parent / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        for module in modules():
            path = folder / module
            path.write_text(rewritten(path.read_text()))
        words = [sys.executable, "-c", SETUP, str(jobs), *TYPED, *modules()]
        done = subprocess.run(
            words, cwd=folder, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        sys.stdout.write(done.stdout)
        if done.returncode or UNWANTED in done.stdout:
            raise SystemExit("the router's path was not compiled")
        for library in _libraries(folder):
            target = into / library.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(library, target)
    for package, parent in PACKAGES.items():
        shutil.copytree(
            ROOT / parent / package, into / package, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
        )


def _libraries(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*.so")) if "build" not in path.relative_to(folder).parts)


def main() -> None:
    """Parse the command line and compile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, required=True, help="an empty or new folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at once")
    args = parser.parse_args()
    compile_into(args.into.resolve(), jobs=args.jobs)


if __name__ == "__main__":
    main()
