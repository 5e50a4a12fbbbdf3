"""Take the times of whole passes from silicon tables: operator times that NVIDIA measured on its GPUs.

The tables, and what composes passes of them, are the package ``aiconfigurator-core`` (Apache-2.0): vLLM's, SGLang's and
TensorRT-LLM's kernels on A100, H100, H200, B200, B300, GB200, GB300, L40S and RTX PRO 6000. No GPU and no network is
needed. What an engine adds to its kernels is not in the tables: it is given as ``Overheads``.
"""

import json
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from weft_core.config_fields import ModelConfigError
from weft_core.dimensions import ModelDimensions
from weft_core.hf_config import config_of_text, dimensions_of_config
from weft_core.parallelism import Degree, parallelism_of
from weft_planner.profiling import deepep
from weft_planner.profiling.knowledge import KnownHardware
from weft_planner.profiling.measurements import GridCell, Measurement
from weft_planner.profiling.operator_sources import OperatorTimes, not_measured, operator_times, shares_of, sum_of
from weft_planner.profiling.operators import ASSUMED_OVERHEADS, ComposedTimings, OperatorGrid, Overheads, cells
from weft_planner.silicon.all_to_all import AllToAll
from weft_planner.silicon.systems import BACKENDS, SYSTEMS

GRID = OperatorGrid(
    increments=(16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
    batches=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512),
    chunks=(32, 128, 512, 2048, 8192), chunk_histories=(0, 4096, 16384),
)  # fmt: skip
"""To batches of 512, as engines decode: above 256 steps may grow by a third of what they grow below. Steps between
powers of two are in it, because a fit that has seen only these can be 10 % off where experts fill up."""
NOISE = 1.0
"""How far rows may contradict each other: where kernels change, a longer prefill may be the faster one."""

_ERRORS = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""What the package raises where its tables lack something: errors of its own, which are some of these, and these."""
_INSTALL = "aiconfigurator-core is not installed: pip install 'weft[silicon]' (Python 3.11 to 3.13)"


class SiliconError(Exception):
    """Report tables that are not installed, or that lack a model or an operator; the message says which."""


class SiliconEngine(Protocol):
    """A model compiled for one system, backend and degree; all times are milliseconds."""

    def predict_prefill_latency(self, bs: int, isl: int, prefix: int = 0) -> float:
        """Return a prefill of ``bs`` prompts of ``isl`` tokens, the first ``prefix`` of them cached."""

    def predict_decode_latency(self, bs: int, isl: int, osl: int = 2) -> float:
        """Return a decode step of ``bs`` sequences after prompts of ``isl`` tokens."""

    def mixed_step_breakdown(
        self, ctx_tokens: int, gen_tokens: int, isl: int, osl: int, prefix: int = 0
    ) -> tuple[float, float, float, float]:
        """Return a mixed step: all of it, all but attention, the prefill's attention, and the decodes'."""

    def run_static_per_op(
        self, *, batch_size: int, isl: int, osl: int, prefix: int = 0
    ) -> tuple[Sequence[tuple[str, float, float, str]], Sequence[tuple[str, float, float, str]]]:
        """Return name, time, energy and source of each operator of the prefill and of the decode steps."""


Compile = Callable[[Degree], SiliconEngine]
"""Compile one model for a degree."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Which tables: the package's names of system and backend, and the backend's version (empty: the current one)."""

    system: str
    backend: str
    version: str = ""
    all_to_all: AllToAll = ""


def tables_of(gpu: str, engine: str, version: str = "", all_to_all: AllToAll = "") -> Tables:
    """Return the tables of a GPU type, an engine type and a way to exchange tokens.

    Raises:
        SiliconError: there are none.
    """
    if gpu not in SYSTEMS:
        what = f"there are no tables of {gpu}" if gpu else "give --gpu"
        raise SiliconError(f"gpu: {what}; use one of {', '.join(SYSTEMS)}")
    if engine not in BACKENDS:
        raise SiliconError(f"backend: there are no tables of {engine}; use one of {', '.join(BACKENDS)}")
    if all_to_all and BACKENDS[engine] not in deepep.BACKENDS:
        raise SiliconError(f"all-to-all: {engine} chooses the kernels itself; leave it out")
    return Tables(SYSTEMS[gpu], BACKENDS[engine], version, all_to_all)


def package_version() -> str:
    """Return the version of the package with the tables.

    Raises:
        SiliconError: it is not installed.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("aiconfigurator-core")
    except PackageNotFoundError as error:
        raise SiliconError(_INSTALL) from error


def release(tables: Tables) -> str:
    """Return the backend's version that the tables are of."""
    from aiconfigurator_core.sdk.perf_database import resolve_query_version

    return str(resolve_query_version(tables.system, tables.backend, tables.version or "current"))


@contextmanager
def compiler(
    model: ModelDimensions, tables: Tables, config: Mapping[str, object] | None = None, *, nextn: int = 0
) -> Iterator[Compile]:
    """Give what compiles a model for a degree.

    ``config`` is the model's config.json; without one the package's own is taken that has the same dimensions, or one
    that the dimensions of a plain dense model make up. ``nextn`` is the package's word for the tokens that the model's
    next-token-prediction layers draft: decode steps verify them (not with DeepEP's kernels).

    Raises:
        SiliconError: the package is not installed, or the model needs a config.json.
    """
    try:
        from aiconfigurator_core.sdk.engine import EngineHandle
    except ImportError as error:
        raise SiliconError(_INSTALL) from error
    logging.getLogger("aiconfigurator_core").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="weft-silicon-") as folder:
        # A folder, never a name: the package downloads what it does not know.
        body = config or _config_in_package(model) or plain_config(model)
        Path(folder, "config.json").write_text(json.dumps(body), encoding="utf-8")

        def compile_for(degree: Degree) -> SiliconEngine:
            parts = parallelism_of(degree)
            precision = precision_of_kv(model)
            by_deepep = tables.all_to_all == "deepep" and parts.ep and parts.expert_gpus > 1
            try:
                if by_deepep:
                    of_deepep: SiliconEngine = deepep.compile_with_deepep(
                        folder, tables.system, tables.backend, tables.version, parts, precision
                    )
                    return of_deepep
                engine: SiliconEngine = EngineHandle.compile(
                    folder,
                    tables.system,
                    tables.backend,
                    backend_version=tables.version or None,
                    tp_size=parts.tp,
                    pp_size=parts.pp,
                    attention_dp_size=parts.dp,
                    moe_tp_size=1 if parts.ep else parts.expert_gpus,
                    moe_ep_size=parts.expert_gpus if parts.ep else 1,
                    nextn=nextn,
                    **precision,
                )
            except _ERRORS as error:
                raise SiliconError(_first_line(error)) from error
            return engine

        yield compile_for


def precision_of_kv(model: ModelDimensions) -> dict[str, str]:
    """Return the options for the precision of the KV cache: by itself the package takes 8 bits for 8-bit checkpoints.

    Attention over a 16-bit cache computes in 16 bits; over an 8-bit cache as the engine does by itself.
    """
    if model.kv_dtype_bytes > 1:
        return {"kvcache_quant_mode": "bfloat16", "fmha_quant_mode": "bfloat16"}
    return {"kvcache_quant_mode": "fp8"}


def _config_in_package(model: ModelDimensions) -> Mapping[str, object] | None:
    """Return the package's own config.json of a language model with these dimensions; None: it has none."""
    import aiconfigurator_core

    folder = Path(aiconfigurator_core.__file__).parent / "model_configs"
    equal: dict[str, Mapping[str, object]] = {}
    for path in sorted(folder.glob("*_config.json")):
        name = path.name.removesuffix("_config.json")
        if path.name.endswith("_hf_quant_config.json") or (folder / f"{name}_hf_quant_config.json").exists():
            continue  # the precision of such a model is not in its config.json
        try:
            config = config_of_text(path.read_text(encoding="utf-8"))
            found = dimensions_of_config(model.name, config)
            if replace(found, encoder_params=model.encoder_params) == model:
                equal[name.replace("--", "/")] = config
        except ModelConfigError:
            continue
    # Of several with the same language model: itself, else one without a vision tower.
    name = min(equal, key=lambda name: (name != model.name, "-VL-" in name, name), default="")
    return equal.get(name)


def plain_config(model: ModelDimensions) -> dict[str, object]:
    """Return a config.json of a dense model with gated layers, full attention and 16-bit weights.

    Raises:
        SiliconError: the model is another one.
    """
    plain = ModelDimensions(
        model.name, model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim, model.intermediate,
        model.vocab, tied_embeddings=model.tied_embeddings,
    )  # fmt: skip
    if model != plain:
        raise SiliconError(
            f"{model.name}: the tables have no such model, and only a dense one with full attention and 16-bit weights "
            "follows from its dimensions; give its config.json (--config, spec.model.config)"
        )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.intermediate,
        "vocab_size": model.vocab,
        "tie_word_embeddings": model.tied_embeddings,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    }


def pass_seconds(engine: SiliconEngine, cell: GridCell, overheads: Overheads = ASSUMED_OVERHEADS) -> float:
    """Return the seconds of the pass that a cell describes."""
    if cell.function == "prefill":
        return _prefill(engine, cell.history, cell.increment) / 1e3 + overheads.prefill
    if not cell.chunk:
        return engine.predict_decode_latency(cell.batch, _held(cell), 2) / 1e3 + overheads.step
    return _mixed(engine, cell) / 1e3 + overheads.step


def _prefill(engine: SiliconEngine, history: int, tokens: int) -> float:
    """Return the milliseconds of a prefill.

    The package takes the share of the pairs that are new of an attention over all, and so of the least time that its
    kernel takes: short prefills would be faster with a history than without.
    """
    alone = engine.predict_prefill_latency(1, tokens, 0)
    return max(alone, engine.predict_prefill_latency(1, history + tokens, history)) if history else alone


def _mixed(engine: SiliconEngine, cell: GridCell) -> float:
    """Return the milliseconds of a mixed step.

    The package composes one of a chunk without a history. With one it divides attention by the chunks of the whole
    prompt although the history's pairs are not in it, so what the history adds is taken from a prefill. The decodes may
    hold other lengths than the chunk: their attention is asked for by itself or, where the package counts it as a
    prefill's (latent attention), it is what their contexts add to a decode step.
    """
    batch, held = cell.batch, _held(cell)
    _, shared, chunk, _ = engine.mixed_step_breakdown(cell.chunk, batch, cell.chunk, 2, 0)
    decode = engine.mixed_step_breakdown(cell.chunk, batch, held, 2, 0)[3]
    if not decode and batch:
        decode = engine.predict_decode_latency(batch, held, 2) - engine.predict_decode_latency(batch, 1, 2)
    history = _prefill(engine, cell.history, cell.chunk) - _prefill(engine, 0, cell.chunk)
    return shared + chunk + max(0.0, decode) + history


@dataclass(frozen=True, slots=True)
class SiliconTimings:
    """The times of passes by silicon tables, what is left out and why, and what the provenance says of it."""

    rows: tuple[Measurement, ...]
    left_out: tuple[str, ...]
    notes: Mapping[str, str]


def measure(
    facts: KnownHardware,
    tables: Tables,
    *,
    degrees: Sequence[Degree],
    grid: OperatorGrid = GRID,
    overheads: Overheads = ASSUMED_OVERHEADS,
    config: Mapping[str, object] | None = None,
    progress: Callable[[int, int, GridCell], None] = lambda _done, _total, _cell: None,
) -> SiliconTimings:
    """Return the times of a grid at all degrees that fit; ``progress`` gets (done, total, cell).

    ``config`` is the model's config.json, as in ``compiler``.

    Raises:
        SiliconError: the package is not installed, the model is not known, or the tables lack it at every degree.
    """
    if facts.model is None:
        raise SiliconError("model: it is unknown; give its config.json by --config")
    analytic = facts.analytic(degrees)
    fitting = sorted(n for n in degrees if analytic and n in analytic.degrees)
    left_out = [f"degree {n}: the model does not fit" for n in degrees if n not in fitting]
    capacity = {n: analytic.kv_capacity(n) for n in fitting} if analytic else {}
    wanted = cells(grid, fitting, kv_capacity=capacity)
    with compiler(facts.model, tables, config) as compile_for:
        composed, times = compose(compile_for, wanted, overheads=overheads, progress=progress)
    rows = _of_whole_degrees(composed.rows)
    if not rows:
        raise SiliconError("\n".join((*composed.left_out, *left_out)[:10]) or "the model fits at no degree")
    of_rows = sum_of(times[degree] for degree in {row.cell.degree for row in rows})
    notes = {
        "source": "silicon",
        "tables": f"aiconfigurator-core {package_version()}, {tables.system}, {tables.backend} {release(tables)}",
        "operators": ", ".join(f"{share:.0%} {source}" for source, share in shares_of(of_rows).items())
        + " (shares of the time)",
        "overheads": f"prefill {overheads.prefill:g} s, step {overheads.step:g} s",
    }
    if named := not_measured(of_rows):
        notes["notMeasured"] = named
    if tables.all_to_all:
        notes["allToAll"] = tables.all_to_all
    return SiliconTimings(rows, (*composed.left_out, *left_out), notes)


def _of_whole_degrees(rows: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Return the rows of degrees that have prefills and decode steps: one without the other makes no profile."""
    prefills, steps = (
        {row.cell.degree for row in rows if row.cell.function == function and not row.cell.chunk}
        for function in ("prefill", "step")
    )
    return tuple(row for row in rows if row.cell.degree in prefills & steps)


def compose(
    compile_for: Compile,
    wanted: Sequence[GridCell],
    *,
    overheads: Overheads = ASSUMED_OVERHEADS,
    progress: Callable[[int, int, GridCell], None] = lambda _done, _total, _cell: None,
) -> tuple[ComposedTimings, Mapping[Degree, OperatorTimes]]:
    """Return the time of every cell's pass, and each degree's milliseconds by source and operator.

    What the tables lack is left out, and said.
    """
    engines: dict[Degree, SiliconEngine | None] = {}
    rows: list[Measurement] = []
    left_out: Counter[str] = Counter()
    times: dict[Degree, OperatorTimes] = {}
    for done, cell in enumerate(wanted):
        progress(done, len(wanted), cell)
        if cell.degree not in engines:
            try:
                engines[cell.degree] = compile_for(cell.degree)
            except SiliconError as error:
                engines[cell.degree] = None
                left_out[f"degree {cell.degree}: {error}"] = 0
        engine = engines[cell.degree]
        if engine is None:
            continue
        try:
            seconds, parts = pass_seconds(engine, cell, overheads), _operators_of(engine, cell)
        except _ERRORS as error:
            left_out[f"degree {cell.degree}, {cell.function}s: {_first_line(error)}"] += 1
            continue
        rows.append(Measurement(cell, seconds, str(cell)))
        times[cell.degree] = sum_of((times.get(cell.degree, {}), parts))
    reasons = tuple(f"{why} ({shapes} shapes)" if shapes else why for why, shapes in left_out.items())
    return ComposedTimings(tuple(rows), reasons), times


def _operators_of(engine: SiliconEngine, cell: GridCell) -> OperatorTimes:
    """Return the milliseconds of the operators of a prefill or a decode step; the tables have none of mixed steps."""
    if cell.chunk:
        return {}
    history, new = (cell.history, cell.increment) if cell.function == "prefill" else (0, _held(cell))
    prefill, decode = engine.run_static_per_op(batch_size=max(1, cell.batch), isl=history + new, osl=2, prefix=history)
    return operator_times(prefill if cell.function == "prefill" else decode)


def _held(cell: GridCell) -> int:
    """Return what each sequence of a step holds before the token that the step writes."""
    return max(1, cell.context // max(1, cell.batch) - 1)


def _first_line(error: Exception) -> str:
    """Return what the package says is lacking, without the paths of its files."""
    line = str(error).split("\n", 1)[0].split(" at /", 1)[0].removeprefix("perf database error: ")
    return line[:300] or type(error).__name__
