"""Compile the simulator and the core's policies with numba, and keep the machine code where it is found again.

numba notices a change of a function's own file only, not of what it calls, so its cache lies in a folder named by a
hash over every source that is compiled: core costs, policies and this package. The folder must be given to numba before
it is imported, hence this module is imported by nothing but the event loop, and before fits that are compiled, too.
"""

import gc
import hashlib
import importlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar, cast

import weft_core.timing
from weft_core import kv_tiers
from weft_core.policies import binding, finish, inputs, order, policy, reasons, retention, routing
from weft_core.policies.registry import compilable_functions

_log = logging.getLogger(__name__)
_Function = TypeVar("_Function", bound=Callable[..., object])


COMPILED = (
    "batching", "compiled", "decode_pool", "event_heap", "event_loop", "events/*", "gaps", "ir_compiler", "lists",
    "lockstep", "memory", "pipeline", "policies", "prefill_steps", "prefix_cache", "queues", "records", "retention",
    "rounds", "routing", "state_type", "tiers", "transfers",
)  # fmt: skip
"""Modules of this package whose text is compiled; the others may change without a new compilation."""


def sources() -> Iterator[Path]:
    """Yield the files whose text is compiled."""
    modules = (weft_core.timing, kv_tiers, finish, inputs, policy, reasons, retention)
    yield from (Path(str(module.__file__)) for module in modules)
    for package in (binding, order, routing):
        yield from sorted(Path(str(package.__file__)).parent.glob("*.py"))
    for name in COMPILED:
        yield from sorted(Path(__file__).parent.glob(f"{name}.py"))


def sources_hash() -> str:
    """Return a short hash over all compiled sources."""
    running = hashlib.sha256()
    for path in sources():
        running.update(path.name.encode())
        running.update(path.read_bytes())
    return running.hexdigest()[:16]


def compiled_before() -> bool:
    """Return whether the cache holds this version's event loop, so that the first simulation begins within a second."""
    return any(cache_folder().rglob("event_loop.run-*.nbi"))


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _fill(folder: Path, image: Path) -> None:
    """Copy an image's machine code into a still empty folder, all at once: others may be reading there."""
    if not image.is_dir() or any(folder.iterdir()):
        return
    whole = Path(tempfile.mkdtemp(dir=folder.parent))
    shutil.copytree(image, whole, dirs_exist_ok=True)
    try:
        whole.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(whole)


def cache_folder() -> Path:
    """Return where machine code is kept: WEFT_CACHE or the user's cache, else a temporary folder of this user.

    numba refuses a folder that it cannot write, so what an image brings in a read-only one is copied to the temporary.
    """
    home = os.environ.get("WEFT_CACHE")
    try:
        base = Path(home) if home else Path.home() / ".cache" / "weft"
    except RuntimeError:  # no home for this user
        base = Path(tempfile.gettempdir()) / "weft"
    chosen = base / "numba" / sources_hash()
    if _writable(chosen):
        return chosen
    own = Path(tempfile.gettempdir()) / f"weft-{os.getuid()}" / "numba" / chosen.name
    if _writable(own) and own.stat().st_uid == os.getuid():
        _fill(own, chosen)
        return own
    fallback = Path(tempfile.mkdtemp(prefix="weft-numba-"))
    _log.info("numba-cache-not-kept", extra={"folder": str(fallback)})
    return fallback


os.environ["NUMBA_CACHE_DIR"] = str(cache_folder())
os.environ.setdefault("NUMBA_OPT", "2")  # a tenth faster than at 1, and compiled in the same time
if "numba" in sys.modules:  # imported by somebody else: make it read the folder's name again
    sys.modules["numba"].config.reload_config()
numba = importlib.import_module("numba")
_register = importlib.import_module("numba.extending").register_jitable
_IrCompiler = importlib.import_module("weft_planner.simulation.ir_compiler").IrCompiler


def jitable(function: _Function) -> _Function:
    """Let compiled code call a function, which stays a plain Python function for everybody else."""
    register = _register(
        no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", pipeline_class=_IrCompiler
    )
    return cast(_Function, register(function))


def entry(function: _Function) -> _Function:
    """Compile a function of an array of integers that Python calls; its machine code is kept on disk."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        words = numba.types.Array(numba.types.int64, 1, "C")
        compiled = numba.njit(numba.types.void(words), cache=True, error_model="numpy", nogil=True)(function)
    finally:
        if collecting:
            gc.enable()
    return cast(_Function, compiled)


def on_first_call(function: _Function) -> _Function:
    """Compile a function that Python calls, when it first does; its machine code is kept on disk."""
    return cast(_Function, numba.njit(cache=True, error_model="numpy", nogil=True)(function))


def callback(function: Callable[[int], int]) -> object:
    """Compile a function of an address for compiled callers; its machine code, kept on disk, stands at ``.address``."""
    collecting = gc.isenabled()
    gc.disable()  # a compilation makes millions of objects that live to its end: looking for garbage is a seventh of it
    try:
        return numba.cfunc(numba.types.int64(numba.types.int64), cache=True, error_model="numpy")(function)
    finally:
        if collecting:
            gc.enable()


def _register_core() -> None:
    """Make every function of the core's costs and policies callable from compiled code."""
    for function in compilable_functions():
        jitable(function)


_register_core()
