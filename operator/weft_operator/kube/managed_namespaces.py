"""Restrict the operator to labelled namespaces: a RoleBinding in each of them, and in no other.

The operator may bind its ClusterRole in all namespaces, because RBAC knows no labels; the chart's
ValidatingAdmissionPolicy refuses a binding in a namespace without the label. So only those who may label namespaces
decide where the operator works.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from weft_operator.api.objects import Manifest, ObjectKey
from weft_operator.errors import ApiError, ConflictError, NotFoundError

MANAGED_LABEL = "weft.dev/managed"
RBAC = "rbac.authorization.k8s.io/v1"
POLL_S = 10.0
"""Interval of checks for labelled namespaces, each with two small lists."""

log = logging.getLogger(__name__)


class Bindings(Protocol):
    """The requests that are needed; they block."""

    def list(
        self, api_version: str, kind: str, *, namespace: str = "", selector: str = "", fields: str = ""
    ) -> list[Manifest]:
        """Return the objects of one kind that have the labels and fields."""

    def create(self, manifest: Manifest) -> Manifest:
        """Create an object; a ConflictError when it exists."""

    def delete(self, key: ObjectKey, *, uid: str) -> None:
        """Delete an object with this uid."""


class ManagedNamespaces:
    """Binds a ClusterRole to the operator's service account (namespace/name) in labelled namespaces."""

    def __init__(
        self,
        api: Bindings,
        *,
        role: str,
        account: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._role = role
        self._account = account
        self._sleep = sleep

    async def names(self) -> tuple[str, ...]:
        """Bring the bindings up to date; return the namespaces in which the operator works now.

        Raises:
            ApiError: the API server refused or did not answer.
        """
        return await asyncio.to_thread(self._update)

    async def first_names(self) -> tuple[str, ...]:
        """Return the namespaces once the operator may list them: Helm creates its rights at the same time."""
        while True:
            try:
                return await self.names()
            except ApiError as error:
                log.warning("namespaces_not_listed", extra={"error": str(error)})
            await self._sleep(POLL_S)

    async def changed(self, before: tuple[str, ...]) -> tuple[str, ...]:
        """Return the namespaces once they have changed."""
        while True:
            await self._sleep(POLL_S)
            try:
                now = await self.names()
            except ApiError as error:
                log.warning("namespaces_not_listed", extra={"error": str(error)})
                continue
            if now != before:
                log.info("namespaces_changed", extra={"namespaces": ",".join(now) or "none"})
                return now

    def _update(self) -> tuple[str, ...]:
        labelled = self._api.list("v1", "Namespace", selector=f"{MANAGED_LABEL}=true")
        # A terminating namespace accepts no new objects.
        wanted = {str(item["metadata"]["name"]) for item in labelled if not item["metadata"].get("deletionTimestamp")}
        bound = set()
        for item in self._api.list(RBAC, "RoleBinding", fields=f"metadata.name={self._role}"):
            namespace = str(item["metadata"]["namespace"])
            if namespace in wanted and _grants(item) == _grants(role_binding(self._role, self._account, namespace)):
                bound.add(namespace)
                continue
            key = ObjectKey(RBAC, "RoleBinding", namespace, self._role)
            with suppress(NotFoundError, ConflictError):  # replaced: checked again in the next round
                self._api.delete(key, uid=str(item["metadata"]["uid"]))
        for namespace in sorted(wanted - bound):
            try:
                self._api.create(role_binding(self._role, self._account, namespace))
            except ConflictError:
                pass  # created by another replica
            except NotFoundError:
                wanted.discard(namespace)  # deleted meanwhile
        return tuple(sorted(wanted))


def role_binding(role: str, account: str, namespace: str) -> Manifest:
    """Return the binding of the ClusterRole, under its name, to the operator's service account (namespace/name)."""
    home, _, name = account.partition("/")
    return {
        "apiVersion": RBAC,
        "kind": "RoleBinding",
        "metadata": {
            "name": role,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/name": "weft", "app.kubernetes.io/managed-by": "weft"},
        },
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": home}],
    }


def _grants(binding: Manifest) -> tuple[str, str, list[tuple[str, str, str]]]:
    """Return the role and the subjects of a binding."""
    role = binding["roleRef"]
    subjects = [
        (str(item["kind"]), str(item.get("namespace", "")), str(item["name"])) for item in binding.get("subjects") or ()
    ]
    return str(role["kind"]), str(role["name"]), subjects
