"""Compile functions that only other compiled functions call to LLVM IR; their callers generate the machine code.

numba optimises every function together with all that it calls and generates machine code for the result, then does the
same for each caller. Two dozen of the simulator's functions are called from Python or by address. Only these need
machine code; the others are linked into them as IR and optimised there, once.

Imported by ``compiled`` only, after it has set numba's cache folder.
"""

import importlib
from typing import Any

_compiler = importlib.import_module("numba.core.compiler")
_codegen = importlib.import_module("numba.core.codegen")
_make_function = importlib.import_module("numba._dynfunc").make_function
_Lowering = importlib.import_module("numba.core.typed_passes").NativeLowering
_register_pass = importlib.import_module("numba.core.compiler_machinery").register_pass


class IrLibrary(_codegen.JITCodeLibrary):  # type: ignore[misc, name-defined]
    """The IR of a function and of what it calls, without module passes and machine code."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


@_register_pass(mutates_CFG=True, analysis_only=False)
class _IrLowering(_Lowering):  # type: ignore[misc, valid-type]
    _name = "weft_ir_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = IrLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state.cr
        name = lowered.fndesc.qualname
        key = _make_function(lowered.fndesc.lookup_module(), name, name, 0, lowered.env, (state.library,))
        state.targetctx.insert_user_function(key, lowered.fndesc, [state.library])
        state.cr = lowered._replace(cfunc=key)  # never called: callers find the IR by it
        return True


class IrCompiler(_compiler.CompilerBase):  # type: ignore[misc, name-defined]
    """A ``pipeline_class`` for ``register_jitable``."""

    def define_pipelines(self) -> list[Any]:
        """Return numba's own passes with ``_IrLowering`` in place of its lowering.

        Raises:
            RuntimeError: this version of numba lowers in another way.
        """
        pipeline = _compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes = [(_IrLowering if step is _Lowering else step, text) for step, text in pipeline.passes]
        if [step for step, _ in passes].count(_IrLowering) != 1:
            raise RuntimeError("this version of numba has other passes; install a version that pyproject.toml allows")
        pipeline.passes = passes
        pipeline.finalize()
        return [pipeline]
