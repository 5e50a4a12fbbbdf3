"""What of a service is cached where: the key of its weights, their folder, and what a download needs. Pure."""

import json
from collections.abc import Collection
from dataclasses import dataclass

from weft_core.durations import parse_duration
from weft_core.plan import content_hash
from weft_operator.api.model import Cache, Model
from weft_operator.api.objects import Manifest, ServiceKey

HUB = "https://huggingface.co"
VOLUME = "model"
MOUNT = "/models"
NODE_ROOT = "/var/lib/weft"
"""Where nodes may keep weights without a permission of the cluster's administrator."""


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One model of one service in a cache."""

    cache: Cache
    source: dict[str, object]
    """What is downloaded, as weights.fetch reads it."""
    secret_env: tuple[tuple[str, str, str, bool], ...] = ()
    """Variables of the download from Secrets: name, Secret, key, and whether it may be absent."""

    @property
    def key(self) -> str:
        """Return the name of what is downloaded: another source, revision or choice of files is another one."""
        return content_hash(self.source, 10)

    def folder(self, service: ServiceKey) -> str:
        """Return the model's folder below the root of the cache; no two services share one."""
        return f"{service.namespace}/{service.name}/{self.key}"

    def claim_name(self, service: str) -> str | None:
        """Return the claim that the weights are on, None where they are on nodes."""
        claim = self.cache.claim
        return None if claim is None else claim.existing_claim or own_claim(service)

    def volume(self, service: str) -> Manifest:
        """Return the volume that holds the cache."""
        claim = self.claim_name(service)
        if claim is not None:
            return {"name": VOLUME, "persistentVolumeClaim": {"claimName": claim}}
        path = self.cache.node.path if self.cache.node is not None else ""
        return {"name": VOLUME, "hostPath": {"path": path, "type": "Directory"}}

    def source_json(self) -> str:
        """Return the source as text."""
        return json.dumps(self.source, sort_keys=True, separators=(",", ":"))

    @property
    def keep_unused_s(self) -> float:
        """Return how long a model that nobody uses stays on a node, in seconds."""
        return parse_duration(self.cache.node.keep_unused) if self.cache.node is not None else 0.0


def node_path_fault(model: Model, permitted: Collection[str]) -> str | None:
    """Return what is wrong with a path of nodes that weights are cached below; None where it may be used.

    It is a hostPath: elsewhere on a node are files of the kubelet and of other pods.
    """
    cached = cached_model(model)
    path = cached.cache.node.path if cached is not None and cached.cache.node is not None else NODE_ROOT
    if f"{path.rstrip('/')}/".startswith(f"{NODE_ROOT}/") and ".." not in path.split("/"):
        return None
    if "hostPath" in permitted:
        return None
    return (
        f"spec.model.source: cache.node.path must be {NODE_ROOT} or below; choose such a path, or let a cluster "
        "administrator add hostPath to operator.podTemplates.allow in the values of Weft's chart"
    )


def own_claim(service: str) -> str:
    """Return the name of the claim that is made for a service."""
    return f"{service}-weights"


def cached_model(model: Model) -> CachedModel | None:
    """Return what of a model is cached, None where nothing is."""
    source = model.source
    if source is None or source.cache is None:
        return None
    if source.s3 is not None:
        s3 = source.s3
        body: dict[str, object] = {
            "kind": "s3",
            "endpoint": s3.endpoint or "",
            "bucket": s3.bucket,
            "prefix": s3.prefix or "",
            "region": s3.region,
        }
        ref = s3.credentials_secret_ref
        names = (("AWS_ACCESS_KEY_ID", False), ("AWS_SECRET_ACCESS_KEY", False), ("AWS_SESSION_TOKEN", True))
        secret_env = tuple((name, ref.name, name, optional) for name, optional in names) if ref is not None else ()
        return CachedModel(source.cache, {**body, **_patterns(s3.include, s3.exclude)}, secret_env)
    hub = source.hugging_face
    if hub is None:
        return None
    body = {
        "kind": "hub",
        "endpoint": hub.endpoint or HUB,
        "repo": model.name,
        "revision": hub.revision or "main",
        **_patterns(hub.include, hub.exclude),
    }
    token = hub.token_secret_ref
    return CachedModel(source.cache, body, (("HF_TOKEN", token.name, token.key, False),) if token is not None else ())


def _patterns(include: list[str] | None, exclude: list[str] | None) -> dict[str, object]:
    return {name: value for name, value in (("include", include), ("exclude", exclude)) if value}
