"""Carry out actions, write the status and post events: the only module that writes to the cluster."""

from typing import Any

from weft_operator.api.objects import GroupKey, Manifest, ObjectKey, ServiceKey, controller_of, is_terminating
from weft_operator.api.service import GROUP, KIND, VERSION
from weft_operator.api.worker_group import GROUP_KIND
from weft_operator.errors import ConflictError, InvalidError, NotFoundError, StalledError, WaitingError
from weft_operator.kube.client import FIELD_MANAGER, KubeClient
from weft_operator.kube.diff import Action, Apply, Delete, Relabel, Scale
from weft_operator.kube.events import Event

CHANGED_WAIT_S = 1.0
"""The watch event of the change enqueues the object; this is for a lost event."""


def carry_out(api: KubeClient, action: Action, *, owner_uid: str) -> Manifest | None:
    """Carry out one action and return the object after it, None when it is deleted; it is idempotent.

    Raises:
        StalledError: an object of this name exists that Weft did not create.
        WaitingError: its service or group, or the object to be changed, is gone.
        ApiError: the API server refused or did not answer.
    """
    if isinstance(action, Delete):
        _delete(api, action)
        return None
    if isinstance(action, Scale):
        return api.scale(action.key, action.replicas, uid=action.uid, roles=action.roles)
    if isinstance(action, Relabel):
        return _relabel(api, action)
    if action.fresh:
        _check_name_is_free(api, action, owner_uid)
        _check_owner_exists(api, action, owner_uid)
        return api.apply(action.manifest)
    return _change(api, action)


def write_status(api: KubeClient, key: ServiceKey | GroupKey, status: dict[str, Any], *, version: str) -> None:
    """Replace the status of a service or group by server-side apply if it still has this resource version.

    A deleted object is ignored. The version prevents a write to another object of the same name: for the status of a
    custom resource the API server ignores a wrong uid.

    Raises:
        WaitingError: it was changed or recreated meanwhile.
    """
    body: Manifest = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": GROUP_KIND if isinstance(key, GroupKey) else KIND,
        "metadata": {"name": key.name, "namespace": key.namespace, "resourceVersion": version},
        "status": status,
    }
    try:
        api.apply(body, subresource="status")
    except NotFoundError:
        return
    except ConflictError as error:
        raise WaitingError("Changed", f"{key} changed during the pass", retry_after=CHANGED_WAIT_S) from error


def post_event(api: KubeClient, key: ServiceKey, uid: str, event: Event, *, now: str) -> None:
    """Post an Event about a service; its name is a hash of its content, so that it is posted once."""
    body: Manifest = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event.name(key.name, uid), "namespace": key.namespace},
        "involvedObject": {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "name": key.name,
            "namespace": key.namespace,
            "uid": uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message,
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    try:
        api.create(body)
    except ConflictError:
        return


def _check_name_is_free(api: KubeClient, action: Apply, owner_uid: str) -> None:
    """Refuse to overwrite an object with this name that is not controlled by the owner."""
    try:
        found = api.get(action.key)
    except NotFoundError:
        return
    owner = controller_of(found)
    if owner is None or owner.get("uid") != owner_uid:
        raise StalledError(
            "NameTaken",
            f"{action.key} exists and was not created for this service; remove it or give the service another name",
        )


def _check_owner_exists(api: KubeClient, action: Apply, owner_uid: str) -> None:
    """Refuse to create an object for a deleted owner.

    A pass that started before a service was deleted may find objects missing that the garbage collector deleted, and
    must not create them again. The garbage collector deletes them after the owner, so a read of the owner after the
    read that missed them does not find the owner.
    """
    owner = controller_of(action.manifest)
    if owner is None:
        return
    found: Manifest | None
    try:
        found = api.get(ObjectKey(owner["apiVersion"], owner["kind"], action.key.namespace, owner["name"]))
    except NotFoundError:
        found = None
    if found is None or found["metadata"]["uid"] != owner_uid or is_terminating(found):
        raise WaitingError(
            "Changed",
            f"{action.key} is not created, because its {owner['kind']} was deleted",
            retry_after=CHANGED_WAIT_S,
        )


def _change(api: KubeClient, action: Apply) -> Manifest:
    """Apply an object to the observed one; without its uid server-side apply would create a deleted one again."""
    if not action.uid:
        return api.apply(action.manifest)
    metadata = {**action.manifest["metadata"], "uid": action.uid}
    try:
        return api.apply({**action.manifest, "metadata": metadata})
    except (ConflictError, InvalidError) as error:
        # 409 if it was deleted, 422 if another object has its name.
        if isinstance(error, InvalidError) and "metadata.uid" not in str(error):
            raise
        raise WaitingError(
            "Changed", f"{action.key} was changed or deleted during the pass", retry_after=CHANGED_WAIT_S
        ) from error


def _relabel(api: KubeClient, action: Relabel) -> Manifest | None:
    try:
        return api.label(action.key, action.labels, uid=action.uid)
    except (NotFoundError, ConflictError):
        return None  # its pod was deleted or recreated, and the new one has the labels of the template


def _delete(api: KubeClient, action: Delete) -> None:
    try:
        api.delete(action.key, uid=action.uid, grace_s=action.grace_s)
    except (NotFoundError, ConflictError):
        # Already deleted, or replaced by another object of this name.
        return
