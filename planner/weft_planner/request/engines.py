"""Which workers of an engine can exchange KV, as a table: tensor-parallel degrees and block sizes that may pair.

Speculative decoding limits this further. Both roles run the same draft, whose KV moves with that of the model: engines
compare it when they meet (vLLM: pull request 49230) or answer wrongly where it differs (SGLang: pull request 17212).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from weft_core.dimensions import ModelDimensions
from weft_core.gpus import gpu_named
from weft_core.kv_tiers import KVWrites
from weft_core.layouts import LAYOUTS, LayoutKind
from weft_core.parallelism import Degree, Parallelism, parallelism_of
from weft_core.speculation import ENGINES as SPECULATIVE
from weft_planner.request.parts import Engine, EngineRole
from weft_planner.simulation.options import Handover, StepLimits


@dataclass(frozen=True, slots=True)
class Compatibility:
    """What an engine supports: a rule for (prefill, decode) degrees, whether block sizes may differ, and the source.

    ``handover`` is how KV moves, in the simulator's words: vLLM's decode engines pull it. ``slices``: routers can send
    it a prompt in slices, each of which it computes beside decode steps. ``local``: decode workers can prefill.
    ``fixed_role``: a worker starts as a prefill or a decode server, so none has both roles.
    ``prefix_cache``: prefill workers compute only what they have not computed before. ``places``: KV memory has a place
    as long as the context limit for each sequence of a decode worker's batch, and none for others. ``fixed_shapes``: it
    computes prompts of some lengths and whole batches alone, and pads others to them. ``writes``: when KV is written to
    tiers.
    """

    pairs: Callable[[Parallelism, Parallelism], bool]
    mixed_blocks: bool
    words: str
    source: str
    handover: Handover = "pull"
    slices: bool = False
    local: bool = True
    fixed_role: bool = False
    prefix_cache: bool = True
    places: bool = False
    fixed_shapes: bool = False
    writes: KVWrites = "through"


def _one_divides(n: Parallelism, m: Parallelism) -> bool:
    return n.tp % m.tp == 0 or m.tp % n.tp == 0


def _no_stages(n: Parallelism, m: Parallelism) -> bool:
    return n.pp == m.pp == 1 and _one_divides(n, m)


def _same_stages(n: Parallelism, m: Parallelism) -> bool:
    return m.pp in (1, n.pp) and _one_divides(n, m)


def _ranks_of_one(n: Parallelism, m: Parallelism) -> bool:
    return all(parts.dp == 1 or parts.tp == 1 for parts in (n, m))


def _tensors_alone(n: Parallelism, m: Parallelism) -> bool:
    return all(parts.pp == parts.dp == 1 and not parts.ep for parts in (n, m)) and _one_divides(n, m)


def _any_pair(_n: Parallelism, _m: Parallelism) -> bool:
    return True


TABLE: dict[str, Compatibility] = {
    "vllm": Compatibility(
        _no_stages,
        mixed_blocks=False,
        words="one tensor-parallel degree divides the other, and workers that exchange KV have no pipeline stages",
        source="vLLM 0.32, NIXL connector compatibility matrix: data parallelism is supported for all models, "
        "heterogeneous TP for dense models and mixtures of experts, heterogeneous block sizes in part, pipeline stages "
        "are not listed; larger prefill degrees since vllm pull request 27274 "
        "(vllm issue 43523 before)",
        slices=True,
    ),
    "sglang": Compatibility(
        _same_stages,
        mixed_blocks=False,
        words="one tensor-parallel degree divides the other, and decode has one pipeline stage or as many as prefill",
        source="SGLang, disaggregation/common/conn.py: attention ranks of both sides are mapped onto each other by "
        "whole multiples; pages of both sides must be equal (pull requests 6793, 15675)",
        handover="push",
        local=False,
        fixed_role=True,
    ),
    "tensorrt-llm": Compatibility(
        _ranks_of_one,
        mixed_blocks=False,
        words="any degrees, data-parallel ranks of one GPU each",
        source="TensorRT-LLM, docs/features/disagg-serving: parallelism of context and generation servers may differ, "
        "data type and heads of the KV cache may not; blocks that leave the GPU are copied to the host cache",
        fixed_role=True,
        writes="eviction",
    ),
    "neuron": Compatibility(
        _tensors_alone,
        mixed_blocks=False,
        words="one tensor-parallel degree divides the other, without stages, ranks or expert parallelism",
        source="AWS Neuron documentation, disaggregated inference: both roles choose their parallelism; unlike degrees "
        "exchange maps of KV heads (nxdi_kv_map_utils of its vLLM fork), the prefill's token goes to the client, and "
        "automatic prefix caching is not supported",
        handover="push",
        local=False,
        fixed_role=True,
        prefix_cache=False,
        places=True,
        fixed_shapes=True,
    ),
    "mock": Compatibility(
        _any_pair,
        mixed_blocks=True,
        words="any degrees",
        source="the mock engine moves tokens, not blocks",
        slices=True,
    ),
}
UNKNOWN = Compatibility(_any_pair, mixed_blocks=True, words="any degrees", source="no engine is named")


def compatibility_of(engine: Engine) -> Compatibility:
    """Return the table's row of an engine; one without a row may pair as it likes."""
    return TABLE.get(engine.type, UNKNOWN)


def has_fixed_roles(engine: Engine) -> bool:
    """Return whether a worker's role is fixed when it starts: another role costs a restart."""
    return engine.fixed_roles or compatibility_of(engine).fixed_role


def layout_fault(engine: Engine, kind: LayoutKind) -> str:
    """Say why an engine's workers cannot make a layout of a kind, empty where they can."""
    row = compatibility_of(engine)
    if kind == "colocated" and not row.local:
        return f"decode workers of {engine.type} take only what a prefill worker computed"
    if kind not in ("symmetric", "hybrid"):
        return ""
    if row.fixed_role:
        return f"a worker of {engine.type} starts with one role, and {kind} layouts have workers with both"
    if engine.fixed_roles:
        return (
            f"{kind} layouts have workers with both roles, and the service has different engines or pods for each: "
            "engine.prefill, engine.decode, engine.kvTransfer.blockTokens or podTemplates"
        )
    return ""


def layouts_of(engine: Engine) -> tuple[LayoutKind, ...]:
    """Return the kinds of layouts that a plan may have: those that are named, else all that the engine can run."""
    return engine.layouts or tuple(kind for kind in LAYOUTS if not layout_fault(engine, kind))


def layout_faults(engine: Engine) -> Iterator[str]:
    """Yield why layouts that are named cannot be."""
    for kind in engine.layouts or ():
        fault = layout_fault(engine, kind)
        if fault:
            yield f"engine.layouts: {fault}; remove {kind}, or name no layouts to allow all that the engine can run"


def step_limits(role: EngineRole) -> StepLimits:
    """Return the limits of a role's engines in the simulator's words."""
    return StepLimits(role.max_num_seqs, role.max_num_batched_tokens)


def default_chunk(kind: str, gpu_type: str) -> int:
    """Return the tokens of an engine's own chunk of a prompt where no ``maxNumBatchedTokens`` is given.

    vLLM's default depends on the GPU (0.32, vllm/engine/arg_utils.py: the default batch of a server): 16384 where it
    has 160 GiB and more, 8192 from 70 GiB on but for A100, and 2048 elsewhere. For the other engines, and unknown
    GPUs, 8192 is taken.
    """
    gpu = gpu_named(gpu_type)
    if kind != "vllm" or gpu is None:
        return USUAL_CHUNK
    if gpu.name.startswith("nvidia-a100"):
        return VLLM_CHUNKS[0][1]
    return max(tokens for least, tokens in VLLM_CHUNKS if gpu.memory_bytes >= least)


def barred_pairs(
    engine: Engine, prefill: Iterable[Degree], decode: Iterable[Degree]
) -> frozenset[tuple[Degree, Degree]]:
    """Return the (prefill, decode) degrees that must not pair; all of them when the block sizes cannot."""
    row = compatibility_of(engine)
    pairs = ((n, m) for n in prefill for m in decode)
    if not blocks_pair(engine):
        return frozenset(pairs)
    if engine.pairs is not None:
        return frozenset(pair for pair in pairs if pair not in engine.pairs)
    return frozenset((n, m) for n, m in pairs if not row.pairs(parallelism_of(n), parallelism_of(m)))


USUAL_CHUNK = 8192
VLLM_CHUNKS = ((0, 2048), (70 * 2**30, 8192), (160 * 2**30, 16384))
"""Least memory of a GPU in bytes, and vLLM's default of ``--max-num-batched-tokens`` from there on."""
"""Default tokens of a vLLM server's step by the memory of its GPU."""
MAX_PAIRS = 4
"""Pairs of degrees that a message names."""


def pairing_rule(engine: Engine) -> str:
    """Return by what rule workers of an engine pair."""
    if not blocks_pair(engine):
        sizes = engine.block_sizes or {}
        return f"{engine.type} pairs no blocks of {sizes['prefill']} tokens with those of {sizes['decode']}"
    allowed = ", ".join(f"{n} with {m}" for n, m in (engine.pairs or ())[:MAX_PAIRS])
    return f"only {allowed} may" if allowed else f"in {engine.type} {compatibility_of(engine).words}"


def blocks_pair(engine: Engine) -> bool:
    """Return whether the KV block sizes of both roles may pair: equal, listed, or free to differ."""
    sizes = engine.block_sizes or {}
    if "prefill" not in sizes or "decode" not in sizes or sizes["prefill"] == sizes["decode"]:
        return True
    return (sizes["prefill"], sizes["decode"]) in engine.block_pairs or (
        not engine.block_pairs and compatibility_of(engine).mixed_blocks
    )


_STAGES = {
    "vllm": "vLLM, docs/features/speculative_decoding: pipeline parallelism is not composable",
    "sglang": "SGLang: decode engines that draft have one stage",
    "tensorrt-llm": "TensorRT-LLM, feature combination matrix",
}
"""Engines that cannot draft with pipeline stages, and where that is said."""


def speculation_faults(engine: Engine, degrees: Iterable[Degree]) -> Iterator[str]:
    """Yield why an engine cannot decode speculatively as asked on workers of these degrees; the model aside.

    A request that names no engine is not limited.
    """
    asked = engine.speculative
    if asked is None or not engine.type:
        return
    if engine.type not in SPECULATIVE:
        yield (
            f"engine.speculative: {engine.type} cannot be started with it; remove it, or choose one of "
            f"{', '.join(SPECULATIVE)}"
        )
    for degree in sorted(set(degrees)):
        parts = parallelism_of(degree)
        if parts.pp > 1 and engine.type in _STAGES:
            yield (
                f"capacity.pools.parallelism: {degree} has pipeline stages, with which {engine.type} cannot decode "
                f"speculatively ({_STAGES[engine.type]}); set pp to 1 or remove engine.speculative"
            )
        if parts.dp > 1 and engine.type == "sglang" and asked.method == "ngram":
            yield (
                f"engine.speculative.method: sglang takes no n-grams with data-parallel attention ({degree}); choose "
                "mtp or eagle, or set dp to 1"
            )


def draft_fault(engine: Engine, model: ModelDimensions) -> str:
    """Say why the KV of an engine's draft for a model cannot move between workers, empty where it can."""
    asked = engine.speculative
    if asked is not None and asked.method == "eagle" and engine.type == "sglang" and model.latent is not None:
        return (
            f"method: {model.name} has latent attention and EAGLE drafts have heads, and sglang moves the KV of both "
            "alike (pull request 20698); choose mtp or ngram"
        )
    return ""


def draft_notes(engine: Engine, model: ModelDimensions | None) -> list[str]:
    """Return what an engine's speculative decoding of a model is not known to do well."""
    asked = engine.speculative
    if asked is None or model is None:
        return []
    if engine.type == "vllm" and model.linear is not None:
        if asked.method == "ngram":
            return ["vLLM has answered wrongly with n-grams and linear attention (issue 39273); check answers first"]
        matrix = "speculative decoding with its NIXL connector is not validated for models with linear attention"
        return [f"vLLM's compatibility matrix: {matrix}; try it before you rely on it"]
    if engine.type == "tensorrt-llm" and asked.method == "mtp" and model.latent is None:
        return ["TensorRT-LLM documents mtp for DeepSeek models alone; try it before you rely on it"]
    return []
