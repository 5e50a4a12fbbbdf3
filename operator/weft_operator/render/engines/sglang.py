"""SGLang 0.5 with NIXL: both legs meet at the bootstrap server of the prefill worker, which pushes the KV.

Flags: ``python -m sglang.launch_server`` (docs/advanced_features/pd_disaggregation and server_arguments). The
bootstrap server listens where the API does (``start_disagg_service`` hands it ``--host``), so a prefill worker's API
listens on the pod's address, of whichever family: the network policy is what keeps strangers off it, and may not be
switched off.

KV cache tiers are those of HiCache (docs/advanced_features/hicache_best_practices, hicache_design;
mem_cache/hicache_storage.py, storage/mooncake_store): ``--hicache-size`` is the 10^9 bytes of each GPU's process, and
one storage backend may be below. Decode workers keep no cache of prefixes, so memory and files of their own would serve
nobody: they hand their KV to a store that prefill workers read (``--disaggregation-decode-enable-offload-kvcache``), or
have no tiers.

On several nodes (docs/references/multi_node_deployment) the first one serves; on the others nothing but a health page
listens on the API's port. With data-parallel ranks ZeroMQ takes the host of ``--dist-init-addr``, too
(``PortArgs.init_new``), so all get the first node's address in place of its name.
"""

import json

from weft_core.parallelism import parallelism_of
from weft_core.plan import Role
from weft_operator.api.engine_merge import engine_of_role
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.api.speculative import Speculative, drafts_of
from weft_operator.render.engines.adapter_source import AT_ONCE, adapter_places, adapter_rank, adapter_volumes
from weft_operator.render.engines.container import (
    BOOTSTRAP_PORT,
    ENGINE_PORT,
    FIND_LEADER,
    LEADER,
    LOOPBACK,
    RANK,
    RANK_VARIABLE,
    RENDEZVOUS_PORT,
    EngineContainer,
    EngineRequest,
    KvPorts,
    PodTiers,
    given_flags,
)
from weft_operator.render.engines.kv_events import events_flag, events_port
from weft_operator.render.engines.kv_tiers import (
    cpu_bytes,
    disk_folder,
    gpus_per_node,
    mooncake_of,
    per_gpu,
    store_prefix,
)
from weft_operator.render.engines.model_source import CACHE_ENV, LOAD_TIMEOUT_S, weights_of

FIXED_ROLE = True
"""A server starts in one --disaggregation-mode."""

_POD_IP = "$(POD_IP)"
_POD_NAME = "$(POD_NAME)"
"""A name of the pod's addresses in its own /etc/hosts; in a URL an address of IPv6 would need brackets."""


_LAUNCH = ("python3", "-m", "sglang.launch_server")
_RANKS_SCRIPT = (
    f'if [ "${RANK_VARIABLE}" = 0 ]; then leader=$POD_IP; else {FIND_LEADER}; fi; '
    'case $leader in *:*) leader="[$leader]";; esac; '
    f'exec {" ".join(_LAUNCH)} "$@" --dist-init-addr="$leader:{RENDEZVOUS_PORT}"'
)
"""For ranks on several nodes. All pods of a worker have one template, so each finds out for itself whether it leads."""


def kv_ports(_spec: DisaggInferenceServiceSpec, role: Role) -> KvPorts:
    """Return the bootstrap server's port, which only prefill workers have, and those of NIXL."""
    return KvPorts(single=(BOOTSTRAP_PORT,)) if role == "prefill" else KvPorts()


def _parallelism(request: EngineRequest) -> list[str]:
    """Return the flags for how the model is split: its tensor-parallel size counts the GPUs of all ranks of a stage."""
    parts = parallelism_of(request.degree)
    args = [f"--tp-size={parts.expert_gpus}"]
    if parts.pp > 1:
        args.append(f"--pp-size={parts.pp}")
    if parts.dp > 1:
        args += [f"--dp-size={parts.dp}", "--enable-dp-attention"]
    if parts.ep:
        args.append(f"--ep-size={parts.expert_gpus}")
    return args


def _of_all_ranks(request: EngineRequest, limit: int | None) -> int | None:
    """Return a limit of one rank as SGLang takes it: it divides by the number of ranks."""
    return None if limit is None else limit * parallelism_of(request.degree).dp


_ALGORITHMS = {"mtp": "EAGLE", "eagle": "EAGLE3", "ngram": "NGRAM"}
"""Algorithms by method: next-token-prediction layers are run as an EAGLE draft (docs: NEXTN is another name of it)."""


def _speculation(asked: Speculative | None) -> list[str]:
    """Return the flags for speculative decoding (docs/advanced_features/speculative_decoding): one chain, no tree.

    SGLang counts the token that is verified with the drafted ones. An EAGLE step drafts one token.
    """
    if asked is None:
        return []
    args = [f"--speculative-algorithm={_ALGORITHMS[asked.method]}"]
    if asked.method == "ngram":
        args.append("--speculative-ngram-max-bfs-breadth=1")
    else:
        args += [f"--speculative-num-steps={asked.tokens}", "--speculative-eagle-topk=1"]
    args.append(f"--speculative-num-draft-tokens={asked.tokens + 1}")
    if asked.model is not None:
        args.append(f"--speculative-draft-model-path={asked.model}")
    return args


def _host_gigabytes(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> int:
    """Return the 10^9 bytes of host memory of each GPU's process, 0 where workers of the role have none."""
    if not cpu_bytes(spec) or (request.role != "prefill" and mooncake_of(spec) is None):
        return 0
    return max(1, per_gpu(cpu_bytes(spec), request) // 10**9)  # of 0 SGLang would choose it itself


def _tiers(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> list[str]:
    """Return the flags of HiCache."""
    host, store = _host_gigabytes(spec, request), mooncake_of(spec)
    if not host:
        return []
    prefill = request.role == "prefill"
    args = ["--enable-hierarchical-cache" if prefill else "--disaggregation-decode-enable-offload-kvcache"]
    args.append(f"--hicache-size={host}")
    if disk_folder(spec, request):
        args.append("--hicache-storage-backend=file")
    if store is not None:
        config = {
            "master_server_address": store.master,
            "metadata_server": store.metadata_server,
            "protocol": store.protocol,
            "local_hostname": _POD_IP,
            "global_segment_size": 0,  # the servers of the store hold all KV
            "extra_backend_tag": store_prefix(request),
        }
        args += [
            "--hicache-mem-layout=page_first",  # the only one that Mooncake takes
            "--hicache-storage-backend=mooncake",
            f"--hicache-storage-backend-extra-config={json.dumps(config, separators=(',', ':'))}",
        ]
    return args


def _pod_tiers(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> PodTiers:
    memory = _host_gigabytes(spec, request) * 10**9 * gpus_per_node(request)
    return PodTiers(memory=memory, folder=disk_folder(spec, request) if memory else "")


def build_container(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> EngineContainer:
    """Return SGLang's command line, environment and volumes."""
    weights, prefill = weights_of(spec, request.service), request.role == "prefill"
    engine = engine_of_role(spec.engine, request.settings_role)
    limits = {
        "max-running-requests": _of_all_ranks(request, engine.max_num_seqs),
        # The bound of a step; --max-prefill-tokens is none below the context's length.
        "chunked-prefill-size": _of_all_ranks(request, engine.max_num_batched_tokens),
        "quantization": engine.quantization,
    }
    args = [
        f"--model-path={weights.model}",
        f"--served-model-name={spec.model.served}",
        f"--host={_POD_IP if prefill else LOOPBACK}",
        f"--port={ENGINE_PORT}",
        *_parallelism(request),
        f"--context-length={spec.model.max_model_len}",
        f"--dtype={spec.model.dtype}",
        f"--kv-cache-dtype={spec.model.kv_cache_dtype}",
        f"--mem-fraction-static={engine.memory_fraction:g}",
        *given_flags(limits),
        "--enable-metrics",
        f"--disaggregation-mode={request.role}",
        "--disaggregation-transfer-backend=nixl",
    ]
    if request.nodes > 1:
        args += [f"--nnodes={request.nodes}", f"--node-rank={RANK}"]
        if not request.ranks_per_node:
            args.append(f"--dist-init-addr={LEADER}:{RENDEZVOUS_PORT}")
    if prefill:
        args.append(f"--disaggregation-bootstrap-port={BOOTSTRAP_PORT}")
    args += _speculation(drafts_of(engine.speculative, request.settings_role))
    args += _tiers(spec, request)
    if prefill:  # decode workers keep no cache of prefixes
        args += events_flag(spec, request, enabled=False)
    block_size = engine.kv_transfer.block_size(request.settings_role)
    if block_size is not None:
        args.append(f"--page-size={block_size}")
    if weights.revision:
        args.append(f"--revision={weights.revision}")
    places, (volumes, mounts) = adapter_places(spec), adapter_volumes(spec)
    if places:
        args += [
            "--enable-lora",
            f"--max-lora-rank={adapter_rank(spec)}",
            f"--max-loras-per-batch={1 + min(len(places), AT_ONCE)}",  # the model itself counts as one
            "--lora-paths",
            *(f"{name}={place}" for name, place in places.items()),
        ]
    tiers = _pod_tiers(spec, request)
    return EngineContainer(
        image=engine.image or request.default_image,
        command=("/bin/sh", "-c", _RANKS_SCRIPT, "sglang") if request.ranks_per_node else _LAUNCH,
        args=(*args, *engine.args),
        host=_POD_NAME if prefill else LOOPBACK,
        ports=(("kv", BOOTSTRAP_PORT),) if prefill else (),
        env=(
            ("SGLANG_HOST_IP", "$(POD_IP)"),
            *CACHE_ENV,
            *((("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", tiers.folder),) if tiers.folder else ()),
            *weights.env,
        ),
        secret_env=weights.secret_env,
        volumes=(*weights.volumes, *volumes),
        mounts=(*weights.mounts, *mounts),
        kv_events_port=events_port(spec, request) if prefill else 0,
        start_seconds=LOAD_TIMEOUT_S,
        probe_period=10,
        tiers=tiers,
    )
