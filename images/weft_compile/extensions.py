"""Runs mypyc and the C compiler in a folder of rewritten sources: ``python -m weft_compile.extensions JOBS``.

With GCC the modules are compiled twice. The first libraries count, in an exercise, how often each branch is taken; the
second are laid out by that and linked as one program. What requests use then stands together: before it was spread
over six megabytes, and waiting for code took longer than running it.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Extension

from weft_compile.path import modules

TYPED = ("--ignore-missing-imports", "--follow-imports=silent", "--python-version=3.11")
HEADER = Path(__file__).with_name("untracked.h")
FLAGS = (
    "-ffp-contract=off", "-fvisibility=hidden", "-fno-semantic-interposition", "-fno-plt", "-include", str(HEADER),
)  # fmt: skip
"""Decisions have to be the interpreter's and the simulator's to the last bit, so no compiler may round ``a * b + c``
once only, which on ARM it would. The header makes it safe to free what the collector does not know. The others let one
compiled module call another's functions directly."""
COUNTING = ("-fprofile-generate",)
COUNTED = ("-fprofile-use", "-fprofile-partial-training", "-Wno-missing-profile")
"""What the exercise never reached is compiled as if nothing had been counted, not for size."""


def build(folder: Path, *, jobs: int) -> None:
    """Compile the modules of the path into libraries beside them.

    Raises:
        subprocess.CalledProcessError: a compiler, or the exercise, failed; it has said why.
    """
    made = mypycify([*TYPED, *modules()], opt_level="2", debug_level="0", multi_file=True)
    (whole,) = [extension for extension in made if extension.name.endswith("__mypyc")]
    for shim in made:
        if shim is not whole:
            _library(folder, shim, FLAGS, jobs=1)
    if not _is_gcc():
        _library(folder, whole, FLAGS, jobs=jobs)
        return
    _library(folder, whole, (*FLAGS, *COUNTING), jobs=jobs)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))}
    subprocess.run([sys.executable, "-m", "weft_compile.exercise"], env=env, check=True, timeout=300)
    _library(folder, whole, (*FLAGS, *COUNTED, f"-flto={jobs}"), jobs=jobs)


def _library(folder: Path, extension: Extension, flags: Sequence[str], *, jobs: int) -> None:
    """Compile and link one library with the interpreter's own options, and some more."""
    words = [*_words("CC", "CFLAGS", "CCSHARED"), *extension.extra_compile_args, *flags]
    places = [sysconfig.get_path("include"), sysconfig.get_path("platinclude"), *extension.include_dirs]
    includes = [f"-I{place}" for place in dict.fromkeys(places)]

    def compiled(source: str) -> str:
        # The counts of an object are kept and looked for beside it, so both times it has the same name.
        target = folder / "objects" / Path(source).relative_to(folder if Path(source).is_absolute() else ".")
        target.parent.mkdir(parents=True, exist_ok=True)
        _run([*words, *includes, "-c", source, "-o", str(target.with_suffix(".o"))], folder)
        return str(target.with_suffix(".o"))

    with ThreadPoolExecutor(jobs) as threads:
        objects = list(threads.map(compiled, extension.sources))
    library = folder / (extension.name.replace(".", "/") + sysconfig.get_config_var("EXT_SUFFIX"))
    _run([*_words("LDSHARED"), *extension.extra_compile_args, *flags, *objects, "-o", str(library)], folder)


def _words(*names: str) -> list[str]:
    return [word for name in names for word in shlex.split(str(sysconfig.get_config_var(name) or ""))]


def _run(words: Iterable[str], folder: Path) -> None:
    subprocess.run(list(words), cwd=folder, check=True, timeout=900)


def _is_gcc() -> bool:
    """Tell whether the compiler is GCC: others keep such counts in other ways."""
    said = subprocess.run([*_words("CC")[:1], "--version"], check=False, capture_output=True, text=True, timeout=60)
    return "Free Software Foundation" in said.stdout


if __name__ == "__main__":
    build(Path.cwd(), jobs=int(sys.argv[1]))
