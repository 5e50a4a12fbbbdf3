"""The adapters by engine type: the rest of the operator knows only ``EngineContainer`` and ``KvPorts``."""

from collections.abc import Mapping

from weft_core.plan import Role
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.render.engines import mock, neuron, sglang, tensorrt_llm, vllm
from weft_operator.render.engines.container import EngineContainer, EngineRequest, KvPorts

__all__ = ["ENGINES", "EngineContainer", "EngineRequest", "KvPorts", "engine_container", "engine_files", "kv_ports"]

_ADAPTERS = {
    "mock": mock.build_container,
    "neuron": neuron.build_container,
    "sglang": sglang.build_container,
    "tensorrt-llm": tensorrt_llm.build_container,
    "vllm": vllm.build_container,
}
_KV_PORTS = {
    "mock": mock.kv_ports,
    "neuron": neuron.kv_ports,
    "sglang": sglang.kv_ports,
    "tensorrt-llm": tensorrt_llm.kv_ports,
    "vllm": vllm.kv_ports,
}
ENGINES = tuple(sorted(_ADAPTERS))


def engine_container(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> EngineContainer:
    """Return what a worker's engine container runs."""
    return _ADAPTERS[spec.engine.type](spec, request)


def engine_files(spec: DisaggInferenceServiceSpec, *, paired: bool) -> Mapping[str, str]:
    """Return files that engines read beside the routers', by name; most engines need none."""
    if spec.engine.type == "neuron":
        return neuron.engine_files(spec)
    return tensorrt_llm.options_files(spec, paired=paired) if spec.engine.type == "tensorrt-llm" else {}


def kv_ports(spec: DisaggInferenceServiceSpec, role: Role) -> KvPorts:
    """Return the ports of a role's engines that those of the other role connect to."""
    return _KV_PORTS[spec.engine.type](spec, role)
