"""A cluster in memory: the seam of a pass, with just enough of the controllers that make pods."""

import pickle
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

from weft_operator.api.capacity import Pool
from weft_operator.api.objects import (
    COMPONENT_LABEL,
    ROLE_LABEL,
    WORKER_LABEL,
    GroupKey,
    Manifest,
    ObjectKey,
    ServiceKey,
    controller_of,
    is_terminating,
    key_of,
    labels_of,
    name_of,
)
from weft_operator.api.secret_references import SecretReference
from weft_operator.api.status import Status
from weft_operator.api.worker_group import GROUP_KIND, WorkerGroupStatus
from weft_operator.errors import OperatorError
from weft_operator.kube.diff import Action, Apply, Relabel, Scale, content_hash
from weft_operator.kube.events import Event
from weft_operator.kube.observe import Observed
from weft_operator.kube.observe_group import ObservedGroup
from weft_operator.render.companions import COMPANION_KINDS
from weft_operator.workers.groups import group_object
from weft_operator.workers.node_capacity import NodeCapacity

Copied = TypeVar("Copied")

UID = "11111111-2222-3333-4444-555555555555"


class FakeCluster:
    """Keeps objects by key; ``settle`` plays the StatefulSet and Deployment controllers, scheduler and kubelet."""

    def __init__(self, service: Manifest, *, clock: Callable[[], datetime], gpus: int = 16) -> None:
        self.service = _copied(service)
        self.service["metadata"] |= {"uid": UID, "generation": 1}
        self.objects: dict[ObjectKey, Manifest] = {}
        self.pods: dict[str, Manifest] = {}
        self.profile: Manifest | None = None
        self.more_profiles: dict[str, Manifest] = {}
        self.trace: Manifest | None = None
        self.routing_table: Manifest | None = None
        self.claims: dict[str, Manifest] = {}
        """Claims that people made."""
        self.image_volumes = ""
        """Why the cluster has no image volumes."""
        self.secrets: dict[str, Manifest] = {}
        self.api_key_found = True
        self.model_token_found = True
        self.model_keys_found = True
        self.certificate_found = True
        self.jwks_found = True
        self.unmarked: tuple[SecretReference, ...] = ()
        self.unmarked_in_active_plan: tuple[SecretReference, ...] = ()
        self.patched_secrets: dict[str, Literal["missing", "unmarked", "marked"]] = {}
        self.gpus: int | None = gpus
        self.nodes: tuple[int, ...] = ()
        self.node_memory: dict[str, int] = {}
        """Allocatable memory of the largest node of each pool."""
        self.tier_claims: dict[str, Manifest | None] = {}
        self.actions: list[Action] = []
        self.events: list[Event] = []
        self.events_error: OperatorError | None = None
        self.read_error: OperatorError | None = None
        self.former: tuple[ObjectKey, ...] = ()
        """What reading all that belongs to the service fails with; the service alone can be read."""
        self.status_writes = 0
        self.group_writes = 0
        self.fail: Callable[[Action], OperatorError | None] = lambda _action: None
        self._clock = clock
        self.uids = 0
        """How many uids were given; whoever restores objects restores it, too, or two objects get one."""

    async def observe(self, key: ServiceKey) -> Observed | None:
        if name_of(self.service) != key.name:
            return None
        if self.read_error is not None:
            raise self.read_error
        return Observed(
            service=_copied(self.service),
            owned=tuple(_copied(item) for item in self.objects.values() if _owner(item) == UID),
            workers=tuple(
                _copied(item) for item in self.objects.values() if item["kind"] == "StatefulSet" and _owner(item) != UID
            ),
            pods=tuple(_copied(item) for item in self.pods.values()),
            profiles={
                **({name_of(self.profile): self.profile} if self.profile is not None else {}),
                **self.more_profiles,
            },
            former=self.former,
            claims={
                **self.claims,
                **{key.name: item for key, item in self.objects.items() if key.kind == "PersistentVolumeClaim"},
            },
            tier_claims=self.tier_claims,
            trace=self.trace,
            routing_table=self.routing_table,
            api_key_found=self.api_key_found,
            model_token_found=self.model_token_found,
            model_keys_found=self.model_keys_found,
            certificate_found=self.certificate_found,
            jwks_found=self.jwks_found,
            unmarked=self.unmarked,
            unmarked_in_active_plan=self.unmarked_in_active_plan,
            patched_secrets=self.patched_secrets,
        )

    async def read_service(self, key: ServiceKey) -> Manifest | None:
        return _copied(self.service) if name_of(self.service) == key.name else None

    async def observe_group(self, key: GroupKey) -> ObservedGroup | None:
        group = self.objects.get(group_object(key))
        if group is None:
            return None
        sets = [item for item in self.objects.values() if item["kind"] == "StatefulSet"]
        return ObservedGroup(
            group=_copied(group),
            statefulsets=tuple(_copied(item) for item in sets if _component(item) == _component(group)),
            pods=tuple(_copied(pod) for pod in self.pods.values() if _component(pod) == _component(group)),
            companions=tuple(
                _copied(item)
                for item in self.objects.values()
                if item["kind"] in COMPANION_KINDS and WORKER_LABEL in labels_of(item)
            ),
        )

    async def write_group_status(self, key: GroupKey, status: dict[str, Any], *, version: str) -> None:
        group = self.objects[group_object(key)]
        assert version == group["metadata"].get("resourceVersion", "")
        self.group_writes += 1
        WorkerGroupStatus.model_validate(status)  # the API server refuses fields that the schema does not declare
        group["status"] = _copied(status)

    async def read_capacity(self, pools: Sequence[Pool], _key: ServiceKey) -> NodeCapacity | None:
        if self.gpus is None:
            return None
        return NodeCapacity(total=self.gpus, free={pool.name: self.nodes for pool in pools} if self.nodes else {})

    async def read_node_memory(self, _pools: Sequence[Pool]) -> dict[str, int]:
        return self.node_memory

    async def image_volumes_refusal(self, _namespace: str, _image: str) -> str:
        return self.image_volumes

    async def read_secret(self, _key: ServiceKey, name: str) -> Manifest | None:
        return self.secrets.get(name)

    async def carry_out(self, action: Action, *, owner_uid: str) -> Manifest | None:
        groups = [item["metadata"]["uid"] for item in self.objects.values() if item["kind"] == GROUP_KIND]
        assert owner_uid in (UID, *groups)
        error = self.fail(action)
        if error is not None:
            raise error
        self.actions.append(action)
        if isinstance(action, Apply):
            self._apply(action.manifest)
            return _copied(self.objects[action.key])
        if isinstance(action, Scale):
            group = self.objects[action.key]
            assert action.uid in ("", group["metadata"]["uid"])
            group["spec"]["replicas"] = action.replicas
            if action.roles is not None:
                group["spec"]["roles"] = dict(action.roles)
            group["metadata"]["generation"] += 1
            return _copied(group)
        if isinstance(action, Relabel):
            pod = self.pods[action.key.name]
            assert action.uid == pod["metadata"]["uid"]
            pod["metadata"]["labels"] |= action.labels
            return _copied(pod)
        if action.key.kind == "Pod":
            assert action.uid == self.pods[action.key.name]["metadata"]["uid"]
            self.remove_pod(action.key.name)
            return None
        assert self.objects[action.key]["metadata"]["uid"] == action.uid
        self._remove(action.key)
        return None

    async def write_status(self, _key: ServiceKey, status: dict[str, Any], *, version: str) -> None:
        assert version == self.service["metadata"].get("resourceVersion", "")
        self.status_writes += 1
        Status.model_validate(status)
        self.service["status"] = _copied(status)

    async def post_event(self, key: ServiceKey, uid: str, event: Event) -> None:
        if self.events_error is not None:
            raise self.events_error
        if event.name(key.name, uid) not in {item.name(key.name, uid) for item in self.events}:
            self.events.append(event)

    def change(self, **parts: Any) -> None:
        """Change parts of the spec, as a user does."""
        self.service["spec"] = {**self.service["spec"], **_copied(parts)}
        self.service["metadata"]["generation"] += 1

    def settle(self) -> None:
        """Let the controllers finish: every StatefulSet has its pod, everything is ready."""
        for item in self.objects.values():
            if item["kind"] == "StatefulSet":
                self._settle_set(item)
            elif item["kind"] == "Deployment":
                count = item["spec"]["replicas"]
                item["status"] = {
                    "observedGeneration": item["metadata"]["generation"],
                    **dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), count),
                }

    def remove_pod(self, name: str) -> None:
        """End a pod, unless its node is dead: then it hangs."""
        pod = self.pods[name]
        if pod.get("on-dead-node"):
            pod["metadata"].setdefault("deletionTimestamp", self._time(30))
        else:
            del self.pods[name]

    def lose_node(self, name: str) -> None:
        """Let a pod's node die: the taint manager deletes the pod, and nobody ends it."""
        pod = self.pods[name]
        pod["on-dead-node"] = True
        pod["metadata"]["deletionTimestamp"] = self._time(30)
        pod["status"]["conditions"] = [
            {"type": "Ready", "status": "False"},
            {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"},
        ]

    def break_pod(self, name: str) -> None:
        """Let a pod never be ready again: its StatefulSet then waits for it and does not replace it."""
        self.pods[name]["status"]["conditions"] = [{"type": "Ready", "status": "False"}]

    def named(self, kind: str, name: str) -> Manifest:
        """Return an object."""
        return next(item for key, item in self.objects.items() if (key.kind, key.name) == (kind, name))

    def groups(self) -> list[GroupKey]:
        """Return the keys of all groups."""
        return sorted(GroupKey(key.namespace, key.name) for key in self.objects if key.kind == GROUP_KIND)

    def names(self, kind: str) -> list[str]:
        """Return the names of the objects of a kind."""
        return sorted(key.name for key in self.objects if key.kind == kind)

    def switching(self) -> dict[str, str]:
        """Return the role of each worker that has not confirmed it yet."""
        groups = [item for item in self.objects.values() if item["kind"] == GROUP_KIND]
        rows = [row for item in groups for row in (item.get("status") or {}).get("workers") or ()]
        return {row["name"]: row["role"] for row in rows if row.get("switching")}

    def pod_roles(self) -> dict[str, str]:
        """Return the role in the label of each worker's pod, by worker."""
        pods = [labels_of(pod) for pod in self.pods.values() if ROLE_LABEL in labels_of(pod)]
        return {labels[WORKER_LABEL]: labels[ROLE_LABEL] for labels in pods}

    def asked(self) -> dict[str, int]:
        """Return how many workers are asked of all groups, by role and degree: p4, d8; b4 of both roles."""
        found: dict[str, int] = {}
        for item in (item for item in self.objects.values() if item["kind"] == GROUP_KIND):
            spec = item["spec"]
            fixed = {spec["role"]: spec.get("replicas") or 0} if "role" in spec else None
            for role, count in (fixed or spec.get("roles") or {}).items():
                name = f"{role[0]}{spec['degree']}"
                found[name] = found.get(name, 0) + count
        return {name: count for name, count in found.items() if count}

    def roles(self) -> dict[str, str]:
        """Return the role of each worker, by the name of its StatefulSet."""
        return {name: labels_of(self.named("StatefulSet", name))[ROLE_LABEL] for name in self.names("StatefulSet")}

    def condition(self, kind: str) -> dict[str, Any]:
        """Return a condition of the service."""
        conditions = self.service["status"]["conditions"]
        return next(item for item in conditions if item["type"] == kind)

    def _remove(self, key: ObjectKey) -> None:
        """Remove an object with what it owns, as the garbage collector does."""
        uid = self.objects.pop(key)["metadata"]["uid"]
        for other in [other for other, item in self.objects.items() if _owner(item) == uid]:
            self._remove(other)
        for name in [name for name, pod in self.pods.items() if _owner(pod) == uid]:
            self.remove_pod(name)
        if key.kind == "StatefulSet":
            for name, pod in list(self.pods.items()):
                if labels_of(pod).get("weft.dev/worker") == key.name:
                    self.remove_pod(name)

    def _apply(self, manifest: Manifest) -> None:
        key = key_of(manifest)
        old = self.objects.get(key)
        new = _copied(manifest)
        new["metadata"]["uid"] = old["metadata"]["uid"] if old else self._uid()
        if old is not None and key.kind == GROUP_KIND:
            # Another field's owner set them.
            new["spec"] |= {name: old["spec"][name] for name in ("replicas", "roles") if name in old["spec"]}
        changed = old is None or old.get("spec") != new.get("spec")
        generation = (old["metadata"]["generation"] if old else 0) + int(changed)
        new["metadata"]["generation"] = generation
        if old is not None and "status" in old:
            new["status"] = old["status"]
        self.objects[key] = new

    def _settle_set(self, item: Manifest) -> None:
        revision = content_hash(item["spec"]["template"])[:8]
        item["status"] = {
            "observedGeneration": item["metadata"]["generation"],
            "updateRevision": revision,
            "currentRevision": revision,
        }
        name = f"{name_of(item)}-0"
        pod = self.pods.get(name)
        if pod is not None and (
            is_terminating(pod)
            or item["spec"]["updateStrategy"]["type"] == "OnDelete"
            or labels_of(pod)["controller-revision-hash"] == revision
            or pod["status"]["conditions"][0]["status"] == "False"
        ):
            return
        template = _copied(item["spec"]["template"])
        self.pods[name] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": item["metadata"]["namespace"],
                "uid": self._uid(),
                "labels": {**template["metadata"]["labels"], "controller-revision-hash": revision},
                "annotations": dict(template["metadata"].get("annotations") or {}),
            },
            "spec": {**template["spec"], "nodeName": "node-1"},
            "status": {
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": self._time(0)}],
            },
        }

    def _uid(self) -> str:
        self.uids += 1
        return f"uid-{self.uids}"

    def _time(self, seconds: float) -> str:
        return (self._clock() + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _copied(value: Copied) -> Copied:
    """Return a copy all the way down: five times as fast as copy.deepcopy, where tests spent most of their time."""
    copy: Copied = pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))  # noqa: S301 - its own
    return copy


def _owner(item: Manifest) -> str:
    return str((controller_of(item) or {}).get("uid", ""))


def _component(item: Manifest) -> str:
    return labels_of(item).get(COMPONENT_LABEL, "")
