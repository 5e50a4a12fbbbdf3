"""Requests to the Kubernetes API server: with ``connection`` and ``exec``, all that uses the client library.

Requests are plain JSON over the client's connection pool, which handles TLS and token renewal. Typed models are not
used, because importing them costs 60 MB. Calls block, so callers use threads.
"""

import copy
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from kubernetes.client import api_client

from weft_core.layouts import WorkerRole
from weft_operator.api.objects import Manifest, ObjectKey
from weft_operator.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    TransientError,
)
from weft_operator.kube.leader_election.fencing import fenced_pools
from weft_operator.kube.request_stats import RequestStats
from weft_operator.kube.rights import missing_right

CONNECT_S = 5.0
READ_S = 15.0

NAMES_PAGE_SIZE = 500
"""Names in one page; each has its managed fields, 5 KB for a group."""

NO_OBJECT = "weft.dev/none"
"""A label that no object has."""

FIELD_MANAGER = "weft-operator"
CLI_FIELD_MANAGER = "weft-cli"
"""Field manager of changes by the ``weft`` command."""

PLURALS: Mapping[str, str] = {
    "ComputeDomain": "computedomains",
    "ConfigMap": "configmaps",
    "ControllerRevision": "controllerrevisions",
    "CostProfile": "costprofiles",
    "Deployment": "deployments",
    "DisaggInferenceService": "disagginferenceservices",
    "Event": "events",
    "HTTPRoute": "httproutes",
    "InferencePool": "inferencepools",
    "Job": "jobs",
    "Lease": "leases",
    "Namespace": "namespaces",
    "NetworkPolicy": "networkpolicies",
    "Node": "nodes",
    "PeerAuthentication": "peerauthentications",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Pod": "pods",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "PodGroup": "podgroups",
    "RoleBinding": "rolebindings",
    "Secret": "secrets",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "StatefulSet": "statefulsets",
    "WorkerGroup": "workergroups",
}

_ERRORS: Mapping[int, type[ApiError]] = {
    400: InvalidError,
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    422: InvalidError,
}


def _no_fence() -> None:
    """Allow every write."""


class KubeClient:
    """A connection to one API server; methods block and may be called from several threads."""

    def __init__(
        self,
        client: api_client.ApiClient,
        *,
        connect_s: float | None = None,
        read_s: float | None = None,
        honor_retry_after: bool = True,
    ) -> None:
        """Create it; the times, in seconds, bound each request (default ``CONNECT_S``, ``READ_S``).

        With ``honor_retry_after`` no request is sent before the time of a Retry-After header.
        """
        self.configuration = client.configuration
        self._timeouts = (connect_s, read_s)
        self._honor_retry_after = honor_retry_after
        self._fence: Callable[[], None] = _no_fence
        self._current = threading.local()
        self._pool = client.rest_client.pool_manager
        self._pool.pool_classes_by_scheme = fenced_pools(lambda: self._current.fence())
        self.stats = RequestStats()

    def fenced(self, check: Callable[[], None]) -> "KubeClient":
        """Return the same connection with fenced writes: ``check`` is called just before their bytes are sent."""
        other = copy.copy(self)
        other._fence = check
        return other

    def get(self, key: ObjectKey) -> Manifest:
        """Return one object.

        Raises:
            NotFoundError: it does not exist.
        """
        return self._request("GET", object_path(key), resource=PLURALS[key.kind])

    def list(
        self,
        api_version: str,
        kind: str,
        *,
        namespace: str = "",
        selector: str = "",
        fields: str = "",
        limit: int | None = None,
    ) -> list[Manifest]:
        """Return the objects of one kind in a namespace (all namespaces if empty) that match the selectors."""
        path = collection_path(api_version, kind, namespace)
        query = {"labelSelector": selector} if selector else {}
        if fields:
            query["fieldSelector"] = fields
        if limit is not None:
            query["limit"] = str(limit)
        body = self._request("GET", path, resource=PLURALS[kind], query=query)
        # Items of a list have neither kind nor apiVersion, which keys need.
        return [{"apiVersion": api_version, "kind": kind, **item} for item in body.get("items") or ()]

    def pages(
        self,
        api_version: str,
        kind: str,
        *,
        namespace: str = "",
        fields: str = "",
        page_size: int,
        accept: str = "application/json",
    ) -> Iterator[Sequence[Manifest]]:
        """Yield all objects of one kind that match the field selector, in pages from one consistent snapshot.

        A caller that keeps little of each object needs memory for only one page.
        """
        query = {"limit": str(page_size), **({"fieldSelector": fields} if fields else {})}
        path = collection_path(api_version, kind, namespace)
        more = True
        while more:
            body = self._request("GET", path, resource=PLURALS[kind], query=query, accept=accept)
            yield body.get("items") or ()
            query["continue"] = (body.get("metadata") or {}).get("continue") or ""
            more = bool(query["continue"])

    def names(self, api_version: str, kind: str, *, namespace: str = "") -> tuple[tuple[str, str], ...]:
        """Return (namespace, name) of all objects of one kind; their bodies are not sent."""
        accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
        pages = self.pages(api_version, kind, namespace=namespace, page_size=NAMES_PAGE_SIZE, accept=accept)
        found = (item["metadata"] for page in pages for item in page)
        return tuple((str(item.get("namespace", "")), str(item["name"])) for item in found)

    def try_watch(self, api_version: str, kind: str, *, namespace: str = "") -> None:
        """Start a watch that matches no object, only to check the right to it; it ends after a second.

        Raises:
            ForbiddenError: objects of this kind may not be watched.
        """
        query = {"watch": "true", "timeoutSeconds": "1", "labelSelector": NO_OBJECT}
        self._send("GET", collection_path(api_version, kind, namespace), resource=PLURALS[kind], query=query)

    def apply(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        """Send an object by server-side apply as our field manager, forcing conflicts."""
        key = _key(manifest)
        path = object_path(key) + (f"/{subresource}" if subresource else "")
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return self._request(
            "PATCH",
            path,
            resource=PLURALS[key.kind],
            query=query,
            body=manifest,
            content="application/apply-patch+yaml",
        )

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Create an object, or only validate it.

        Raises:
            ConflictError: it exists.
        """
        key = _key(manifest)
        path = collection_path(key.api_version, key.kind, key.namespace)
        query = {"fieldManager": FIELD_MANAGER, **({"dryRun": "All"} if dry_run else {})}
        return self._request("POST", path, resource=PLURALS[key.kind], query=query, body=manifest)

    def replace(self, manifest: Manifest) -> Manifest:
        """Replace the version of an object that the manifest names.

        Raises:
            ConflictError: it has another version.
        """
        key = _key(manifest)
        query = {"fieldManager": FIELD_MANAGER}
        return self._request("PUT", object_path(key), resource=PLURALS[key.kind], query=query, body=manifest)

    def scale(
        self, key: ObjectKey, replicas: int, *, uid: str, roles: Mapping[WorkerRole, int] | None = None
    ) -> Manifest:
        """Set ``spec.replicas`` and ``spec.roles``, of the object with this uid if one is given.

        Applied manifests do not contain them.

        Raises:
            ConflictError: the object of this name has another uid.
        """
        metadata = {"metadata": {"uid": uid}} if uid else {}
        return self._request(
            "PATCH",
            object_path(key),
            resource=PLURALS[key.kind],
            query={"fieldManager": FIELD_MANAGER},
            body={**metadata, "spec": {"replicas": replicas, **({} if roles is None else {"roles": dict(roles)})}},
            content="application/merge-patch+json",
        )

    def label(self, key: ObjectKey, labels: Mapping[str, str], *, uid: str) -> Manifest:
        """Set labels of the object with this uid.

        Raises:
            ConflictError: the object of this name has another uid.
        """
        return self._request(
            "PATCH",
            object_path(key),
            resource=PLURALS[key.kind],
            query={"fieldManager": FIELD_MANAGER},
            body={"metadata": {"uid": uid, "labels": dict(labels)}},
            content="application/merge-patch+json",
        )

    def annotate(self, key: ObjectKey, annotations: Mapping[str, str], *, version: str) -> Manifest:
        """Set annotations of an object as the caller, if it still has this resource version ("": any).

        Raises:
            ConflictError: it was changed meanwhile.
        """
        return self._request(
            "PATCH",
            object_path(key),
            resource=PLURALS[key.kind],
            query={"fieldManager": CLI_FIELD_MANAGER},
            body={"metadata": {"annotations": dict(annotations), **({"resourceVersion": version} if version else {})}},
            content="application/merge-patch+json",
        )

    def delete(self, key: ObjectKey, *, uid: str, grace_s: int | None = None) -> None:
        """Delete an object and, in the background, its dependents; ``grace_s`` replaces a pod's grace period.

        Raises:
            ConflictError: the object of this name has another uid.
        """
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
            **({} if grace_s is None else {"gracePeriodSeconds": grace_s}),
        }
        self._request("DELETE", object_path(key), resource=PLURALS[key.kind], body=body)

    def log(self, pod: ObjectKey, container: str, **query: str) -> str:
        """Return a container's log; ``query`` has the API server's parameters, such as tailLines and sinceTime."""
        asked = {"container": container, **query}
        return self._send("GET", f"{object_path(pod)}/log", resource="pods/log", query=asked, accept="*/*").decode(
            errors="replace"
        )

    def page(self, pod: ObjectKey, port: int, path: str) -> str:
        """Return the response of a pod over plain HTTP, through the API server's proxy.

        Raises:
            TransientError: the API server cannot reach it, for example because of a network policy.
        """
        proxied = f"{object_path(pod)}:{port}/proxy/{path.lstrip('/')}"
        return self._send("GET", proxied, resource="pods/proxy", accept="*/*").decode(errors="replace")

    def credentials(self) -> dict[str, str]:
        """Return the headers that say who asks."""
        settings = self.configuration.auth_settings().values()
        return {str(auth["key"]): str(auth["value"]) for auth in settings if auth.get("value")}

    @property
    def websocket_url(self) -> str:
        """Return the API server's URL for WebSockets."""
        return "ws" + str(self.configuration.host).removeprefix("http")

    def _request(self, method: str, path: str, *, resource: str, **parts: Any) -> Manifest:
        raw = self._send(method, path, resource=resource, **parts)
        try:
            answer: Manifest = json.loads(raw)
        except ValueError as error:
            raise TransientError(f"{method} {resource}: the answer is not JSON", status=200) from error
        return answer

    def _send(
        self,
        method: str,
        path: str,
        *,
        resource: str,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content: str = "application/json",
        accept: str = "application/json",
    ) -> bytes:
        left = self.stats.pause_left_s()
        if left > 0:
            text = f"{method} {resource}: not sent for another {left:.0f} s, because of the API server's Retry-After"
            raise TransientError(text, status=429, retry_after=left)
        url = f"{self.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": accept, "User-Agent": FIELD_MANAGER, **self.credentials()}
        if body is not None:
            headers["Content-Type"] = content
        connect_s, read_s = self._timeouts
        self._current.fence = self._fence
        try:
            with self.stats.in_flight(method):
                response = self._pool.request(
                    method,
                    url,
                    headers=headers,
                    body=None if body is None else json.dumps(body),
                    timeout=urllib3.Timeout(connect=connect_s or CONNECT_S, read=read_s or READ_S),
                    retries=False,
                )
        except urllib3.exceptions.HTTPError as error:
            self.stats.count(method, resource, 0)
            raise TransientError(f"no answer from the API server: {type(error).__name__}") from error
        self.stats.count(method, resource, response.status)
        if response.status >= 300:
            refusal = _error(method, resource, response, path=path, watching=bool(query and "watch" in query))
            if isinstance(refusal, ForbiddenError) and refusal.right is not None:
                self.stats.record_missing(refusal.right)
            if self._honor_retry_after and refusal.status == 429 and refusal.retry_after is not None:
                self.stats.pause(refusal.retry_after)
            raise refusal
        answer: bytes = response.data
        return answer


def object_path(key: ObjectKey) -> str:
    """Return the path of one object."""
    return f"{collection_path(key.api_version, key.kind, key.namespace)}/{quote(key.name, safe='')}"


def collection_path(api_version: str, kind: str, namespace: str) -> str:
    """Return the path of all objects of a kind in a namespace, or in the cluster when it is empty."""
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    middle = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{root}{middle}/{PLURALS[kind]}"


def _key(manifest: Manifest) -> ObjectKey:
    metadata = manifest["metadata"]
    return ObjectKey(manifest["apiVersion"], manifest["kind"], metadata.get("namespace", ""), metadata["name"])


def _error(method: str, resource: str, response: Any, *, path: str, watching: bool) -> ApiError:
    try:
        message = str(json.loads(response.data).get("message", ""))
    except (ValueError, AttributeError):
        message = ""
    text = f"{method} {resource}: {response.status} {message or response.reason or ''}".strip()
    kind = _ERRORS.get(response.status, TransientError)
    retry_after = _retry_after(response.headers.get("Retry-After"))
    if kind is ForbiddenError:
        right = missing_right(method, path, response.status, message, watching=watching)
        return ForbiddenError(text, status=response.status, retry_after=retry_after, right=right)
    return kind(text, status=response.status, retry_after=retry_after)


def _retry_after(value: str | None) -> float | None:
    return min(60.0, float(value)) if value is not None and value.isdigit() else None
