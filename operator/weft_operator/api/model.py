"""The model that is served, and where its weights come from."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, StringConstraints

from weft_core.config_fields import ModelConfigError
from weft_core.dimensions import ModelDimensions
from weft_core.hf_config import dimensions_of_config
from weft_core.models import MODELS
from weft_operator.api.adapters import Adapter, ServedName
from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.fields import Duration, ObjectName, Quantity
from weft_operator.api.references import WITHIN_CLUSTER, Folder, Pvc, SecretKey, SecretName, stays_secret

Endpoint = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/?#@]+(/[^\s?#@]*)?$", max_length=512)]
Pattern = Annotated[str, StringConstraints(pattern=r"^\S+$", min_length=1, max_length=256)]

_LATER = ("s3", "oci", "endpoint", "include", "exclude")
"""Fields of a source that came after the first operators."""


class CacheClaim(ApiModel):
    """A volume that all workers share: the weights are downloaded once for the service."""

    existing_claim: ObjectName | None = None
    """An existing PersistentVolumeClaim, which is not deleted; several services may share it."""
    size: Quantity | None = None
    """Size of a claim that is made for the service and goes with it; twice the weights leaves room for a change."""
    storage_class_name: ObjectName | None = None
    """Storage class of that claim; the cluster's default class if absent."""
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = "ReadWriteMany"
    """ReadWriteOnce only where all workers of the service run on one node."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.existingClaim) != has(self.size)",
            "spec.model.source: give exactly one of cache.claim.existingClaim and cache.claim.size",
            lambda c: (c.existing_claim is None) != (c.size is None),
        ),
        Rule(
            "!has(self.existingClaim) || !has(self.storageClassName)",
            "spec.model.source: cache.claim.storageClassName is of the claim that is made for the service; remove it, "
            "or replace existingClaim by size",
            lambda c: c.existing_claim is None or c.storage_class_name is None,
        ),
    )


class CacheNode(ApiModel):
    """A folder of each node: the weights are downloaded once for each node that has a worker."""

    path: Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9._/-]+$", max_length=512)]
    """Existing folder on every node of the pools, writable for user 65532, on a disk with enough space."""
    keep_unused: Duration = "24h"
    """How long a model stays on a node without a worker that uses it."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!self.path.contains('/..')",
            "spec.model.source: cache.node.path holds .., which kubelets refuse; write the folder's own path",
            lambda n: "/.." not in n.path,
        ),
    )


class Cache(ApiModel):
    """The cache of weights, which are downloaded once and read by all workers and later plans."""

    claim: CacheClaim | None = None
    """A volume that all workers share."""
    node: CacheNode | None = None
    """A folder of each node."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.claim) != has(self.node)",
            "spec.model.source: give exactly one of cache.claim and cache.node",
            lambda c: (c.claim is None) != (c.node is None),
        ),
    )


class HuggingFace(ApiModel):
    """Weights from the Hugging Face hub: loaded by each engine at its start, or from a cache."""

    revision: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._/-]+$", min_length=1, max_length=128)] | None = (
        None
    )
    """Branch, tag or commit; the repository's default branch if absent. A cache keeps what the branch was at first."""
    token_secret_ref: SecretKey | None = None
    """Access token for gated models."""
    endpoint: Endpoint | None = None
    """A mirror that speaks the hub's protocol; https://huggingface.co if absent. Only with a cache."""
    include: Annotated[list[Pattern], Field(max_length=32)] | None = None
    """Files to download into the cache, as patterns over their paths; all if absent."""
    exclude: Annotated[list[Pattern], Field(max_length=32)] | None = None
    """Files to leave out; if neither is given and there are safetensors: the same weights in other formats."""
    cache: Cache | None = None
    """The cache of the weights; if absent, every engine downloads them at every start."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.cache) || !(has(self.endpoint) || has(self.include) || has(self.exclude))",
            "spec.model.source.huggingFace: endpoint, include and exclude are for a download into a cache; set cache "
            "or remove them",
            lambda h: h.cache is not None or (h.endpoint, h.include, h.exclude) == (None, None, None),
        ),
        Rule(
            "!has(self.tokenSecretRef) || !has(self.endpoint) || self.endpoint.startsWith('https://') || "
            f"self.endpoint.matches('{WITHIN_CLUSTER}')",
            "spec.model.source.huggingFace.endpoint: the token is sent by https:// only, or to a Service of the "
            "cluster; use https://, or write http://NAME.NAMESPACE.svc:8080",
            lambda h: h.token_secret_ref is None or h.endpoint is None or stays_secret(h.endpoint),
        ),
    )


class S3(ApiModel):
    """Weights from a bucket of S3, or of a store that speaks its protocol."""

    bucket: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]*[a-z0-9]$", min_length=3, max_length=63)]
    """Name of the bucket."""
    prefix: Folder | None = None
    """Folder of the model in the bucket."""
    endpoint: Endpoint | None = None
    """URL of the store; Amazon's of the region if absent."""
    region: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]+$", min_length=1, max_length=64)] = "us-east-1"
    """Region of the bucket."""
    credentials_secret_ref: SecretName | None = None
    """Secret with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if need be, AWS_SESSION_TOKEN; without one, requests
    are anonymous, or made by the cloud identity of the service's ServiceAccount."""
    include: Annotated[list[Pattern], Field(max_length=32)] | None = None
    """Files to download, as patterns over their paths below the prefix; all if absent."""
    exclude: Annotated[list[Pattern], Field(max_length=32)] | None = None
    """Files to leave out; if neither is given and there are safetensors: the same weights in other formats."""
    cache: Cache
    """The cache of the weights."""


class Oci(ApiModel):
    """Weights in an OCI image or artifact, which nodes pull and mount read-only (Kubernetes image volumes)."""

    reference: Annotated[str, StringConstraints(pattern=r"^\S+$", min_length=1, max_length=512)]
    """The image or artifact, best with its digest: registry.example.com/models/llama@sha256:…"""
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """When nodes pull it, with spec.imagePullSecrets and engine.imagePullSecrets."""
    path: Folder = "."
    """Folder of the model in the image."""


class ModelSource(ApiModel):
    """Where the weights come from."""

    hugging_face: HuggingFace | None = None
    """The Hugging Face hub."""
    pvc: Pvc | None = None
    """A volume."""
    s3: S3 | None = None
    """A bucket of S3, or of a store that speaks its protocol."""
    oci: Oci | None = None
    """An OCI image or artifact."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "[has(self.huggingFace), has(self.pvc), has(self.s3), has(self.oci)].filter(x, x).size() == 1",
            "spec.model.source: give exactly one of huggingFace, pvc, s3 and oci",
            lambda s: sum(part is not None for part in (s.hugging_face, s.pvc, s.s3, s.oci)) == 1,
        ),
    )

    @property
    def cache(self) -> Cache | None:
        """Return where the weights are kept, None where they are kept nowhere, or come on a volume."""
        if self.s3 is not None:
            return self.s3.cache
        return self.hugging_face.cache if self.hugging_face is not None else None


class Model(ApiModel):
    """The model that is served."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$", max_length=128)]
    """The model's id on the hub, and in the catalogue: meta-llama/Llama-3.1-70B-Instruct."""
    served_name: ServedName | None = None
    """Name that clients ask for, and that answers have; the model's name if absent. A change restarts the engines."""
    aliases: Annotated[list[ServedName], Field(max_length=32)] | None = None
    """Other names that clients may ask for; answers have the served name."""
    adapters: (
        Annotated[list[Adapter], Field(max_length=32, json_schema_extra={"x-kubernetes-list-map-keys": ["name"]})]
        | None
    ) = None
    """LoRA adapters, which clients ask for by name. vllm loads and unloads them while it runs; sglang restarts. An
    empty list prepares engines for the first one."""
    max_adapter_rank: Literal[8, 16, 32, 64, 128, 256] | None = None
    """The largest rank of an adapter; 16 if absent."""
    source: ModelSource | None = None
    """Where the weights come from; the hub, by the model's name, if absent."""
    max_model_len: Annotated[int, Field(ge=256, le=10_485_760)] = 32768
    """Longest context in tokens, prompt and answer together."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    """Number format of weights and activations."""
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"] = "auto"
    """Number format of the KV cache; auto follows dtype."""
    config: (
        Annotated[
            dict[str, JsonValue],
            Field(max_length=512, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True}),
        ]
        | None
    ) = None
    """The model's Hugging Face config.json, for a model that is not in the catalogue and has no CostProfile."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.name == oldSelf.name",
            "spec.model.name: cannot change, because workers of two models cannot exchange KV; "
            "create a second service for the other model",
            None,
        ),
        Rule(
            "!has(self.aliases) || !((has(self.servedName) ? self.servedName : self.name) in self.aliases)",
            "spec.model.aliases: holds the served name itself; remove it",
            lambda m: m.served not in (m.aliases or ()),
        ),
        Rule(
            "!has(self.adapters) || self.adapters.all(a, a.name != (has(self.servedName) ? self.servedName : self.name)"
            " && !(has(self.aliases) && a.name in self.aliases))",
            "spec.model.adapters: two have the same name, or one has a name of the model; rename it",
            lambda m: _all_differ([a.name for a in m.adapters or ()], besides=[m.served, *(m.aliases or ())]),
        ),
    )

    @property
    def served(self) -> str:
        """Return the name that engines serve the model under."""
        return self.served_name or self.name

    def identity(self, *, adapters: bool = True) -> dict[str, JsonValue]:
        """Return what workers must agree on to exchange KV: all but where the weights are kept, and aliases.

        ``adapters``: whether they must agree on these, too: where they load them at their start.
        Fields that came later are left out where they are absent, so that no worker restarts for a new operator.
        """
        body: dict[str, JsonValue] = self.model_dump(mode="json", by_alias=True)
        del body["aliases"]
        if not adapters:
            body["adapters"] = body["maxAdapterRank"] = None
        for name in ("servedName", "adapters", "maxAdapterRank"):
            if body[name] is None:
                del body[name]
        source = body.get("source")
        if isinstance(source, dict):
            for place in (source, source.get("huggingFace"), source.get("s3")):
                if isinstance(place, dict):
                    place.pop("cache", None)
                    for name in [name for name in _LATER if place.get(name, "") is None]:
                        del place[name]
        return body


def _all_differ(names: list[str], *, besides: list[str]) -> bool:
    return len(set(names)) == len(names) and not set(names) & set(besides)


def known_dimensions(model: Model) -> ModelDimensions | None:
    """Return the model's dimensions by its config or the catalogue; None where neither has them."""
    if model.config is None:
        return MODELS.get(model.name)
    try:
        return dimensions_of_config(model.name, model.config)
    except ModelConfigError:
        return None  # the planner says what is wrong with it
