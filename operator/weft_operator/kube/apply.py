"""Carry out actions, write the status and post events: the only module that changes anything in the cluster."""

from typing import Any

from weft_operator.api.objects import GroupKey, Manifest, ObjectKey, ServiceKey, controller_of, is_terminating
from weft_operator.api.service import GROUP, KIND, VERSION
from weft_operator.api.worker_group import GROUP_KIND
from weft_operator.errors import ConflictError, InvalidError, NotFoundError, StalledError, WaitingError
from weft_operator.kube.client import FIELD_MANAGER, KubeClient
from weft_operator.kube.diff import Action, Apply, Delete, Scale
from weft_operator.kube.events import Event

CHANGED_WAIT_S = 1.0
"""The change enqueues the object by its watch event; this is for an event that got lost."""


def carry_out(api: KubeClient, action: Action, *, owner_uid: str) -> Manifest | None:
    """Carry out one action and return the object as it is now, None when it is deleted; repeating it changes nothing.

    Raises:
        StalledError: an object of this name exists that Weft did not make.
        WaitingError: the service or group that it is for is gone, or the object to be changed is.
        ApiError: the API server refused or did not answer.
    """
    if isinstance(action, Delete):
        _delete(api, action)
        return None
    if isinstance(action, Scale):
        return api.scale(action.key, action.replicas, uid=action.uid)
    if action.fresh:
        _insist_on_ours(api, action, owner_uid)
        _insist_on_owner(api, action, owner_uid)
        return api.apply(action.manifest)
    return _change(api, action)


def write_status(api: KubeClient, key: ServiceKey | GroupKey, status: dict[str, Any], *, version: str) -> None:
    """Replace the status of a service or group by server-side apply if it still has this resource version.

    One that was deleted meanwhile is left in peace. The version is the guard against writing onto another object of
    the same name: for the status of a custom resource the API server ignores a uid that is not the object's.

    Raises:
        WaitingError: it was changed or recreated meanwhile; the status is for the one before.
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
    """Post an Event about a service; its name follows from what it says, so that it is posted once."""
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


def _insist_on_ours(api: KubeClient, action: Apply, owner_uid: str) -> None:
    """Refuse to take over an object that was not seen among ours but has the name."""
    try:
        found = api.get(action.key)
    except NotFoundError:
        return
    owner = controller_of(found)
    if owner is None or owner.get("uid") != owner_uid:
        raise StalledError(
            "NameTaken",
            f"{action.key} exists and was not made for this service; remove it or give the service another name",
        )


def _insist_on_owner(api: KubeClient, action: Apply, owner_uid: str) -> None:
    """Refuse to make an object for somebody who is gone.

    A pass that began before a service was deleted finds that objects are missing which the garbage collector took; to
    make them again would leave it the same work once more, and a Secret in between. What is missed because the owner
    is gone was deleted after the owner, so this look, which comes after the one that missed it, cannot see the owner.
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
            "Changed", f"{action.key} is not made, for its {owner['kind']} was deleted", retry_after=CHANGED_WAIT_S
        )


def _change(api: KubeClient, action: Apply) -> Manifest:
    """Apply an object onto the one that was seen; server-side apply would make a new one where that is gone."""
    if not action.uid:
        return api.apply(action.manifest)
    metadata = {**action.manifest["metadata"], "uid": action.uid}
    try:
        return api.apply({**action.manifest, "metadata": metadata})
    except (ConflictError, InvalidError) as error:
        # 409 where there is none any more, 422 where another one has its name.
        if isinstance(error, InvalidError) and "metadata.uid" not in str(error):
            raise
        raise WaitingError(
            "Changed", f"{action.key} was changed or deleted during the pass", retry_after=CHANGED_WAIT_S
        ) from error


def _delete(api: KubeClient, action: Delete) -> None:
    try:
        api.delete(action.key, uid=action.uid, grace_s=action.grace_s)
    except (NotFoundError, ConflictError):
        # Gone already, or another object of this name: either way the one we meant is not there any more.
        return
