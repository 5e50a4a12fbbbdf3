"""Sort the modules that a quantised checkpoint names into the parts of a model that may have a precision of their own.

Names are module paths, patterns of them, or regular expressions (``re:``), of one layer or of all. A part is left
alone when a name of all layers says so, or the names of single layers leave none out. The routed experts of a model
that has some are always quantised, and so is the feed-forward of one without.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from weft_core.dimensions import ModelDimensions

Part = Literal["attention", "attention output", "linear", "ffn", "experts"]
PARTS: tuple[Part, ...] = ("attention", "attention output", "linear", "ffn", "experts")

_LAYER = re.compile(r"layers?\.(\d+)(?:\.|\*|$)")
_WHOLE_LAYER = re.compile(r"layers?\.\d+\.?\*?$")
_SMALL = re.compile(r"bias|norm|index|sinks?$|conv1d")
_LINEAR = re.compile(r"linear_attn|mixer\.(?:in|out)_proj")
_ATTENTION = re.compile(r"attn|attention|mixer\.[qkvo]_proj")
_INPUT = re.compile(r"(?:^|\.)(?:q|k|v|qkv|q_a|q_b|kv_a|kv_b)_proj|with_mqa")
_OUTPUT = re.compile(r"(?:^|\.)o_proj")
_SHARED = re.compile(r"shared_experts?(?!_gate)|shared_mlp")
_MLP = re.compile(r"mlp\*|(?:mlp|feed_forward)(?:\.|\\\.)(?:\(|(?:gate|up|down|gate_up)_proj)")
_EXPERTS = re.compile(r"experts")


def part_of(name: str, model: ModelDimensions) -> Part | None:
    """Return the part that a module belongs to; an attention's output projection counts as attention.

    None: it is none of them, such as a router, a head, a bias, or an indexer (under 1 percent of attention).
    """
    if _SMALL.search(name):
        return None
    if _LINEAR.search(name):
        return "linear"
    if _ATTENTION.search(name):
        return "attention"
    if _SHARED.search(name):
        return "ffn"
    if model.experts > 1 and _EXPERTS.search(name):
        return "experts"
    return "ffn" if _MLP.search(name) else None


def parts_left_alone(names: Sequence[str], model: ModelDimensions) -> Iterator[Part]:
    """Yield the parts that are not quantised, where ``names`` are the modules that are not."""
    whole = [name for name in names if _WHOLE_LAYER.search(name)]

    def covered(part: Part, layers: int, *, but: re.Pattern[str] | None = None) -> bool:
        """Return whether names cover all layers: by one of all of them, or of each by itself."""
        single: set[int] = set()
        for name in names:
            if name not in whole and (part_of(name, model) != part or (but is not None and but.search(name))):
                continue
            layer = _LAYER.search(name)
            if layer is None:
                return True
            single.add(int(layer[1]))
        return len(single) >= layers > 0

    inputs = covered("attention", model.pair_layers, but=_OUTPUT)
    if inputs:
        yield "attention"
    if covered("attention", model.pair_layers, but=_INPUT):
        yield "attention output"
    # Kimi's linear attention has the names of its attention.
    if model.linear is not None and (covered("linear", model.linear.layers) or (model.latent is not None and inputs)):
        yield "linear"
    if model.experts > 1 and covered("ffn", model.expert_layers):
        yield "ffn"
