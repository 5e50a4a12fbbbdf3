"""Where an engine loads its model from: the hub, with a token for gated models, or a volume."""

from dataclasses import dataclass

from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.manifest import Manifest

_VOLUME = "model"
_FOLDER = "/models"

START_SECONDS = 1800
"""Loading 140 GB at 100 MB/s takes 1,400 s; compiling and capturing graphs some minutes more."""

HOME_ENV = (
    # The root file system is read-only and the user the engine runs as has no home in most images.
    ("HOME", "/tmp"),  # noqa: S108 - an emptyDir of the pod
    ("USER", "weft"),
    ("HF_HOME", "/tmp/huggingface"),  # noqa: S108
    ("TORCHINDUCTOR_CACHE_DIR", "/tmp/torchinductor"),  # noqa: S108
    ("TRITON_CACHE_DIR", "/tmp/triton"),  # noqa: S108
)


@dataclass(frozen=True, slots=True)
class Weights:
    """What to load, and what the pod needs for it."""

    model: str
    """A name on the hub, or a folder."""
    revision: str | None = None
    """Revision on the hub."""
    volumes: tuple[Manifest, ...] = ()
    mounts: tuple[Manifest, ...] = ()
    secret_env: tuple[tuple[str, str, str], ...] = ()
    """Variables from Secrets: name, Secret, key."""


def weights_of(spec: DisaggInferenceServiceSpec) -> Weights:
    """Return where the weights of a service come from."""
    source = spec.model.source
    if source is not None and source.pvc is not None:
        claim: Manifest = {"claimName": source.pvc.claim_name, "readOnly": True}
        return Weights(
            model=f"{_FOLDER}/{source.pvc.path}",
            volumes=({"name": _VOLUME, "persistentVolumeClaim": claim},),
            mounts=({"name": _VOLUME, "mountPath": _FOLDER, "readOnly": True},),
        )
    hub = source.hugging_face if source is not None else None
    token = hub.token_secret_ref if hub is not None else None
    return Weights(
        model=spec.model.name,
        revision=hub.revision if hub is not None else None,
        secret_env=(("HF_TOKEN", token.name, token.key),) if token is not None else (),
    )
