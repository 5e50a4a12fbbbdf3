"""The mock engine: follows the cost profile in real time, needs no GPU, speaks vLLM's protocol.

Where a service has KV cache tiers it is given vLLM's flag for them, which it checks, and the sizes of those of a
worker's own, which it models. It keeps no bytes in them, so its pods have no memory or volumes for them.
"""

from weft_core.parallelism import parallelism_of
from weft_core.plan import Role
from weft_operator.api.engine_merge import engine_of_role
from weft_operator.api.engine_parts import MockEngine
from weft_operator.api.model import known_dimensions
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.render.engines.adapter_source import adapter_places, loads_at_run_time
from weft_operator.render.engines.container import (
    ENGINE_PORT,
    LEADER,
    LOOPBACK,
    RANK,
    RENDEZVOUS_PORT,
    SIDE_CHANNEL_PORT,
    EngineContainer,
    EngineRequest,
    KvPorts,
    given_flags,
)
from weft_operator.render.engines.kv_events import events_flag, events_port
from weft_operator.render.engines.kv_tiers import worker_tiers
from weft_operator.render.engines.model_source import weights_of
from weft_operator.render.engines.vllm_connectors import transfer_config

FIXED_ROLE = False
_AS_VLLM = ("mock", "vllm")
"""The engines that a mock engine stands in for with vLLM's connectors."""


def kv_ports(_spec: DisaggInferenceServiceSpec, _role: Role) -> KvPorts:
    """Return the side channel's port."""
    return KvPorts(single=(SIDE_CHANNEL_PORT,), spans=())


def _shared_work(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> str | None:
    """Return the share of a step's work that data-parallel ranks do together; None for one rank or unknown models."""
    if parallelism_of(request.degree).dp == 1:
        return None
    dimensions = known_dimensions(spec.model)
    return None if dimensions is None else f"{dimensions.expert_share:.3g}"


def build_container(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> EngineContainer:
    """Return the mock engine's arguments; the image's entry point is the ``weft`` program.

    Memory and times are its cost profile's, so there is nothing for ``memoryFraction`` and ``quantization`` to change.
    """
    engine = engine_of_role(spec.engine, request.settings_role)
    transfer, mock = engine.kv_transfer, engine.mock or MockEngine()
    args = [
        "mock-engine",
        f"--model={spec.model.served}",
        f"--profile={request.profile_file}",
        f"--degree={request.degree}",
        f"--role={request.role if request.paired else 'both'}",
        f"--listen={LOOPBACK}:{ENGINE_PORT}",
        "--side-channel-host=$(POD_IP)",
        f"--side-channel-port={SIDE_CHANNEL_PORT}",
        "--engine-id=$(POD_NAME)",
        f"--max-model-len={spec.model.max_model_len}",
        f"--kv-lease-seconds={transfer.lease_seconds}",
        f"--handle-ttl-seconds={transfer.handle_ttl_seconds}",
    ]
    if transfer.bidirectional and request.paired:
        args.append("--bidirectional")
    if request.nodes > 1:
        args += [
            f"--nodes={request.nodes}",
            f"--node-rank={RANK}",
            f"--leader={LEADER}:{RENDEZVOUS_PORT}",
            f"--nodes-listen=[::]:{RENDEZVOUS_PORT}",
        ]
    args += [f"--time-scale={mock.time_scale:g}", f"--chunk={engine.max_num_batched_tokens or mock.chunk_tokens}"]
    args += given_flags({"max-num-seqs": engine.max_num_seqs, "shared-work": _shared_work(spec, request)})
    if mock.kv_capacity_tokens is not None:
        args.append(f"--kv-capacity={mock.kv_capacity_tokens}")
    if spec.kv_cache is not None and spec.engine.type in _AS_VLLM:
        args.append(f"--kv-transfer-config={transfer_config(spec, request)}")
        args += [f"--kv-tier={name}:{size}" for name, size in worker_tiers(spec)]
    args += events_flag(spec, request)
    if not loads_at_run_time(spec):
        args += [f"--lora-module={name}" for name in adapter_places(spec)]
    weights = weights_of(spec, request.service)
    if weights.env:
        args.append(f"--weights={weights.model}")  # it loads none, and insists that they are there
    return EngineContainer(
        image=engine.image or request.default_image,
        args=(*args, *engine.args),
        env=weights.env,
        volumes=weights.volumes if weights.env else (),
        mounts=weights.mounts if weights.env else (),
        kv_events_port=events_port(spec, request),
        start_seconds=120,
        probe_period=1,
        log_on_failure=False,  # its pods stay those of operators before this field
        requests={"cpu": "50m", "memory": "96Mi"},
    )
