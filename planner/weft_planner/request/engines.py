"""Which workers of an engine can exchange KV, as a table: tensor-parallel degrees and block sizes that may pair."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from weft_planner.request.parts import Engine
from weft_planner.simulation.options import Handover


@dataclass(frozen=True, slots=True)
class Compatibility:
    """What an engine supports: a rule for (prefill, decode) degrees, whether block sizes may differ, and the source.

    ``handover`` is how KV moves, in the simulator's words: vLLM's decode engines pull it. ``slices``: routers can send
    it a prompt in slices, each of which it computes beside decode steps.
    """

    pairs: Callable[[int, int], bool]
    mixed_blocks: bool
    words: str
    source: str
    handover: Handover = "pull"
    slices: bool = False


def _one_divides(n: int, m: int) -> bool:
    return n % m == 0 or m % n == 0


def _any_pair(_n: int, _m: int) -> bool:
    return True


TABLE: dict[str, Compatibility] = {
    "vllm": Compatibility(
        _one_divides,
        mixed_blocks=False,
        words="one degree divides the other",
        source="vLLM 0.32, NIXL connector compatibility matrix: heterogeneous TP is supported for dense models and "
        "mixtures of experts, heterogeneous block sizes in part; larger prefill degrees since vllm pull request 27274 "
        "(vllm issue 43523 before)",
        slices=True,
    ),
    "sglang": Compatibility(
        _one_divides,
        mixed_blocks=False,
        words="one degree divides the other",
        source="SGLang, disaggregation/common/conn.py: attention ranks of both sides are mapped onto each other by "
        "whole multiples; pages of both sides must be equal (pull requests 6793, 15675)",
        handover="push",
    ),
    "tensorrt-llm": Compatibility(
        _any_pair,
        mixed_blocks=False,
        words="any degrees",
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


def barred_pairs(engine: Engine, prefill: Iterable[int], decode: Iterable[int]) -> frozenset[tuple[int, int]]:
    """Return the (prefill, decode) degrees that must not pair; all of them when the block sizes cannot."""
    row = compatibility_of(engine)
    pairs = ((n, m) for n in prefill for m in decode)
    if not blocks_pair(engine):
        return frozenset(pairs)
    if engine.pairs is not None:
        return frozenset(pair for pair in pairs if pair not in engine.pairs)
    return frozenset((n, m) for n, m in pairs if not row.pairs(n, m))


def blocks_pair(engine: Engine) -> bool:
    """Return whether the KV block sizes of both roles may pair: equal, listed, or free to differ."""
    sizes = engine.block_sizes or {}
    if "prefill" not in sizes or "decode" not in sizes or sizes["prefill"] == sizes["decode"]:
        return True
    return (sizes["prefill"], sizes["decode"]) in engine.block_pairs or (
        not engine.block_pairs and compatibility_of(engine).mixed_blocks
    )
