"""Which workers of an engine can exchange KV, as a table: tensor-parallel degrees and block sizes that may pair."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from weft_core.parallelism import Degree, Parallelism, parallelism_of
from weft_planner.request.parts import Engine, EngineRole
from weft_planner.simulation.options import Handover, StepLimits


@dataclass(frozen=True, slots=True)
class Compatibility:
    """What an engine supports: a rule for (prefill, decode) degrees, whether block sizes may differ, and the source.

    ``handover`` is how KV moves, in the simulator's words: vLLM's decode engines pull it. ``slices``: routers can send
    it a prompt in slices, each of which it computes beside decode steps.
    """

    pairs: Callable[[Parallelism, Parallelism], bool]
    mixed_blocks: bool
    words: str
    source: str
    handover: Handover = "pull"
    slices: bool = False


def _one_divides(n: Parallelism, m: Parallelism) -> bool:
    return n.tp % m.tp == 0 or m.tp % n.tp == 0


def _no_stages(n: Parallelism, m: Parallelism) -> bool:
    return n.pp == m.pp == 1 and _one_divides(n, m)


def _same_stages(n: Parallelism, m: Parallelism) -> bool:
    return m.pp in (1, n.pp) and _one_divides(n, m)


def _ranks_of_one(n: Parallelism, m: Parallelism) -> bool:
    return all(parts.dp == 1 or parts.tp == 1 for parts in (n, m))


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
    ),
    "tensorrt-llm": Compatibility(
        _ranks_of_one,
        mixed_blocks=False,
        words="any degrees, data-parallel ranks of one GPU each",
        source="TensorRT-LLM, docs/features/disagg-serving: parallelism of context and generation servers may differ, "
        "data type and heads of the KV cache may not",
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


def step_limits(role: EngineRole) -> StepLimits:
    """Return the limits of a role's engines in the simulator's words."""
    return StepLimits(role.max_num_seqs, role.max_num_batched_tokens)


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


def blocks_pair(engine: Engine) -> bool:
    """Return whether the KV block sizes of both roles may pair: equal, listed, or free to differ."""
    sizes = engine.block_sizes or {}
    if "prefill" not in sizes or "decode" not in sizes or sizes["prefill"] == sizes["decode"]:
        return True
    return (sizes["prefill"], sizes["decode"]) in engine.block_pairs or (
        not engine.block_pairs and compatibility_of(engine).mixed_blocks
    )
