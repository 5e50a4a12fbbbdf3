"""What the builders are given, and the names and labels they share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weft_core.plan import ROLES, Plan, WorkerRole, content_hash
from weft_operator.api.capacity import Pool
from weft_operator.api.engine import Engine
from weft_operator.api.engine_merge import engine_of_role
from weft_operator.api.objects import COMPONENT_LABEL, SERVICE_LABEL, WORKER_COMPONENT, Manifest, ServiceKey
from weft_operator.api.service import GROUP, KIND, VERSION, DisaggInferenceServiceSpec
from weft_operator.api.speculative import Speculative
from weft_operator.render.engines.adapter_source import loads_at_run_time
from weft_operator.render.engines.adapters import has_fixed_roles
from weft_operator.render.plan_baseline import PlanBaseline
from weft_operator.settings import Settings


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A plan with all it was made from, as kept in the ConfigMap ``<service>-plan``.

    While a new spec cannot be planned, objects are rendered from the record, so that running workers stay
    byte for byte as they are and lost ones are still replaced.
    """

    spec: DisaggInferenceServiceSpec
    plan: Plan
    profile: Mapping[str, Any]
    request_hash: str
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The profile of each pool where pools differ; empty where ``profile`` is that of all."""
    baseline: PlanBaseline = field(default_factory=PlanBaseline)
    """How the plan came to be, and what is proposed in its place."""

    @property
    def paired(self) -> bool:
        """Return whether workers hand KV to each other: co-located ones do not."""
        return self.plan.layout != "colocated"


@dataclass(frozen=True, slots=True)
class Rendering:
    """One service to render: its identity, what was planned for it, and the operator's settings."""

    key: ServiceKey
    uid: str
    record: PlanRecord
    settings: Settings
    ledger: str = ""
    """What is kept of plan changes, as text (weft_operator.rollout.ledger)."""
    canary: Mapping[str, Any] | None = None
    """The routers' configuration of a canary; None where there is none."""
    rules: Plan | None = None
    """The plan by which routers choose, the one before where the record's was given up; None for the record's."""
    images: str = ""
    """The images that the service keeps, as text (weft_operator.render.pinned_images)."""
    keeps_role_names: bool = False
    """Whether its workers stay named by role, as an older operator made them (weft_operator.render.pinned_images)."""
    shares_redis_user: bool = False
    """Whether its pods use the operator's Redis user, because Redis lets no others be made or none are wanted."""

    @property
    def spec(self) -> DisaggInferenceServiceSpec:
        """Return the spec that is rendered."""
        return self.record.spec

    def engine(self, role: WorkerRole) -> Engine:
        """Return what the engines of a role are started with; for both, the settings of either are the same."""
        return engine_of_role(self.spec.engine, "prefill" if role == "prefill" else "decode")

    @property
    def mesh(self) -> str:
        """Return the type of the mesh that the pods join, nothing where they join none."""
        network = self.spec.network
        return "" if network is None or network.mesh is None else network.mesh.type

    @property
    def fixed_roles(self) -> bool:
        """Return whether a worker's role is fixed when its pod starts."""
        return self.keeps_role_names or has_fixed_roles(self.spec)

    @property
    def worker_components(self) -> tuple[str, ...]:
        """Return the components of the service's workers."""
        return ROLES if self.fixed_roles else (WORKER_COMPONENT,)

    @property
    def picked(self) -> bool:
        """Return whether an endpoint picker chooses workers for a gateway."""
        return self.spec.gateway is not None and self.spec.gateway.mode == "endpointPicker"

    @property
    def fails_open(self) -> bool:
        """Return whether workers pass requests on to the coordinator that no endpoint picker sent them."""
        return self.spec.gateway is not None and self.spec.gateway.failure_mode == "FailOpen"

    def component(self, role: WorkerRole) -> str:
        """Return the component of the workers of a role: of workers whose role can change it does not say it."""
        return role if self.fixed_roles else WORKER_COMPONENT

    @property
    def revision(self) -> str:
        """Name what workers must agree on to exchange KV: 10 hex digits over the model and the engine.

        Workers of one revision may pair. A changed revision restarts workers, and so does every other change of their
        pod template, router.json (limits, cost profile) included, whose ConfigMap is named by content. Replica counts
        are in neither, so that a scale change restarts no worker that stays; nor are policies, thresholds and classes,
        which running routers take over.

        What one role has of its own (``spec.engine.prefill``, ``decode``) is in its pods alone: both roles need not
        agree on it, so a change restarts that role's workers one by one, which pair with those of the other as before.
        """
        engine = self.spec.engine
        return content_hash(
            {
                "model": self.spec.model.identity(adapters=not loads_at_run_time(self.spec)),
                "type": engine.type,
                "image": engine.image or self.settings.mock_image,
                "args": list(engine.args),
                "env": [[item.name, item.value] for item in engine.env],
                **({"quantization": engine.quantization} if engine.quantization is not None else {}),
                **({"kvStore": store} if (store := self._store) else {}),
                **({"speculative": _drafts(engine.speculative)} if engine.speculative is not None else {}),
                **(
                    {"neuron": engine.neuron.model_dump(mode="json", by_alias=True, exclude_none=True)}
                    if engine.neuron is not None
                    else {}
                ),
                "kvTransfer": engine.kv_transfer.model_dump(
                    mode="json", by_alias=True, exclude_none=True, exclude={"proof_seconds"}
                ),
            },
            10,
        )

    @property
    def _store(self) -> str:
        """Return the kind of store that holds KV beside the workers, "" without one.

        vLLM manages blocks otherwise beside LMCache; tiers of a worker's own change nothing for others.
        """
        remote = self.spec.kv_cache.remote if self.spec.kv_cache is not None else None
        return "" if remote is None else "mooncake" if remote.lmcache is None else "lmcache"

    def pool(self, name: str) -> Pool:
        """Return a pool of the capacity by name; the first one where the plan names none that is there."""
        pools = self.spec.capacity.pools
        return next((pool for pool in pools if pool.name == name), pools[0])

    def name(self, suffix: str = "") -> str:
        """Return the name of one of the service's objects."""
        return f"{self.key.name}-{suffix}" if suffix else self.key.name

    def labels(self, component: str) -> dict[str, str]:
        """Return the labels of the objects and pods of one component."""
        return {
            "app.kubernetes.io/name": "weft",
            "app.kubernetes.io/instance": self.key.name,
            COMPONENT_LABEL: component,
            "app.kubernetes.io/managed-by": "weft",
            SERVICE_LABEL: self.key.name,
        }

    def selector(self, component: str) -> dict[str, str]:
        """Return the labels that choose the pods of one component."""
        return {SERVICE_LABEL: self.key.name, COMPONENT_LABEL: component}

    def metadata(self, name: str, component: str, extra: Mapping[str, str] | None = None) -> Manifest:
        """Return the metadata of an owned object."""
        return {
            "name": name,
            "namespace": self.key.namespace,
            "labels": {**self.labels(component), **(extra or {})},
            "ownerReferences": [
                {
                    "apiVersion": f"{GROUP}/{VERSION}",
                    "kind": KIND,
                    "name": self.key.name,
                    "uid": self.uid,
                    "controller": True,
                }
            ],
        }


def _drafts(speculative: Speculative) -> Mapping[str, Any]:
    """Return what engines are started with: the acceptance that plans assume changes no worker."""
    return speculative.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"acceptance"})
