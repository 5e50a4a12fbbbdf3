"""vLLM 0.32 with the NIXL connector: a worker of either role produces and consumes KV; co-located ones need none.

Flags and settings: vLLM 0.32's ``vllm serve`` and its NixlConnector (docs/features/nixl_connector_usage). The API
server listens on loopback, because only the sidecar in the same pod may reach it: it accepts transfer parameters
from anyone.

A worker of several ranks (docs/serving/data_parallel_deployment) has one API server, which gives each round to a rank;
ranks of one node have side channels on consecutive ports.

On several nodes (docs/serving/parallelism_scaling, "Running vLLM with MultiProcessing") every one runs the same command
with its rank, and all but the first ``--headless``: they have ranks of the model and no API.

Where the spec expects Weft's plug-in, the container gets the proof that it requires with transfer parameters:
that one key of the Secret, and never the token beside it.

LoRA adapters (docs/features/lora) are loaded by the sidecar while it runs: no other process reaches the endpoints, and
one API server alone may have them.
"""

import json

from weft_core.parallelism import parallelism_of
from weft_core.plan import Role
from weft_operator.api.engine_merge import engine_of_role
from weft_operator.api.objects import Manifest
from weft_operator.api.possible_strategies import most_ranks
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.api.speculative import Speculative, drafts_of
from weft_operator.render.engines.adapter_source import adapter_rank, adapter_volumes
from weft_operator.render.engines.container import (
    DATA_PORTS,
    ENGINE_PORT,
    FIND_LEADER,
    LEADER,
    LOOPBACK,
    PROOF_KEY,
    PROOF_VARIABLE,
    PROOF_VOLUME,
    RANK,
    RANK_VARIABLE,
    RENDEZVOUS_PORT,
    SIDE_CHANNEL_PORT,
    EngineContainer,
    EngineRequest,
    KvPorts,
    given_flags,
)
from weft_operator.render.engines.kv_events import events_flag, events_port
from weft_operator.render.engines.model_source import CACHE_ENV, LOAD_TIMEOUT_S, weights_of
from weft_operator.render.engines.vllm_connectors import pod_tiers, tier_env, transfer_config

FIXED_ROLE = False
"""With kv_both an engine serves either role, and its sidecar decides which."""

MAX_LORAS = 4
"""Adapters of which one step may have sequences: vLLM sets memory of the GPU aside for each."""
MAX_CPU_LORAS = 32
"""Adapters in the host's memory: as many as a service may have, so that none is loaded again for a request."""
_REPORTS_CACHED = "--enable-prompt-tokens-details"
"""Usage has the tokens of a prompt that were cached: sidecars count by it what was computed again, and profiles hold
their timings against it."""
_LOADS_ADAPTERS = ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
_ONE_SERVER = "--api-server-count=1"
"""Of several, vLLM's default for data-parallel ranks, each would have its own list of adapters."""

# An address of IPv6 without brackets, too: vLLM adds them (make_zmq_path).
_SIDE_CHANNEL = (
    ("VLLM_NIXL_SIDE_CHANNEL_HOST", "$(POD_IP)"),
    ("VLLM_NIXL_SIDE_CHANNEL_PORT", str(SIDE_CHANNEL_PORT)),
)
_NO_REDIRECTS = ("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0")
"""A host that may be asked for media must not send the engine on to another one. Without hosts nothing is asked."""


def kv_ports(spec: DisaggInferenceServiceSpec, _role: Role) -> KvPorts:
    """Return the side channels' ports, one for each data-parallel rank that a worker may have, and those of NIXL."""
    ranks = most_ranks(spec.model, spec.capacity)
    if ranks == 1:
        return KvPorts(single=(SIDE_CHANNEL_PORT,))
    return KvPorts(spans=((SIDE_CHANNEL_PORT, SIDE_CHANNEL_PORT + ranks - 1), DATA_PORTS))


_PROOF_FOLDER = "/etc/weft-engine"

RPC_PORT = 13345
"""Where the data-parallel ranks of other nodes reach the first (vLLM's own default is any free port)."""


def _script(request: EngineRequest, *, one_server: bool) -> str:
    """Return what starts one pod of several: all have one template, so each finds out for itself whether it leads."""
    ranks = request.ranks_per_node
    if not ranks:
        return f'[ "${RANK_VARIABLE}" = 0 ] || set -- "$@" --headless; exec vllm serve "$@"'
    follow = f'{FIND_LEADER}; set -- "$@" --headless --data-parallel-start-rank=$(({RANK_VARIABLE} * {ranks}))'
    lead = f'leader=$POD_IP; set -- "$@" {_ONE_SERVER}' if one_server else "leader=$POD_IP"
    found = f'if [ "${RANK_VARIABLE}" = 0 ]; then {lead}; else {follow}; fi'
    return f'{found}; exec vllm serve "$@" --data-parallel-address="$leader"'


def _parallelism(request: EngineRequest) -> list[str]:
    """Return the flags for how the model is split."""
    parts = parallelism_of(request.degree)
    args = [f"--tensor-parallel-size={parts.tp}"]
    if parts.pp > 1:
        args.append(f"--pipeline-parallel-size={parts.pp}")
    if parts.dp > 1:
        args.append(f"--data-parallel-size={parts.dp}")
    if parts.ep:
        args.append("--enable-expert-parallel")
    if request.ranks_per_node:
        args += [
            f"--data-parallel-size-local={request.ranks_per_node}",
            f"--data-parallel-rpc-port={RPC_PORT}",
        ]
    return args


_METHODS = {"mtp": "mtp", "eagle": "eagle3", "ngram": "ngram"}


def _speculation(asked: Speculative | None) -> list[str]:
    """Return the flag for speculative decoding (vllm/config/speculative.py); n-grams have vLLM's own length, 5."""
    if asked is None:
        return []
    config: dict[str, object] = {"method": _METHODS[asked.method], "num_speculative_tokens": asked.tokens}
    if asked.model is not None:
        config["model"] = asked.model
    return [f"--speculative-config={json.dumps(config, separators=(',', ':'))}"]


def build_container(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> EngineContainer:
    """Return vLLM's command line, environment and volumes."""
    weights = weights_of(spec, request.service)
    engine = engine_of_role(spec.engine, request.settings_role)
    plugin = engine.plugin is not None
    limits = {
        "max-num-seqs": engine.max_num_seqs,
        "max-num-batched-tokens": engine.max_num_batched_tokens,
        "quantization": engine.quantization,
    }
    args = [
        weights.model,
        f"--host={LOOPBACK}",
        f"--port={ENGINE_PORT}",
        f"--served-model-name={spec.model.served}",
        *_parallelism(request),
        f"--max-model-len={spec.model.max_model_len}",
        f"--dtype={spec.model.dtype}",
        f"--kv-cache-dtype={spec.model.kv_cache_dtype}",
        f"--gpu-memory-utilization={engine.memory_fraction:g}",
        _REPORTS_CACHED,
        *given_flags(limits),
    ]
    if request.nodes > 1 and request.ranks_per_node == 0:
        args += [
            "--distributed-executor-backend=mp",
            f"--nnodes={request.nodes}",
            f"--node-rank={RANK}",
            f"--master-addr={LEADER}",
            f"--master-port={RENDEZVOUS_PORT}",
        ]
    transfer = transfer_config(spec, request)
    if transfer:
        args.append(f"--kv-transfer-config={transfer}")
    args += events_flag(spec, request)
    args += _speculation(drafts_of(engine.speculative, request.settings_role))
    block_size = engine.kv_transfer.block_size(request.settings_role)
    if block_size is not None:
        args.append(f"--block-size={block_size}")
    requests = spec.coordinator.requests
    hosts = requests.allowed_media_hosts if requests is not None else None
    if hosts and not any(host.startswith("*") for host in hosts):  # vLLM knows whole names only, of any port
        args += ["--allowed-media-domains", *sorted({host.partition(":")[0] for host in hosts})]
    if weights.revision:
        args.append(f"--revision={weights.revision}")
    adapted, (volumes, mounts) = spec.model.adapters is not None, adapter_volumes(spec)
    if adapted:
        args += ["--enable-lora", f"--max-lora-rank={adapter_rank(spec)}"]
        args += [f"--max-loras={MAX_LORAS}", f"--max-cpu-loras={MAX_CPU_LORAS}"]
    one_server = adapted and parallelism_of(request.degree).dp > 1
    if one_server and request.nodes == 1:
        args.append(_ONE_SERVER)
    script = () if request.nodes == 1 else ("/bin/sh", "-c", _script(request, one_server=one_server), "vllm")
    return EngineContainer(
        image=engine.image or request.default_image,
        command=script or ("vllm", "serve"),
        args=(*args, *engine.args),
        env=(
            *(_SIDE_CHANNEL if request.paired else ()),
            *((("VLLM_HOST_IP", "$(POD_IP)"),) if request.nodes > 1 else ()),
            *(((PROOF_VARIABLE, f"{_PROOF_FOLDER}/{PROOF_KEY}"),) if plugin else ()),
            *((_NO_REDIRECTS,) if hosts else ()),
            *((_LOADS_ADAPTERS,) if adapted else ()),
            ("VLLM_NO_USAGE_STATS", "1"),
            *CACHE_ENV,
            ("VLLM_CACHE_ROOT", "/tmp/vllm"),  # noqa: S108
            *tier_env(spec),
            *weights.env,
        ),
        secret_env=weights.secret_env,
        volumes=(*weights.volumes, *volumes, *((_proof_volume(request.secret),) if plugin else ())),
        mounts=(*weights.mounts, *mounts, *((_PROOF_MOUNT,) if plugin else ())),
        side_channel_port=SIDE_CHANNEL_PORT if request.paired else 0,
        kv_events_port=events_port(spec, request),
        start_seconds=LOAD_TIMEOUT_S,
        probe_period=10,
        tiers=pod_tiers(spec, request),
    )


_PROOF_MOUNT: Manifest = {"name": PROOF_VOLUME, "mountPath": _PROOF_FOLDER, "readOnly": True}


def _proof_volume(secret: str) -> Manifest:
    items = [{"key": PROOF_KEY, "path": PROOF_KEY}]
    return {"name": PROOF_VOLUME, "secret": {"secretName": secret, "items": items, "defaultMode": 0o444}}
