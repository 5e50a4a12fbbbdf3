"""LoRA adapters as engines load them: by name and place, from the hub or from volumes."""

from weft_operator.api.objects import Manifest
from weft_operator.api.service import DisaggInferenceServiceSpec

MOUNTS = "/adapters"
DEFAULT_RANK = 16
"""The largest rank that vLLM allows unless told otherwise."""
AT_ONCE = 8
"""Adapters of which one step may have sequences."""


def adapter_places(spec: DisaggInferenceServiceSpec) -> dict[str, str]:
    """Return where engines find each adapter: a repository of the hub or a folder."""
    claims = _claims(spec)
    places = {}
    for adapter in spec.model.adapters or ():
        pvc = adapter.source.pvc
        places[adapter.name] = (
            adapter.source.hugging_face or "" if pvc is None else f"{MOUNTS}/{claims.index(pvc.claim_name)}/{pvc.path}"
        )
    return places


def adapter_volumes(spec: DisaggInferenceServiceSpec) -> tuple[tuple[Manifest, ...], tuple[Manifest, ...]]:
    """Return the volumes with adapters, and their mounts."""
    claims = _claims(spec)
    volumes: tuple[Manifest, ...] = tuple(
        {"name": f"adapters-{place}", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        for place, claim in enumerate(claims)
    )
    mounts: tuple[Manifest, ...] = tuple(
        {"name": f"adapters-{place}", "mountPath": f"{MOUNTS}/{place}", "readOnly": True}
        for place in range(len(claims))
    )
    return volumes, mounts


def adapter_rank(spec: DisaggInferenceServiceSpec) -> int:
    """Return the largest rank of an adapter."""
    return spec.model.max_adapter_rank or DEFAULT_RANK


def _claims(spec: DisaggInferenceServiceSpec) -> list[str]:
    pvcs = [adapter.source.pvc for adapter in spec.model.adapters or ()]
    return sorted({pvc.claim_name for pvc in pvcs if pvc is not None})
