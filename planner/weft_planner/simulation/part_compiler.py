"""Compile functions that only other compiled functions call, without machine code of their own.

numba optimises every function together with all that it calls, and translates that into machine code, before it turns
to the next caller. Of the simulator's functions two dozen are called from Python or by address; for the others all this
is done again with each caller. Here their code is linked as it is, and optimised and translated once, in whatever
calls it: a first plan waits a third of the time.

Imported by ``compiled`` only, after it has told numba where machine code is stored.
"""

import importlib
from typing import Any

_compiler = importlib.import_module("numba.core.compiler")
_codegen = importlib.import_module("numba.core.codegen")
_make_function = importlib.import_module("numba._dynfunc").make_function
_Lowering = importlib.import_module("numba.core.typed_passes").NativeLowering
_register_pass = importlib.import_module("numba.core.compiler_machinery").register_pass


class _PartLibrary(_codegen.JITCodeLibrary):  # type: ignore[misc, name-defined]
    """The code of a function and of what it calls, as it is before optimisation."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


@_register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(_Lowering):  # type: ignore[misc, valid-type]
    _name = "weft_part_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state.cr
        name = lowered.fndesc.qualname
        key = _make_function(lowered.fndesc.lookup_module(), name, name, 0, lowered.env, (state.library,))
        state.targetctx.insert_user_function(key, lowered.fndesc, [state.library])
        state.cr = lowered._replace(cfunc=key)  # never called: callers find the code by it
        return True


class PartCompiler(_compiler.CompilerBase):  # type: ignore[misc, name-defined]
    """What ``register_jitable`` takes as its ``pipeline_class``."""

    def define_pipelines(self) -> list[Any]:
        """Return numba's own passes, but for the one that generates code."""
        pipeline = _compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
        pipeline.passes = [(_PartLowering if step is _Lowering else step, text) for step, text in pipeline.passes]
        pipeline.finalize()
        return [pipeline]
