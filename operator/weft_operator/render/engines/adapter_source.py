"""LoRA adapters as engines load them: by name and place, from the hub or from volumes, at their start or later."""

from weft_core.plan import content_hash
from weft_operator.api.objects import Manifest
from weft_operator.api.service import DisaggInferenceServiceSpec

MOUNTS = "/adapters"
DEFAULT_RANK = 16
"""The largest rank that vLLM allows unless told otherwise."""
AT_ONCE = 8
"""Adapters of which one step of SGLang may have sequences."""
_AT_RUN_TIME = ("vllm", "mock")
"""SGLang reserves memory by the modules that adapters change, and knows these from those that it loads at its start."""


def loads_at_run_time(spec: DisaggInferenceServiceSpec) -> bool:
    """Return whether sidecars load the adapters while engines run, so that another list restarts nothing."""
    return spec.model.adapters is not None and spec.engine.type in _AT_RUN_TIME


def adapter_places(spec: DisaggInferenceServiceSpec) -> dict[str, str]:
    """Return where engines find each adapter: a repository of the hub or a folder."""
    places = {}
    for adapter in spec.model.adapters or ():
        pvc = adapter.source.pvc
        places[adapter.name] = (
            adapter.source.hugging_face or "" if pvc is None else f"{MOUNTS}/{pvc.claim_name}/{pvc.path}"
        )
    return places


def adapter_volumes(spec: DisaggInferenceServiceSpec) -> tuple[tuple[Manifest, ...], tuple[Manifest, ...]]:
    """Return the volumes with adapters, and their mounts."""
    claims = {claim: f"adapters-{content_hash(claim, 8)}" for claim in _claims(spec)}
    volumes: tuple[Manifest, ...] = tuple(
        {"name": volume, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        for claim, volume in claims.items()
    )
    mounts: tuple[Manifest, ...] = tuple(
        {"name": volume, "mountPath": f"{MOUNTS}/{claim}", "readOnly": True} for claim, volume in claims.items()
    )
    return volumes, mounts


def adapter_rank(spec: DisaggInferenceServiceSpec) -> int:
    """Return the largest rank of an adapter."""
    return spec.model.max_adapter_rank or DEFAULT_RANK


def _claims(spec: DisaggInferenceServiceSpec) -> list[str]:
    pvcs = [adapter.source.pvc for adapter in spec.model.adapters or ()]
    return sorted({pvc.claim_name for pvc in pvcs if pvc is not None})
