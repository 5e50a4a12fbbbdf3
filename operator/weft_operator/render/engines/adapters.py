"""The adapters by engine type: the rest of the operator knows only ``EngineContainer`` and ``KvPorts``."""

from collections.abc import Mapping

from weft_core.plan import Role
from weft_operator.api.engine_merge import engine_of_role
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.render.engines import mock, neuron, sglang, tensorrt_llm, vllm
from weft_operator.render.engines.container import EngineContainer, EngineRequest, KvPorts
from weft_operator.render.engines.vllm_connectors import tier_files

__all__ = [
    "ENGINES",
    "EngineContainer",
    "EngineRequest",
    "KvPorts",
    "engine_container",
    "engine_files",
    "has_fixed_roles",
    "kv_ports",
]

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
_FIXED_ROLE = {
    "mock": mock.FIXED_ROLE,
    "neuron": neuron.FIXED_ROLE,
    "sglang": sglang.FIXED_ROLE,
    "tensorrt-llm": tensorrt_llm.FIXED_ROLE,
    "vllm": vllm.FIXED_ROLE,
}
ENGINES = tuple(sorted(_ADAPTERS))


def engine_container(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> EngineContainer:
    """Return what a worker's engine container runs."""
    return _ADAPTERS[spec.engine.type](spec, request)


def engine_files(spec: DisaggInferenceServiceSpec, *, paired: bool) -> Mapping[str, str]:
    """Return files that engines read beside the routers', by name; most engines need none."""
    if spec.engine.type == "neuron":
        return neuron.engine_files(spec)
    if spec.engine.type == "vllm":
        return tier_files(spec)
    return tensorrt_llm.options_files(spec, paired=paired) if spec.engine.type == "tensorrt-llm" else {}


def kv_ports(spec: DisaggInferenceServiceSpec, role: Role) -> KvPorts:
    """Return the ports of a role's engines that those of the other role connect to."""
    return _KV_PORTS[spec.engine.type](spec, role)


def has_fixed_roles(spec: DisaggInferenceServiceSpec) -> bool:
    """Return whether a worker's role is fixed when its pod starts.

    It is where the engine starts as a prefill or a decode server, or where the spec gives the roles different engines
    or pods. All other workers run one pod template, and their role can be changed while they serve.
    """
    engine, transfer = spec.engine, spec.engine.kv_transfer
    return (
        _FIXED_ROLE[engine.type]
        or engine_of_role(engine, "prefill") != engine_of_role(engine, "decode")
        or transfer.block_size("prefill") != transfer.block_size("decode")
        or any(item.component in ("prefill", "decode") for item in spec.pod_templates)
    )
