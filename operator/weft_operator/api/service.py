"""DisaggInferenceService: one model, served on disaggregated prefill and decode workers."""

# ruff: noqa: RUF012 - pydantic copies the defaults of fields

import re
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from weft_core.parallelism import gpus_of
from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.capacity import Capacity, Pool
from weft_operator.api.coordinator import Coordinator, Telemetry
from weft_operator.api.engine import Engine
from weft_operator.api.engine_rules import ENGINE_RULES, REMOTE_ONLY
from weft_operator.api.fields import PullSecrets, Role
from weft_operator.api.gateway import Gateway
from weft_operator.api.kv_cache import KV_CACHE_RULES, KvCache
from weft_operator.api.mesh import Network
from weft_operator.api.model import Model
from weft_operator.api.network import NetworkPolicies
from weft_operator.api.neuron import NEURON_RULES
from weft_operator.api.planning import Planning, Profile, Rollout
from weft_operator.api.routing import PLAIN_CLASS, Routing
from weft_operator.api.scheduling import Scheduling
from weft_operator.api.speculative import SPECULATIVE_RULES
from weft_operator.api.status import Status
from weft_operator.api.templates import Templates, pools_known
from weft_operator.api.workload import Slo, Workload

GROUP = "weft.dev"
VERSION = "v1alpha1"
KIND = "DisaggInferenceService"
PLURAL = "disagginferenceservices"

MAX_NAME = 40
"""Derived names stay below 63 characters: <name>-p64-1023-0 plus the StatefulSet controller's hash of 11."""

MAX_NAME_OF_PARTS = 28
"""The same where pools have parallelism: <name>-d-tp64pp64dp256ep-1023 plus the hash."""

MAX_NAME_OF_ANY = 34
"""The same where pools leave the strategy to the planner: <name>-d-tp32dp2ep-1023 plus the hash."""

NAME_MESSAGE = (
    f"metadata.name: use at most {MAX_NAME} characters a-z, 0-9 and -, beginning with a letter; "
    "names of workers and Services are made from it"
)


_SMALLEST = "(has({0}.degrees) ? {0}.degrees.min() : 1)"
"""CEL: the GPUs of a pool's smallest worker, where it does not name parallelism."""


def _smallest(capacity: Capacity, role: Role) -> int:
    return min(_smallest_worker(pool) for pool in capacity.pools if role in pool.roles)


def _smallest_worker(pool: Pool) -> int:
    return min(map(gpus_of, pool.named_degrees or (1,)))


_COLOCATED = (
    f"(has(self.planning.layouts) ? 'colocated' in self.planning.layouts : !(self.engine.type in {list(REMOTE_ONLY)}))"
)
"""CEL: whether a plan may have workers that prefill for their own sessions alone."""


def _may_be_colocated(spec: "DisaggInferenceServiceSpec") -> bool:
    layouts = spec.planning.layouts
    return spec.engine.type not in REMOTE_ONLY if layouts is None else "colocated" in layouts


def _bounds_fit(spec: "DisaggInferenceServiceSpec") -> bool:
    prefill = spec.planning.prefill.min * _smallest(spec.capacity, "prefill")
    decode = spec.planning.decode.min * _smallest(spec.capacity, "decode")
    both = min((_smallest_worker(pool) for pool in spec.capacity.pools if len(set(pool.roles)) == 2), default=None)
    if both is not None and _may_be_colocated(spec) and spec.planning.decode.min * both <= spec.capacity.gpus:
        return True
    if both is not None and "symmetric" in (spec.planning.layouts or ()):
        least = max(2, spec.planning.prefill.min, spec.planning.decode.min)
        return min(prefill + decode, least * both) <= spec.capacity.gpus
    return prefill + decode <= spec.capacity.gpus


def _session_fits(spec: "DisaggInferenceServiceSpec") -> bool:
    load = spec.workload
    if load.rounds is None or load.first_prompt is None or load.increment is None or load.decode is None:
        return True  # the planner knows the rest
    later = load.rounds.mean - 1
    tokens = load.first_prompt.mean + later * load.increment.mean + load.rounds.mean * load.decode.mean
    return tokens <= spec.model.max_model_len


def _classes_known(spec: "DisaggInferenceServiceSpec") -> bool:
    known = {item.name for item in spec.workload.classes or ()}
    return all(item.name in known for item in spec.slo.classes or ())


def request_classes(spec: "DisaggInferenceServiceSpec") -> set[str]:
    """Return the names of all classes that requests may be of."""
    return {PLAIN_CLASS, *(item.name for item in (*(spec.routing.classes or ()), *(spec.slo.classes or ())))}


def _tenants_classes_known(spec: "DisaggInferenceServiceSpec") -> bool:
    tenants = (spec.routing.qos.tenants if spec.routing.qos is not None else None) or ()
    named = {name for item in tenants for name in (item.default_class, *(item.classes or ())) if name is not None}
    return named <= request_classes(spec)


def _has_pool_for_both(spec: "DisaggInferenceServiceSpec") -> bool:
    own = set(spec.planning.layouts or ()) <= {"disaggregated"}
    return own or any(len(set(pool.roles)) == 2 for pool in spec.capacity.pools)


def _known(name: str) -> str:
    """Return the CEL condition that a name is one of a class of requests."""
    return (
        f"({name} == '{PLAIN_CLASS}' || (has(self.routing.classes) && self.routing.classes.exists(c, c.name == {name}))"
        f" || (has(self.slo.classes) && self.slo.classes.exists(c, c.name == {name})))"
    )


class DisaggInferenceServiceSpec(ApiModel):
    """What is wanted."""

    model: Model
    """The model that is served."""
    engine: Engine
    """The inference engine of every worker."""
    kv_cache: KvCache | None = None
    """Tiers below GPU memory that keep KV; none if absent. A change restarts workers one by one; another kind of remote
    store makes a new revision."""
    slo: Slo
    """The service level objective."""
    workload: Workload
    """The load the plan is made for."""
    capacity: Capacity
    """The GPU budget."""
    profile: Profile = Profile()
    """Where predicted times come from."""
    planning: Planning = Planning()
    """How plans are made."""
    routing: Routing = Routing()
    """Where prefill tasks run."""
    rollout: Rollout = Rollout()
    """How workers are replaced."""
    scheduling: Scheduling = Scheduling()
    """How the pods of workers are scheduled."""
    coordinator: Coordinator = Coordinator()
    """The front door."""
    gateway: Gateway | None = None
    """A route of the Gateway API to the service; none if absent."""
    telemetry: Telemetry | None = None
    """Traces and access lines; no traces, and a line for every request, if absent."""
    network: Network | None = None
    """The service mesh that the pods join."""
    network_policy: NetworkPolicies = NetworkPolicies()
    """Who may reach the pods."""
    image_pull_secrets: PullSecrets = []
    """Secrets to pull the images of all pods with: coordinators, workers and Jobs."""
    pod_templates: Templates = []
    """Changes of your own to the pods, merged in this order."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *ENGINE_RULES,
        *SPECULATIVE_RULES,
        *NEURON_RULES,
        *KV_CACHE_RULES,
        Rule(
            "self.podTemplates.all(t, !has(t.pool) || self.capacity.pools.exists(p, p.name == t.pool))",
            "spec.podTemplates.pool: is none of spec.capacity.pools; correct the name",
            lambda s: pools_known(s.pod_templates, {pool.name for pool in s.capacity.pools}),
        ),
        Rule(
            "!has(self.planning.budgetPerHour) || self.capacity.pools.all(p, has(p.pricePerGpuHour))",
            "spec.planning.budgetPerHour: needs spec.capacity.pools.pricePerGpuHour of every pool; add it",
            lambda s: (
                s.planning.budget_per_hour is None
                or all(pool.price_per_gpu_hour is not None for pool in s.capacity.pools)
            ),
        ),
        Rule(
            "self.engine.type != 'tensorrt-llm' || self.capacity.pools.all(p, !has(p.parallelism)"
            " || p.parallelism.all(w, w.tp == 1 || w.dp == 1))",
            "spec.capacity.pools.parallelism: data-parallel ranks of tensorrt-llm have one GPU each; set tp or dp to 1",
            lambda s: (
                s.engine.type != "tensorrt-llm"
                or all(w.tp == 1 or w.dp == 1 for p in s.capacity.pools for w in p.parallelism or ())
            ),
        ),
        Rule(
            # Written as a search, because the API server estimates the cost of filter().map().min() above its budget.
            "self.capacity.pools.exists(p, has(p.parallelism)) || self.capacity.pools.exists(p, 'prefill' in p.roles"
            " && self.capacity.pools.exists(q, 'decode' in q.roles"
            f" && self.planning.prefill.min * {_SMALLEST.format('p')} + self.planning.decode.min *"
            f" {_SMALLEST.format('q')} <= self.capacity.gpus)) || ({_COLOCATED}"
            " && self.capacity.pools.exists(p, 'prefill' in p.roles && 'decode' in p.roles"
            f" && self.planning.decode.min * {_SMALLEST.format('p')} <= self.capacity.gpus))"
            " || (has(self.planning.layouts) && 'symmetric' in self.planning.layouts"
            " && self.capacity.pools.exists(p, 'prefill' in p.roles && 'decode' in p.roles"
            f" && [2, self.planning.prefill.min, self.planning.decode.min].max() * {_SMALLEST.format('p')}"
            " <= self.capacity.gpus))",
            "spec.capacity.gpus: too few for spec.planning.prefill.min and spec.planning.decode.min workers of the "
            "smallest degrees; raise gpus, lower a min, or allow a smaller degree",
            _bounds_fit,
        ),
        Rule(
            "!has(self.planning.schedules) || self.planning.schedules.all(s, !has(s.gpus) || s.gpus <= "
            "self.capacity.gpus)",
            "spec.planning.schedules.gpus: is more than spec.capacity.gpus, the most there may be; lower it, or raise "
            "spec.capacity.gpus",
            lambda s: all(item.gpus is None or item.gpus <= s.capacity.gpus for item in s.planning.schedules),
        ),
        Rule(
            "!has(self.planning.layouts) || self.planning.layouts.all(l, l == 'disaggregated')"
            " || self.capacity.pools.exists(p, 'prefill' in p.roles && 'decode' in p.roles)",
            "spec.planning.layouts: all but disaggregated need a pool with the roles prefill and decode; add the "
            "missing one, or allow disaggregated alone",
            _has_pool_for_both,
        ),
        Rule(
            "self.routing.policy != 'colocated'"
            " || (has(self.planning.layouts) && self.planning.layouts.all(l, l == 'colocated'))",
            "spec.routing.policy: colocated leaves prefill workers idle; set spec.planning.layouts to [colocated], or "
            "choose another policy",
            lambda s: s.routing.policy != "colocated" or set(s.planning.layouts or ()) == {"colocated"},
        ),
        Rule(
            "!has(self.gateway) || self.gateway.failureMode != 'FailOpen' || !has(self.coordinator.tls)",
            "spec.gateway.failureMode: with FailOpen workers pass requests on to coordinators without TLS; remove "
            "spec.coordinator.tls, or set FailClose",
            lambda s: s.gateway is None or s.gateway.failure_mode != "FailOpen" or s.coordinator.tls is None,
        ),
        Rule(
            "!has(self.workload.rounds) || !has(self.workload.firstPrompt) || !has(self.workload.increment)"
            " || !has(self.workload.decode)"
            " || self.workload.firstPrompt.mean + (self.workload.rounds.mean - 1.0) * self.workload.increment.mean"
            " + self.workload.rounds.mean * self.workload.decode.mean <= double(self.model.maxModelLen)",
            "spec.workload: the mean session is longer than spec.model.maxModelLen; "
            "raise maxModelLen or shorten the workload",
            _session_fits,
        ),
        Rule(
            "!has(self.slo.classes) || self.slo.classes.all(c,"
            " has(self.workload.classes) && self.workload.classes.exists(w, w.name == c.name))",
            "spec.slo.classes: names a class that spec.workload.classes lacks; add it there or remove it here",
            _classes_known,
        ),
        Rule(
            f"!has(self.routing.qos) || {_known('self.routing.qos.defaultClass')}",
            "spec.routing.qos.defaultClass: is neither in spec.routing.classes nor in spec.slo.classes; add it there",
            lambda s: s.routing.qos is None or s.routing.qos.default_class in request_classes(s),
        ),
        Rule(
            "!has(self.routing.qos) || !has(self.routing.qos.tenants) || self.routing.qos.tenants.all(t,"
            f" (!has(t.defaultClass) || {_known('t.defaultClass')})"
            f" && (!has(t.classes) || t.classes.all(n, {_known('n')})))",
            "spec.routing.qos.tenants: name a class that is neither in spec.routing.classes nor in spec.slo.classes; "
            "add it there",
            _tenants_classes_known,
        ),
    )


class Metadata(BaseModel):
    """The part of an object's metadata that the operator reads."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0


def name_fits(name: str) -> bool:
    """Return whether the names that are made from a service's name are allowed ones."""
    return len(name) <= MAX_NAME and re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) is not None


class DisaggInferenceService(ApiModel):
    """One model, served on disaggregated prefill and decode workers that the operator plans and deploys."""

    api_version: str = f"{GROUP}/{VERSION}"
    """weft.dev/v1alpha1."""
    kind: str = KIND
    """DisaggInferenceService."""
    metadata: Annotated[Metadata, Field(json_schema_extra={"x-weft-plain-object": True})]
    """Standard object metadata; the name has at most 40 characters."""
    spec: DisaggInferenceServiceSpec
    """What is wanted."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.metadata.name.size() <= {MAX_NAME} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            NAME_MESSAGE,
            lambda service: name_fits(service.metadata.name),
        ),
        Rule(
            f"self.metadata.name.size() <= {MAX_NAME_OF_PARTS}"
            " || !self.spec.capacity.pools.exists(p, has(p.parallelism))",
            f"metadata.name: use at most {MAX_NAME_OF_PARTS} characters where a pool has parallelism; "
            "names of workers, which tell how the model is split, are made from it",
            lambda service: (
                len(service.metadata.name) <= MAX_NAME_OF_PARTS
                or all(pool.parallelism is None for pool in service.spec.capacity.pools)
            ),
        ),
        Rule(
            f"self.metadata.name.size() <= {MAX_NAME_OF_ANY}"
            " || self.spec.capacity.pools.all(p, has(p.degrees) || has(p.parallelism))",
            f"metadata.name: use at most {MAX_NAME_OF_ANY} characters where a pool leaves parallelism to the planner; "
            "names of workers, which tell how the model is split, are made from it; or name degrees",
            lambda service: (
                len(service.metadata.name) <= MAX_NAME_OF_ANY
                or all(pool.named_degrees is not None for pool in service.spec.capacity.pools)
            ),
        ),
    )


STATUS: type[ApiModel] = Status
"""Schema of the status; the operator writes plain dicts that follow it."""
