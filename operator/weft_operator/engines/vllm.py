"""vLLM 0.32 with the NIXL connector: prefill workers produce KV, decode workers consume it; co-located ones need none.

Flags and settings: vLLM 0.32's ``vllm serve`` and its NixlConnector (docs/features/nixl_connector_usage). The API
server listens on loopback, because only the sidecar in the same pod may reach it: it accepts transfer parameters
from anyone.
"""

import json

from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.engines.container import ENGINE_PORT, SIDE_CHANNEL_PORT, EngineContainer, EngineRequest
from weft_operator.manifest import Manifest

RECOMPUTE_THRESHOLD = 64
"""Tokens of history below which reading KV back costs more than computing it (vLLM's own default)."""

START_SECONDS = 1800
"""Loading 140 GB at 100 MB/s takes 1,400 s; compiling and capturing graphs some minutes more."""

_KV_ROLE = {"prefill": "kv_producer", "decode": "kv_consumer"}
_SIDE_CHANNEL = (
    ("VLLM_NIXL_SIDE_CHANNEL_HOST", "$(POD_IP)"),
    ("VLLM_NIXL_SIDE_CHANNEL_PORT", str(SIDE_CHANNEL_PORT)),
)
_MODEL_VOLUME = "model"


def container(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> EngineContainer:
    """Return vLLM's command line, environment and volumes."""
    model, volumes, mounts, secret_env, revision = _weights(spec)
    args = [
        model,
        "--host=127.0.0.1",
        f"--port={ENGINE_PORT}",
        f"--served-model-name={spec.model.name}",
        f"--tensor-parallel-size={request.degree}",
        f"--max-model-len={spec.model.max_model_len}",
        f"--dtype={spec.model.dtype}",
        f"--kv-cache-dtype={spec.model.kv_cache_dtype}",
        f"--gpu-memory-utilization={spec.engine.memory_fraction:g}",
    ]
    if request.paired:
        args.append(f"--kv-transfer-config={_transfer_config(spec, request)}")
    if revision:
        args.append(f"--revision={revision}")
    return EngineContainer(
        image=spec.engine.image or request.default_image,
        command=("vllm", "serve"),
        args=(*args, *spec.engine.args),
        env=(
            *(_SIDE_CHANNEL if request.paired else ()),
            ("VLLM_NO_USAGE_STATS", "1"),
            # The root file system is read-only and user 65532 has no home in most images.
            ("HOME", "/tmp"),  # noqa: S108 - an emptyDir of the pod
            ("USER", "weft"),
            ("HF_HOME", "/tmp/huggingface"),  # noqa: S108
            ("TORCHINDUCTOR_CACHE_DIR", "/tmp/torchinductor"),  # noqa: S108
            ("TRITON_CACHE_DIR", "/tmp/triton"),  # noqa: S108
            ("VLLM_CACHE_ROOT", "/tmp/vllm"),  # noqa: S108
        ),
        secret_env=secret_env,
        volumes=volumes,
        mounts=mounts,
        start_seconds=START_SECONDS,
        probe_period=10,
    )


def _transfer_config(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> str:
    transfer = spec.engine.kv_transfer
    extra: dict[str, object] = {"kv_lease_duration": transfer.lease_seconds}
    if transfer.bidirectional:
        extra |= {
            "bidirectional_kv_xfer": True,
            "kv_recompute_threshold": RECOMPUTE_THRESHOLD,
            "decoder_kv_blocks_ttl": transfer.handle_ttl_seconds,
        }
    config = {
        "kv_connector": "NixlConnector",
        "kv_role": _KV_ROLE[request.role],
        "kv_connector_extra_config": extra,
    }
    return json.dumps(config, separators=(",", ":"))


def _weights(
    spec: DisaggInferenceServiceSpec,
) -> tuple[str, tuple[Manifest, ...], tuple[Manifest, ...], tuple[tuple[str, str, str], ...], str | None]:
    """Return (what to load, volumes, mounts, variables from Secrets, revision on the hub)."""
    source = spec.model.source
    if source is not None and source.pvc is not None:
        volume: Manifest = {
            "name": _MODEL_VOLUME,
            "persistentVolumeClaim": {"claimName": source.pvc.claim_name, "readOnly": True},
        }
        mount: Manifest = {"name": _MODEL_VOLUME, "mountPath": "/models", "readOnly": True}
        return f"/models/{source.pvc.path}", (volume,), (mount,), (), None
    hub = source.hugging_face if source is not None else None
    token = hub.token_secret_ref if hub is not None else None
    return (
        spec.model.name,
        (),
        (),
        (("HF_TOKEN", token.name, token.key),) if token is not None else (),
        hub.revision if hub is not None else None,
    )
