"""Where an engine loads its model from: the hub, with a token for gated models, or a volume of one kind or another."""

from dataclasses import dataclass, replace

from weft_operator.api.model_cache import MOUNT, VOLUME, cached_model
from weft_operator.api.objects import Manifest, ServiceKey
from weft_operator.api.service import DisaggInferenceServiceSpec

LOAD_TIMEOUT_S = 1800
"""Loading 140 GB at 100 MB/s takes 1,400 s; compiling and capturing graphs some minutes more."""

CACHE_ENV = (
    # The root file system is read-only and the user the engine runs as has no home in most images.
    ("HOME", "/tmp"),  # noqa: S108 - an emptyDir of the pod
    ("USER", "weft"),
    ("HF_HOME", "/tmp/huggingface"),  # noqa: S108
    ("TORCHINDUCTOR_CACHE_DIR", "/tmp/torchinductor"),  # noqa: S108
    ("TRITON_CACHE_DIR", "/tmp/triton"),  # noqa: S108
)


OFFLINE_ENV = (("HF_HUB_OFFLINE", "1"), ("TRANSFORMERS_OFFLINE", "1"))
"""The weights are there: an engine that asks the hub for more needs the token, and waits where it reaches no hub."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What to load, and what the pod needs for it."""

    model: str
    """A name on the hub, or a folder."""
    revision: str | None = None
    """Revision on the hub."""
    volumes: tuple[Manifest, ...] = ()
    mounts: tuple[Manifest, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    secret_env: tuple[tuple[str, str, str], ...] = ()
    """Variables from Secrets: name, Secret, key."""


def weights_of(spec: DisaggInferenceServiceSpec, service: ServiceKey) -> Weights:
    """Return where the weights of a service come from; engines that load adapters may ask the hub for these."""
    cached, source = cached_model(spec.model), spec.model.source
    adapted = spec.model.adapters is not None and spec.engine.type != "mock"
    env: tuple[tuple[str, str], ...] = () if adapted else OFFLINE_ENV
    hub = source.hugging_face if source is not None else None
    if adapted and hub is not None and hub.endpoint is not None:
        # Its token is for it alone.
        env = (("HF_ENDPOINT", hub.endpoint),)
    token = hub.token_secret_ref if hub is not None else None
    secret_env = (("HF_TOKEN", token.name, token.key),) if token is not None else ()
    if cached is not None:
        found = _in_folder(cached.folder(service), cached.volume(service.name), env)
        return replace(found, secret_env=secret_env) if adapted else found
    if source is not None and source.oci is not None:
        image: Manifest = {"reference": source.oci.reference, "pullPolicy": source.oci.pull_policy}
        return _in_folder(source.oci.path, {"name": VOLUME, "image": image}, env)
    if source is not None and source.pvc is not None:
        claim: Manifest = {"claimName": source.pvc.claim_name, "readOnly": True}
        return _in_folder(source.pvc.path, {"name": VOLUME, "persistentVolumeClaim": claim})
    return Weights(
        model=spec.model.name,
        revision=hub.revision if hub is not None else None,
        secret_env=secret_env,
    )


def _in_folder(folder: str, volume: Manifest, env: tuple[tuple[str, str], ...] = ()) -> Weights:
    """Return weights in a folder of a volume that workers read and never write."""
    mount: Manifest = {"name": VOLUME, "mountPath": MOUNT, "readOnly": True}
    return Weights(model=f"{MOUNT}/{folder}", volumes=(volume,), mounts=(mount,), env=env)
