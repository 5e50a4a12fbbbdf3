"""Choose the adapter of an engine: by its type, or for the engine of a service."""

from collections.abc import Callable, Mapping

from weft_router.config import RouterConfig
from weft_router.engines.adapter import Adapter, AdapterOptions
from weft_router.engines.neuron import Neuron
from weft_router.engines.openai import OpenAi
from weft_router.engines.sglang import Sglang
from weft_router.engines.tensorrt_llm import TensorRtLlm
from weft_router.engines.vllm import Vllm

_DEFAULT = AdapterOptions()
ADAPTERS: Mapping[str, Callable[[AdapterOptions], Adapter]] = {
    "vllm": Vllm,
    "mock": Vllm,
    "sglang": Sglang,
    "tensorrt-llm": TensorRtLlm,
    "neuron": Neuron,
    "openai": OpenAi,
}


def adapter_for(kind: str, *, traits: AdapterOptions = _DEFAULT) -> Adapter:
    """Return the adapter of an engine type.

    Raises:
        ValueError: there is none of this name.
    """
    make = ADAPTERS.get(kind)
    if make is None:
        raise ValueError(f"engine.type: {kind!r} is not known; use one of {', '.join(sorted(ADAPTERS))}")
    return make(traits)


def adapter_of(config: RouterConfig) -> Adapter:
    """Return the adapter of the engine that a service runs."""
    engine, routing = config.engine, config.routing
    return adapter_for(
        engine.type,
        traits=AdapterOptions(
            bidirectional=engine.bidirectional,
            bootstrap_port=engine.bootstrap_port,
            resume="sampled" if routing.resume == "auto" else routing.resume,
            show_first=routing.first_token_from_prefill == "auto",  # noqa: S105  (no password)
            slice_block=routing.slices.block,
        ),
    )
