"""TensorRT-LLM 1.x, ``trtllm-serve`` with the PyTorch backend: context servers keep KV that generation servers fetch.

Flags: ``trtllm-serve serve --help``; what has no flag is in a file of its LLM API (docs/features/disagg-serving):
the cache transceiver, and the overlap scheduler, which context servers do not support. ``--extra_llm_api_options``
is the name of that flag in every 1.x; ``--config`` came later.

A KV cache tier in CPU memory is ``host_cache_size`` of ``kv_cache_config`` (docs/features/kvcache, "Offloading"), in
bytes of each GPU's process. It has no other tiers before version 1.4.

On several nodes its ranks are placed by Ray (examples/ray_orchestrator, ``orchestrator_type``), which needs neither ssh
between pods nor an MPI launcher: the first node is Ray's head and serves, the others lend it their GPUs. The image must
hold Ray.

KV moves over NIXL or UCX: the cache transceiver takes the backend that its options name, and needs no variable for it
(``TRTLLM_USE_*_KVCACHE`` decide where they name none). Both listen at the pod's address, at ports of the kernel.
Another backend, MPI, addresses ranks of ``MPI_COMM_WORLD`` (cache_transmission/mpi_utils/connection.cpp), and each
``trtllm-serve`` has a world of its own, or none under Ray: the API refuses it.
"""

from collections.abc import Mapping
from typing import Any

from weft_core.parallelism import gpus_of, parallelism_of
from weft_core.plan import Role, canonical_json
from weft_operator.api.engine_merge import engine_of_role
from weft_operator.api.possible_strategies import may_span_nodes, most_ranks, possible_sizes
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.api.speculative import Speculative, drafts_of
from weft_operator.render.engines.container import (
    CONFIG_FOLDER,
    ENGINE_PORT,
    LEADER_VARIABLE,
    LOOPBACK,
    RANK_VARIABLE,
    RENDEZVOUS_PORT,
    EngineContainer,
    EngineRequest,
    KvPorts,
    PodTiers,
    given_flags,
)
from weft_operator.render.engines.kv_tiers import cpu_bytes, per_node
from weft_operator.render.engines.model_source import CACHE_ENV, LOAD_TIMEOUT_S, weights_of

_RAY = '--node-ip-address="$POD_IP" --disable-usage-stats'
_JOIN_HEAD = f'exec ray start --address="${LEADER_VARIABLE}:{RENDEZVOUS_PORT}" {_RAY} --block'
_START_HEAD = f'ray start --head --port={RENDEZVOUS_PORT} {_RAY} && exec trtllm-serve "$@"'
_MULTI_NODE_SCRIPT = f'if [ "${RANK_VARIABLE}" = 0 ]; then {_START_HEAD}; else {_JOIN_HEAD}; fi'
"""All pods of a worker have one template, so each finds out for itself whether it leads."""


FIXED_ROLE = True
"""A server starts with the options of one role."""
NGRAM_WORDS = 4
"""The longest n-gram that is looked up, as in TensorRT-LLM's own example: it has no default of use."""


def build_container(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> EngineContainer:
    """Return the command line of ``trtllm-serve``, its environment and volumes."""
    weights, multi_node = weights_of(spec, request.service), request.nodes > 1
    ranks = parallelism_of(request.degree).dp > 1
    options = _options_file_name(
        request.role if request.paired else "both",
        multi_node=multi_node,
        ranks=ranks,
        gpus=gpus_of(request.degree) if cpu_bytes(spec) else 0,
    )
    engine = engine_of_role(spec.engine, request.settings_role)
    limits = {"max_batch_size": engine.max_num_seqs, "max_num_tokens": engine.max_num_batched_tokens}
    args = [
        weights.model,
        f"--host={LOOPBACK}",
        f"--port={ENGINE_PORT}",
        "--backend=pytorch",
        *_parallelism(request),
        f"--max_seq_len={spec.model.max_model_len}",
        *given_flags(limits),
        f"--extra_llm_api_options={CONFIG_FOLDER}/{options}",
    ]
    if weights.model != spec.model.served:
        # By itself it answers with the folder's name. The flag is there since 1.3 (NVIDIA/TensorRT-LLM#11711).
        args.append(f"--served_model_name={spec.model.served}")
    if weights.revision:
        args.append(f"--revision={weights.revision}")
    return EngineContainer(
        image=engine.image or request.default_image,
        command=("/bin/sh", "-c", _MULTI_NODE_SCRIPT, "trtllm") if multi_node else ("trtllm-serve",),
        args=(*args, *engine.args),
        ports=(),
        env=(*CACHE_ENV, *weights.env),
        secret_env=weights.secret_env,
        volumes=weights.volumes,
        mounts=weights.mounts,
        start_seconds=LOAD_TIMEOUT_S,
        probe_period=10,
        tiers=PodTiers(memory=per_node(cpu_bytes(spec), request)),
    )


def kv_ports(_spec: DisaggInferenceServiceSpec, _role: Role) -> KvPorts:
    """Return the ports of the transfer library."""
    return KvPorts()


def _parallelism(request: EngineRequest) -> list[str]:
    """Return the flags for how the model is split: its tensor-parallel size counts the GPUs of all ranks of a stage."""
    parts = parallelism_of(request.degree)
    args = [f"--tp_size={parts.expert_gpus}"]
    if parts.pp > 1:
        args.append(f"--pp_size={parts.pp}")
    if parts.ep:
        args.append(f"--ep_size={parts.expert_gpus}")
    return args


def options_files(spec: DisaggInferenceServiceSpec, *, paired: bool) -> Mapping[str, str]:
    """Return the options files that engines read, by name; JSON is YAML."""
    roles = ("prefill", "decode") if paired else ("both",)
    # Those for several nodes are there wherever such a worker may be planned: its coming restarts no other.
    several_nodes = any(map(may_span_nodes, spec.capacity.pools))
    may_have_ranks = most_ranks(spec.model, spec.capacity) > 1
    # A part of the tier in CPU memory is each GPU's, so it has the files of every size of worker there may be.
    sizes = possible_sizes(spec.capacity) if cpu_bytes(spec) else (0,)
    return {
        _options_file_name(role, multi_node=multi_node, ranks=ranks, gpus=gpus): canonical_json(
            {
                **_options(spec, role, gpus),
                **({"orchestrator_type": "ray"} if multi_node else {}),
                **({"enable_attention_dp": True} if ranks else {}),
            }
        )
        for role in roles
        for multi_node in ((False, True) if several_nodes else (False,))
        for ranks in ((False, True) if may_have_ranks else (False,))
        for gpus in sizes
    }


def _options_file_name(role: str, *, multi_node: bool, ranks: bool, gpus: int) -> str:
    """Return the name of a file; ``gpus`` is 0 where it is that of workers of any size."""
    size = f"-{gpus}" if gpus else ""
    return f"trtllm-{role}{'-dp' * ranks}{'-nodes' * multi_node}{size}.json"


def _options(spec: DisaggInferenceServiceSpec, role: str, gpus: int) -> dict[str, Any]:
    of_role: Role = "prefill" if role == "prefill" else "decode"
    engine = engine_of_role(spec.engine, of_role)
    cache: dict[str, Any] = {
        "free_gpu_memory_fraction": engine.memory_fraction,
        "dtype": spec.model.kv_cache_dtype,
        "enable_block_reuse": True,
    }
    block_size = None if role == "both" else spec.engine.kv_transfer.block_size(role)
    if block_size is not None:
        cache["tokens_per_block"] = block_size
    if gpus:
        cache["host_cache_size"] = cpu_bytes(spec) // gpus
    options: dict[str, Any] = {
        "dtype": spec.model.dtype,
        "kv_cache_config": cache,
        # A prompt longer than max_num_tokens is refused otherwise.
        "enable_chunked_prefill": True,
        # The router reads the engine's load at /prometheus/metrics.
        "return_perf_metrics": True,
    }
    if role != "both":
        options["cache_transceiver_config"] = {
            "backend": spec.engine.kv_transfer.connector.upper(),
            # A smaller buffer than the longest prompt makes its transfer slow.
            "max_tokens_in_buffer": spec.model.max_model_len,
        }
    if role == "prefill":
        options["disable_overlap_scheduler"] = True
    asked = drafts_of(engine.speculative, of_role)
    if asked is not None:
        options["speculative_config"] = _speculation(asked)
        if asked.method == "ngram":
            options["disable_overlap_scheduler"] = True
    return options


def _speculation(asked: Speculative) -> dict[str, Any]:
    """Return the LLM API's options for speculative decoding (docs/features/speculative-decoding).

    The number of MTP modules is given in both of its names, which must agree. With n-grams the overlap scheduler is
    off, as in the document's example.
    """
    if asked.method == "mtp":
        return {"decoding_type": "MTP", "max_draft_len": asked.tokens, "num_nextn_predict_layers": asked.tokens}
    if asked.method == "eagle":
        return {"decoding_type": "Eagle3", "max_draft_len": asked.tokens, "speculative_model": asked.model}
    return {"decoding_type": "NGram", "max_draft_len": asked.tokens, "max_matching_ngram_size": NGRAM_WORDS}
