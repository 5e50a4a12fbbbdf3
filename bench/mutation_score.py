"""Break the code in many small ways and count how many its tests notice: ``python -m bench.mutation_score``.

A mutant is one change of one function: another comparison, operator, number, constant, branch or a statement left out.
pytest collects the tests of a target once and runs each under a profiler, so that it is known which tests call which
function. Then every mutant gets a forked child that swaps the function's code in memory and runs the tests that call it
until one fails, or takes more than four times as long as it should; no file is changed, and a mutant takes a fraction
of a second. Words of errors and logs are not mutated, nor what is computed when a module is imported.

The report says for each target how many of a random sample were noticed, and names those that were not.
"""

import argparse
import ast
import copy
import faulthandler
import gc
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType

import pytest

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 5.0
"""What a test of a mutant may take beside four times its time."""
PROFILED_S = 3.0
"""The profiler makes tests slower, so it looks at the beginning of each alone."""
LONGEST_S = 15.0
"""A mutant gets its quickest tests, which take so long together: some parts are called by all tests of a connection."""


@dataclass(frozen=True, slots=True)
class Target:
    """Modules to break, and the test files that should notice; both are patterns of paths."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    without: str = "cluster or component or apiserver or alone"
    """Tests with these markers are left out."""

    def sources(self) -> list[Path]:
        """Return the modules."""
        return _matching(self.modules)


TARGETS = {
    "policies": Target(
        ("core/weft_core/policies/*.py", "core/weft_core/policies/*/*.py"),
        (
            "core/weft_core_tests/test_policy_[!c]*.py",
            "core/weft_core_tests/test_policy_registry.py",
            "router/weft_router_tests/test_replay.py",  # against the compiled ones, which no mutant reaches
            "router/weft_router_tests/test_routing.py",
        ),
    ),
    "rollout": Target(
        ("operator/weft_operator/rollout/*.py",),
        (
            "operator/weft_operator_tests/test_rollout_*.py",
            "operator/weft_operator_tests/test_groups_companions.py",
            "operator/weft_operator_tests/test_reconcile_canary.py",
            "operator/weft_operator_tests/test_reconcile_rollout.py",
        ),
    ),
    "parsing": Target(
        tuple(
            f"router/weft_router/http/{name}.py"
            for name in ("chunks", "head", "head_cache", "header_lines", "request", "response", "sse", "whole_response")
        ),
        ("router/weft_router_tests/test_http_*.py", "router/weft_router_tests/test_stream_filter*.py"),
        without="alone",  # connections of a test's own process are tests of parsers, too
    ),
}


def _matching(patterns: Sequence[str]) -> list[Path]:
    found = []
    for pattern in patterns:
        paths = sorted(ROOT.glob(pattern))
        if not paths:
            raise SystemExit(f"nothing matches {pattern}: correct TARGETS in {Path(__file__).name}")
        found += paths
    return found


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of the function ``name``; ``code`` is what it then runs."""

    path: Path
    line: int
    name: str
    words: str
    code: CodeType

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} {self.name}: {self.words}"


COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Return what could stand instead of a node."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield _with(node, ops=[COMPARISONS[type(op)]()])
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in OPERATORS:
            yield _with(node, op=OPERATORS[type(op)]())
        case ast.BoolOp(op=op):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if not isinstance(
            test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant
        ):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(value=bytes(value)) if value:
            yield ast.Constant(value + b"x")
        case ast.Constant(value=str(value)) if value:
            yield ast.Constant(value + "x")
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.Continue() | ast.Break() | ast.AugAssign():
            yield ast.Pass()


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _untouched(node: ast.AST) -> bool:
    """Tell whether a part is about words, types or the time of import."""
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.arguments() | ast.AnnAssign(value=None):
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="log" | "_log"))):
            return True
    return False


def mutants_of(path: Path) -> list[Mutant]:
    """Return every mutant of a module's functions."""
    tree = ast.parse(path.read_text())
    found = []

    def visit(parent: ast.AST, name: str, inside: bool) -> None:
        for field, value in ast.iter_fields(parent):
            if field in ("decorator_list", "returns", "annotation"):
                continue
            nodes = value if isinstance(value, list) else [value]
            for at, node in enumerate(nodes):
                if not isinstance(node, ast.AST) or _untouched(node):
                    continue
                if inside:
                    for changed in changes(node):
                        try_one(parent, field, value, at, node, changed, name)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    own = node.name if not name or inside else f"{name}.{node.name}"
                    visit(node, name if inside else own, inside or not isinstance(node, ast.ClassDef))
                else:
                    visit(node, name, inside)

    def try_one(
        parent: ast.AST, field: str, value: object, at: int, node: ast.AST, changed: ast.AST, name: str
    ) -> None:
        ast.copy_location(changed, node)
        if isinstance(value, list):
            value[at] = changed
        else:
            setattr(parent, field, changed)
        code = _code_of(compile(ast.fix_missing_locations(tree), str(path), "exec"), name)
        if isinstance(value, list):
            value[at] = node
        else:
            setattr(parent, field, value)
        words = f"{_words(node)} -> {_words(changed)}"
        found.append(Mutant(path, getattr(node, "lineno", 0), name, words, code))

    visit(tree, "", inside=False)
    return found


def _words(node: ast.AST) -> str:
    return ast.unparse(node).split("\n")[0][:60]


def _code_of(code: CodeType, name: str) -> CodeType:
    first, _, rest = name.partition(".")
    inner = next(one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == first)
    return _code_of(inner, rest) if rest else inner


class Score:
    """A pytest plugin that runs the mutants instead of the tests."""

    def __init__(self, target: Target, *, mutants: int, seed: int, jobs: int, part: str, seconds: float) -> None:
        self._sources = {str(path): path for path in target.sources()}
        self._sample, self._seed, self._jobs, self._part = mutants, seed, jobs, part
        self._ends = time.monotonic() + seconds
        self._failed = False
        self.survivors: list[Mutant] = []
        self.noticed = self.untested = 0
        self.total = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Let property tests neither make smaller what they find, nor keep it for the next run."""
        from hypothesis import Phase, settings  # pytest has to be the first to import it

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", deadline=None, database=None, phases=phases, derandomize=True)
        settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        self._failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run every test once, then those of each mutant's function."""
        callers, seconds = self._baseline(session)
        everything = [mutant for path in self._sources.values() for mutant in mutants_of(path)]
        everything = [mutant for mutant in everything if self._part in str(mutant)]
        self.total = len(everything)
        chosen = random.Random(self._seed).sample(everything, min(self._sample, len(everything)))  # noqa: S311
        functions: dict[tuple[str, str], list[FunctionType]] = {}
        for one in gc.get_objects():
            if isinstance(one, FunctionType) and one.__code__.co_filename in self._sources:
                functions.setdefault((one.__code__.co_filename, one.__code__.co_qualname), []).append(one)
        running: dict[int, Mutant] = {}
        for mutant in chosen:
            if time.monotonic() > self._ends:
                break
            key = (str(mutant.path), mutant.name)
            items = _quickest(callers.get(key, ()), seconds)
            if not items or key not in functions:
                self.untested += 1
                self.survivors.append(mutant)
                continue
            while len(running) >= self._jobs:
                self._reap(running)
            running[self._start(mutant, functions[key], items, seconds)] = mutant
        while running:
            self._reap(running)
        return True

    def _run(self, items: Sequence[pytest.Item], seconds: dict[str, float]) -> bool:
        """Run tests up to the first that fails; tell whether all passed. One that takes too long ends the process."""
        self._failed = False
        with Path(os.devnull).open("w") as nowhere:
            for at, item in enumerate(items):
                limit = PATIENCE_S + 4 * seconds[item.nodeid]
                faulthandler.dump_traceback_later(limit, file=nowhere, exit=True)
                following = items[at + 1] if at + 1 < len(items) else None
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self._failed:
                    return False
        return True

    def _baseline(self, session: pytest.Session) -> tuple[dict[tuple[str, str], list[pytest.Item]], dict[str, float]]:
        callers: dict[tuple[str, str], list[pytest.Item]] = {}
        seconds: dict[str, float] = {}
        for at, item in enumerate(session.items):
            called: set[tuple[str, str]] = set()

            began = time.monotonic()

            def note(
                frame: FrameType,
                event: str,
                _arg: object,
                called: set[tuple[str, str]] = called,
                ends: float = began + PROFILED_S,
            ) -> None:
                code = frame.f_code
                if event == "call" and code.co_filename in self._sources:
                    called.add((code.co_filename, code.co_qualname.partition(".<locals>")[0]))
                    if time.monotonic() > ends:
                        sys.setprofile(None)

            following = session.items[at + 1] if at + 1 < len(session.items) else None
            sys.setprofile(note)
            try:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            finally:
                sys.setprofile(None)
            seconds[item.nodeid] = time.monotonic() - began
            if self._failed:
                raise pytest.UsageError(f"{item.nodeid} fails without any mutant")
            for key in called:
                callers.setdefault(key, []).append(item)
        return callers, seconds

    def _start(
        self, mutant: Mutant, functions: Sequence[FunctionType], items: Sequence[pytest.Item], seconds: dict[str, float]
    ) -> int:
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            for function in functions:
                function.__code__ = mutant.code
            status = 0 if self._run(items, seconds) else 1
        finally:
            os._exit(status)

    def _reap(self, running: dict[int, Mutant]) -> None:
        """Wait until a child has ended."""
        pid, status = os.wait()
        if status == 0:
            self.survivors.append(running.pop(pid))
        else:
            del running[pid]
            self.noticed += 1


def _quickest(items: Sequence[pytest.Item], seconds: dict[str, float]) -> list[pytest.Item]:
    """Return the quickest tests, as many as take LONGEST_S together, and at least one."""
    chosen: list[pytest.Item] = []
    total = 0.0
    for item in sorted(items, key=lambda item: seconds[item.nodeid]):
        total += seconds[item.nodeid]
        if chosen and total > LONGEST_S:
            break
        chosen.append(item)
    return chosen


def measure(name: str, *, mutants: int, seed: int, jobs: int, part: str, seconds: float) -> Score:
    """Run a target's mutants."""
    target = TARGETS[name]
    score = Score(target, mutants=mutants, seed=seed, jobs=jobs, part=part, seconds=seconds)
    words = ["-p", "no:cacheprovider", "-p", "no:rerunfailures", "-m", f"not ({target.without})"]
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        status = pytest.main([*words, *map(str, _matching(target.tests))], plugins=[score])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"the tests of {name} do not pass: {status!r}")
    return score


def main(argv: Sequence[str] | None = None) -> int:
    """Print the score of each target and its survivors; return 1 where one is below ``--least``."""
    parser = argparse.ArgumentParser(prog="python -m bench.mutation_score", description=__doc__.split("\n")[0])
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="which (default: all)")
    parser.add_argument("--mutants", type=int, default=200, help="how many of each target (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=1500.0, help="begin no mutant after these (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="at once (default: all cores)")
    parser.add_argument("--least", type=float, default=85.0, help="per cent that have to be noticed")
    parser.add_argument("--part", default="", help="only mutants whose line in the report has this")
    options = vars(parser.parse_args(argv))
    names, least = options.pop("targets") or list(TARGETS), options.pop("least")
    if len(names) > 1:  # each in a process of its own: tests of one must not have loaded the other's modules
        words = [sys.executable, "-m", "bench.mutation_score", f"--least={least}"]
        words += [f"--{key}={value}" for key, value in options.items()]
        return max(subprocess.run([*words, name], cwd=ROOT, check=False).returncode for name in names)
    began = time.monotonic()
    score = measure(names[0], **options)
    for mutant in sorted(score.survivors, key=str):
        print(f"  {mutant}")
    tried = score.noticed + len(score.survivors)
    share = 100 * score.noticed / tried if tried else 100.0
    print(
        f"{names[0]}: {share:.1f} % of {tried} mutants of {score.total} noticed; {score.untested} of the others are in "
        f"functions that no test calls; {time.monotonic() - began:.0f} s"
    )
    return int(share < least)


if __name__ == "__main__":
    sys.exit(main())
