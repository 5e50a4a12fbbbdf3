"""Speak to the Kubernetes API server: the only module that knows the client library.

Requests are plain JSON over the client's connection pool, which brings the kubeconfig, TLS and token renewal.
Typed models are left aside on purpose: importing them costs 60 MB. Calls block, so callers use threads.
"""

import json
import logging
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from kubernetes import config as kube_config
from kubernetes.client import api_client, configuration

from weft_operator.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    TransientError,
)
from weft_operator.manifest import Manifest, ObjectKey

CONNECT_S = 5.0
READ_S = 30.0

FIELD_MANAGER = "weft-operator"

PLURALS: Mapping[str, str] = {
    "ConfigMap": "configmaps",
    "CostProfile": "costprofiles",
    "Deployment": "deployments",
    "DisaggInferenceService": "disagginferenceservices",
    "Event": "events",
    "Node": "nodes",
    "Pod": "pods",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "Secret": "secrets",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "StatefulSet": "statefulsets",
}

_ERRORS: Mapping[int, type[ApiError]] = {
    400: InvalidError,
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: NotFoundError,
    422: InvalidError,
}

log = logging.getLogger(__name__)


class ApiServer:
    """A connection to one API server; methods block and may be called from several threads."""

    def __init__(self, client: api_client.ApiClient) -> None:
        self._configuration = client.configuration
        self._pool = client.rest_client.pool_manager
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()

    @property
    def requests(self) -> Mapping[tuple[str, str, int], int]:
        """Return how many requests were made, by (method, resource, HTTP status)."""
        with self._lock:
            return dict(self._requests)

    def get(self, key: ObjectKey) -> Manifest:
        """Return one object.

        Raises:
            NotFoundError: it is not there.
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
        """Return the objects of one kind in a namespace (all namespaces if empty) that have the labels and fields."""
        path = collection_path(api_version, kind, namespace)
        query = {"labelSelector": selector} if selector else {}
        if fields:
            query["fieldSelector"] = fields
        if limit is not None:
            query["limit"] = str(limit)
        body = self._request("GET", path, resource=PLURALS[kind], query=query)
        # Items of a list carry neither kind nor version; we give them back, so that every object knows its key.
        return [{"apiVersion": api_version, "kind": kind, **item} for item in body.get("items") or ()]

    def apply(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        """Send an object by server-side apply as our field manager, taking over fields that others changed."""
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

    def create(self, manifest: Manifest) -> Manifest:
        """Create an object.

        Raises:
            ConflictError: it exists.
        """
        key = _key(manifest)
        path = collection_path(key.api_version, key.kind, key.namespace)
        query = {"fieldManager": FIELD_MANAGER}
        return self._request("POST", path, resource=PLURALS[key.kind], query=query, body=manifest)

    def delete(self, key: ObjectKey, *, uid: str) -> None:
        """Delete an object and, in the background, what it owns.

        Raises:
            ConflictError: the object of this name has another uid.
        """
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        self._request("DELETE", object_path(key), resource=PLURALS[key.kind], body=body)

    def _request(
        self,
        method: str,
        path: str,
        *,
        resource: str,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content: str = "application/json",
    ) -> Manifest:
        url = f"{self._configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", "User-Agent": FIELD_MANAGER}
        for auth in self._configuration.auth_settings().values():
            if auth.get("value"):
                headers[str(auth["key"])] = str(auth["value"])
        if body is not None:
            headers["Content-Type"] = content
        try:
            response = self._pool.request(
                method,
                url,
                headers=headers,
                body=None if body is None else json.dumps(body),
                timeout=urllib3.Timeout(connect=CONNECT_S, read=READ_S),
                retries=False,
            )
        except urllib3.exceptions.HTTPError as error:
            self._count(method, resource, 0)
            raise TransientError(f"no answer from the API server: {type(error).__name__}") from error
        self._count(method, resource, response.status)
        if response.status >= 300:
            raise _error(method, resource, response)
        answer: Manifest = json.loads(response.data)
        return answer

    def _count(self, method: str, resource: str, status: int) -> None:
        with self._lock:
            self._requests[method, resource, status] += 1
        log.debug("api_request", extra={"method": method, "resource": resource, "status": status})


def connect() -> ApiServer:
    """Connect as the pod's service account, or as the kubeconfig's current context outside a cluster.

    Raises:
        ForbiddenError: neither is there.
    """
    settings = configuration.Configuration()
    settings.connection_pool_maxsize = 8
    try:
        try:
            kube_config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        except kube_config.ConfigException:
            kube_config.load_kube_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    except kube_config.ConfigException as error:
        raise ForbiddenError(
            f"no access to a cluster: {error}; run in a pod with a service account, or set KUBECONFIG"
        ) from error
    return ApiServer(api_client.ApiClient(configuration=settings))


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


def _error(method: str, resource: str, response: Any) -> ApiError:
    try:
        message = str(json.loads(response.data).get("message", ""))
    except (ValueError, AttributeError):
        message = ""
    text = f"{method} {resource}: {response.status} {message or response.reason or ''}".strip()
    kind = _ERRORS.get(response.status, TransientError)
    return kind(text, status=response.status, retry_after=_retry_after(response.headers.get("Retry-After")))


def _retry_after(value: str | None) -> float | None:
    return min(60.0, float(value)) if value is not None and value.isdigit() else None
