"""Choose the adapter of a kind of engine."""

from collections.abc import Callable, Mapping

from weft_router.engines.adapter import Adapter, Traits
from weft_router.engines.neuron import Neuron
from weft_router.engines.openai import OpenAi
from weft_router.engines.sglang import Sglang
from weft_router.engines.tensorrt_llm import TensorRtLlm
from weft_router.engines.vllm import Vllm

_DEFAULT = Traits()
ADAPTERS: Mapping[str, Callable[[Traits], Adapter]] = {
    "vllm": Vllm,
    "mock": Vllm,
    "sglang": Sglang,
    "tensorrt-llm": TensorRtLlm,
    "neuron": Neuron,
    "openai": OpenAi,
}


def adapter_for(kind: str, *, traits: Traits = _DEFAULT) -> Adapter:
    """Return the adapter of an engine type.

    Raises:
        ValueError: there is none of this name.
    """
    make = ADAPTERS.get(kind)
    if make is None:
        raise ValueError(f"engine.type: {kind!r} is not known; use one of {', '.join(sorted(ADAPTERS))}")
    return make(traits)
