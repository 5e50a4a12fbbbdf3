"""One WorkerGroup as its controller reads it, and the names of its objects."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import ValidationError

from weft_core.parallelism import Degree
from weft_core.plan import Role, WorkerRole
from weft_operator.api.objects import (
    COMPONENT_LABEL,
    DEGREE_LABEL,
    POOL_LABEL,
    REVISION_LABEL,
    SERVICE_LABEL,
    WORKER_COMPONENT,
    GroupKey,
    ObjectKey,
    ServiceKey,
    controller_of,
    labels_of,
    name_of,
)
from weft_operator.api.service import GROUP, VERSION
from weft_operator.api.worker_group import GROUP_KIND, WorkerGroupSpec
from weft_operator.errors import StalledError
from weft_operator.workers.fleet import Worker, kind_name, parse_name
from weft_operator.workers.roles import counts_of, split_roles

GROUP_API = f"{GROUP}/{VERSION}"


class GroupPlace(Protocol):
    """The attributes by which a worker belongs to a group."""

    @property
    def service(self) -> str:
        """Return the name of the service."""

    @property
    def role(self) -> Role | None:
        """Return the role of its workers; None where each has one of its own, which can change."""

    @property
    def degree(self) -> Degree:
        """Return the degree of its workers."""

    @property
    def pool(self) -> str:
        """Return the GPU pool."""

    @property
    def revision(self) -> str:
        """Return the hash of the configuration that workers must share to exchange KV."""


@dataclass(frozen=True, slots=True)
class WorkerGroupView:
    """A group: its identity, the uid of the service that owns it, and its spec."""

    key: GroupKey
    uid: str
    owner_uid: str
    generation: int
    spec: WorkerGroupSpec

    @property
    def service(self) -> ServiceKey:
        """Return the key of the service."""
        return ServiceKey(self.key.namespace, self.spec.service)

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels that select this group's pods."""
        return {
            SERVICE_LABEL: self.spec.service,
            COMPONENT_LABEL: self.component,
            DEGREE_LABEL: str(self.spec.degree),
            POOL_LABEL: self.spec.pool,
            REVISION_LABEL: self.spec.revision,
        }

    @property
    def component(self) -> str:
        """Return the component of its workers."""
        return component_of(self.spec.role)

    @property
    def fixed(self) -> bool:
        """Return whether its workers have one role for good."""
        return self.spec.role is not None

    def roles(self, replicas: int) -> Mapping[WorkerRole, int]:
        """Return how many of so many workers have each role."""
        if self.spec.role is not None:
            return {self.spec.role: replicas}
        return split_roles(counts_of(self.spec.roles), replicas)

    def worker(self, index: int, role: WorkerRole | None = None) -> Worker:
        """Return the worker of an index, and of a role where that is not the group's."""
        return Worker(role or self.spec.role or "decode", self.spec.degree, index, self.spec.pool, fixed=self.fixed)

    def name_of(self, worker: Worker) -> str:
        """Return the name of a worker and of its StatefulSet."""
        return worker.name(self.spec.service)


def component_of(role: Role | None) -> str:
    """Return the component of the workers of a group with this role, or of one whose workers' roles can change."""
    return WORKER_COMPONENT if role is None else role


def fixed_role(role: WorkerRole, *, fixed_roles: bool) -> Role | None:
    """Return the role that a group has for good, None where those of its workers can change.

    Of both roles a worker whose engine serves one alone decodes.
    """
    if not fixed_roles:
        return None
    return "decode" if role == "both" else role


def group_name(service: str, role: Role | None, degree: Degree, pool: str, revision: str) -> str:
    """Return the name of a group: demo-w4-h100-1a2b3c, and of one with a fixed role demo-p4-h100-1a2b3c."""
    return "-".join(part for part in (service, kind_name(role, degree), pool, revision[:6]) if part)


def group_object(key: GroupKey) -> ObjectKey:
    """Return the key of a group's own object."""
    return ObjectKey(GROUP_API, GROUP_KIND, key.namespace, key.name)


def is_legacy(item: Mapping[str, Any], group: "GroupPlace", owner_uid: str) -> bool:
    """Return whether a StatefulSet belongs to this group and is owned by the service, from before WorkerGroups existed.

    The group adopts it with the same pod template, so its pods stay.
    """
    service = owner_uid and (controller_of(item) or {}).get("uid") == owner_uid
    worker = parse_name(group.service, name_of(item), labels_of(item).get(POOL_LABEL, ""))
    return (
        bool(service)
        and worker is not None
        and (worker.role, worker.degree, worker.pool) == (group.role, group.degree, group.pool)
        and (item["spec"]["template"]["metadata"].get("labels") or {}).get(REVISION_LABEL) == group.revision
    )


def parse_group(manifest: Mapping[str, Any]) -> WorkerGroupView:
    """Return the group of an object as the API server stores it.

    Raises:
        StalledError: InvalidSpec, naming the field: the object was written by another version, or by hand.
    """
    metadata = manifest["metadata"]
    try:
        spec = WorkerGroupSpec.model_validate(manifest.get("spec"), extra="ignore")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise StalledError("InvalidSpec", f"WorkerGroup {metadata['name']}: spec.{where}: {first['msg']}") from error
    owner = controller_of(manifest) or {}
    return WorkerGroupView(
        key=GroupKey(metadata.get("namespace", ""), metadata["name"]),
        uid=str(metadata.get("uid", "")),
        owner_uid=str(owner.get("uid", "")),
        generation=int(metadata.get("generation", 0)),
        spec=spec,
    )
