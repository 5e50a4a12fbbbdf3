"""AWS Neuron's fork of vLLM 0.9.1 (SDK 2.25 and 2.26): decode workers pull KV from prefill workers over EFA.

Flags and variables: AWS Neuron documentation, disaggregated inference and its tutorials; the fork's NeuronConnector.
Its dynamic mode (xPyD) is used for any number of workers: each request's id names the peer, and a connection is made
at the first request of a pair. The static mode (1P1D) fixes both addresses at the start, so the restart of one pod
would require a restart of the other.

In the dynamic mode the connector announces its worker to an etcd server for Neuron's own proxy, and reads nothing
there. Weft's routers have a registry of workers, so a module with the name of the etcd client takes its place.

Prefill workers listen for decode workers on the port after the API's. Tensor parallelism counts logical NeuronCores.
A worker keeps one sequence of the longest context in each of its ``maxNumSeqs`` places. Neuron supports no prefix
cache with disaggregated inference.
"""

import json
from collections.abc import Mapping

from weft_core.parallelism import gpus_of
from weft_core.plan import Role, canonical_json
from weft_operator.api.engine_merge import engine_of_role
from weft_operator.api.neuron import kv_head_map
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.render.engines.container import (
    CONFIG_FOLDER,
    ENGINE_PORT,
    LOOPBACK,
    EngineContainer,
    EngineRequest,
    KvPorts,
    given_flags,
)
from weft_operator.render.engines.model_source import CACHE_ENV, weights_of

FIXED_ROLE = True
"""A server starts as producer or consumer of KV."""
SIGNAL_PORT = ENGINE_PORT + 1
"""Where the connector of a prefill worker listens: it has no setting of its own for that."""
START_TIMEOUT_S = 5400
"""Compiling a model of 70 billion parameters takes 20 to 40 minutes, loading it as long as elsewhere."""
BOOTSTRAP_PORT = 45645
"""Where the runtimes of two workers find each other (AWS Neuron's tutorials); among the data ports."""
KV_BUFFER_BYTES = 200_000_000_000
_POWERS_OF_TWO = (1, 2, 4, 8, 16, 32, 64)
_KV_ROLE = {"prefill": "kv_producer", "decode": "kv_consumer"}
_NO_ETCD = "127.0.0.1:2379"
_REGISTRY_MODULE = '''"""What Neuron's connector calls of an etcd client: Weft's routers know the workers without it."""


class Lease:
    def refresh(self):
        pass


class Client:
    def lease(self, ttl):
        return Lease()

    def put(self, key, value, lease=None):
        pass


def client(host, port):
    return Client()
'''
_SCRIPT = (
    # Compiled models and copies of weights are written below the working directory.
    'cd /tmp && export PYTHONPATH="{folder}${{PYTHONPATH:+:$PYTHONPATH}}" && '
    'exec python3 -m vllm.entrypoints.openai.api_server "$@"'
)
_TRANSFER_ENV = (
    ("NEURON_RT_ASYNC_SENDRECV_EXPERIMENTAL_ENABLED", "1"),
    ("NEURON_RT_ASYNC_SENDRECV_BOOTSTRAP_PORT", str(BOOTSTRAP_PORT)),
    ("FI_PROVIDER", "efa"),
    ("FI_EFA_USE_DEVICE_RDMA", "1"),
    ("FI_EFA_FORK_SAFE", "1"),
)
_ENV = (
    # The fork has its scheduler of transfers in the first engine of vLLM.
    ("VLLM_USE_V1", "0"),
    ("VLLM_NEURON_FRAMEWORK", "neuronx-distributed-inference"),
    ("NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS", "2"),
    # Loaded if it is there, else compiled and kept there; a volume in its place saves that at the next start.
    ("NEURON_COMPILED_ARTIFACTS", "/tmp/neuron-compiled"),  # noqa: S108
    ("VLLM_NO_USAGE_STATS", "1"),
)


def kv_ports(_spec: DisaggInferenceServiceSpec, role: Role) -> KvPorts:
    """Return the port of the connector, which prefill workers have, and those of the runtime."""
    return KvPorts(single=(SIGNAL_PORT,)) if role == "prefill" else KvPorts()


def build_container(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> EngineContainer:
    """Return the fork's command line, environment and volumes."""
    weights = weights_of(spec, request.service)
    engine = engine_of_role(spec.engine, request.settings_role)
    args = [
        f"--model={weights.model}",
        f"--served-model-name={spec.model.served}",
        f"--host={LOOPBACK}",
        f"--port={ENGINE_PORT}",
        "--device=neuron",
        f"--tensor-parallel-size={gpus_of(request.degree)}",
        f"--max-model-len={spec.model.max_model_len}",
        f"--dtype={spec.model.dtype}",
        *given_flags({"max-num-seqs": engine.max_num_seqs, "quantization": engine.quantization}),
        "--no-enable-prefix-caching",
        f"--override-neuron-config={_neuron_config(spec)}",
        f"--kv-transfer-config={_transfer_config(spec, request)}",
    ]
    if weights.revision:
        args.append(f"--revision={weights.revision}")
    return EngineContainer(
        image=engine.image or request.default_image,
        command=("/bin/sh", "-c", _SCRIPT.format(folder=CONFIG_FOLDER), "neuron"),
        args=(*args, *engine.args),
        ports=(("kv", SIGNAL_PORT),) if request.role == "prefill" else (),
        env=(*_TRANSFER_ENV, *_ENV, *CACHE_ENV, *weights.env),
        secret_env=weights.secret_env,
        volumes=weights.volumes,
        mounts=weights.mounts,
        start_seconds=START_TIMEOUT_S,
        probe_period=10,
    )


def engine_files(spec: DisaggInferenceServiceSpec) -> Mapping[str, str]:
    """Return the module in place of the etcd client, and the maps of KV heads.

    There are maps for every degree that pools may have, so that a new one restarts no worker of another.
    """
    named = {gpus_of(n) for pool in spec.capacity.pools for n in pool.named_degrees or pool.by_tensors}
    degrees = sorted({*_POWERS_OF_TWO, *named})
    maps = {_map_name(degree): kv_head_map(spec.model, degree) for degree in degrees}
    return {
        "etcd3.py": _REGISTRY_MODULE,
        **{
            name: canonical_json({"version": "0.1", "heads": {str(rank): list(own) for rank, own in enumerate(heads)}})
            for name, heads in maps.items()
            if heads is not None
        },
    }


def _map_name(degree: int) -> str:
    return f"neuron-kv-heads-{degree}.json"


def _neuron_config(spec: DisaggInferenceServiceSpec) -> str:
    neuron = spec.engine.neuron
    config: dict[str, object] = dict(neuron.config or {}) if neuron is not None else {}
    # Steps leave the places alone into which KV is being received.
    config["apply_seq_ids_mask"] = True
    if neuron is not None and neuron.context_buckets is not None:
        config["context_encoding_buckets"] = neuron.context_buckets
    if neuron is not None and neuron.token_buckets is not None:
        config["token_generation_buckets"] = neuron.token_buckets
    return json.dumps(config, separators=(",", ":"), sort_keys=True)


def _transfer_config(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> str:
    """Return the connector's settings; with a map of KV heads degrees may differ, without one they must not."""
    degree = gpus_of(request.degree)
    config: dict[str, object] = {
        "kv_connector": "NeuronConnector",
        "kv_role": _KV_ROLE[request.role],
        "kv_buffer_device": "cpu",
        "kv_buffer_size": KV_BUFFER_BYTES,
        "etcd": _NO_ETCD,
        # Device plug-ins number the cores of a container from 0.
        "neuron_core_offset": 0,
    }
    if kv_head_map(spec.model, degree) is not None:
        config["kv_map_path"] = f"{CONFIG_FOLDER}/{_map_name(degree)}"
    return json.dumps(config, separators=(",", ":"))
