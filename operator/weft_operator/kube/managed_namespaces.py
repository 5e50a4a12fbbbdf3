"""Work in labelled namespaces alone: a RoleBinding of the operator's in each of them, and in no other.

The right to bind its one ClusterRole holds in all namespaces, for RBAC knows no labels; the chart's
ValidatingAdmissionPolicy refuses the operator a binding where the label is missing. Nobody but who may label namespaces
decides where the operator works.
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
"""How soon the operator begins to work in a namespace that was labelled: two small lists are asked for each time."""

log = logging.getLogger(__name__)


class Bindings(Protocol):
    """The requests that this needs; they block."""

    def list(
        self, api_version: str, kind: str, *, namespace: str = "", selector: str = "", fields: str = ""
    ) -> list[Manifest]:
        """Return the objects of one kind that have the labels and fields."""

    def create(self, manifest: Manifest) -> Manifest:
        """Create an object; a ConflictError when it exists."""

    def delete(self, key: ObjectKey, *, uid: str) -> None:
        """Delete an object with this uid."""


class ManagedNamespaces:
    """Binds a ClusterRole to the operator's service account (namespace/name) wherever the label is."""

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
        """Return them as soon as the operator may know them: Helm makes its rights at the same time as the operator."""
        while True:
            try:
                return await self.names()
            except ApiError as error:
                log.warning("namespaces_not_listed", extra={"error": str(error)})
            await self._sleep(POLL_S)

    async def changed(self, before: tuple[str, ...]) -> tuple[str, ...]:
        """Return the namespaces once they are others than before."""
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
        # One that is being deleted takes no new objects.
        wanted = {str(item["metadata"]["name"]) for item in labelled if not item["metadata"].get("deletionTimestamp")}
        bound = set()
        for item in self._api.list(RBAC, "RoleBinding", fields=f"metadata.name={self._role}"):
            namespace = str(item["metadata"]["namespace"])
            if namespace in wanted and _says(item) == _says(role_binding(self._role, self._account, namespace)):
                bound.add(namespace)
                continue
            key = ObjectKey(RBAC, "RoleBinding", namespace, self._role)
            with suppress(NotFoundError, ConflictError):  # another one is looked at next time
                self._api.delete(key, uid=str(item["metadata"]["uid"]))
        for namespace in sorted(wanted - bound):
            try:
                self._api.create(role_binding(self._role, self._account, namespace))
            except ConflictError:
                pass  # another replica did
            except NotFoundError:
                wanted.discard(namespace)  # it is gone
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


def _says(binding: Manifest) -> tuple[str, str, list[tuple[str, str, str]]]:
    """Return what a binding gives to whom."""
    role = binding["roleRef"]
    subjects = [
        (str(item["kind"]), str(item.get("namespace", "")), str(item["name"])) for item in binding.get("subjects") or ()
    ]
    return str(role["kind"]), str(role["name"]), subjects
