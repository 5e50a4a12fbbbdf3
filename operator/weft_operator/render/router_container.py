"""The router container, which is the coordinator's only container and the sidecar of every worker."""

import math
from dataclasses import dataclass

from weft_core.authority import http_url
from weft_core.durations import parse_duration
from weft_operator.api.engine_parts import Resources
from weft_operator.api.objects import PICKER_COMPONENT, ROLE_LABEL, WORKER_COMPONENT, Manifest
from weft_operator.render.engines.container import ENGINE_PORT, LOOPBACK, ROUTER_PORT
from weft_operator.render.inputs import Rendering
from weft_operator.render.security_context import READABLE, container_security

CONFIG_VOLUME = "config"
TOKEN_VOLUME = "token"  # noqa: S105 - the name of a volume
TOKEN_FOLDER = "/etc/weft-token"  # noqa: S105 - the name of a folder
TMP_VOLUME = "tmp"
LIVE_VOLUME = "live"
LIVE_FOLDER = "/etc/weft-live"
ROLE_VOLUME = "role"
ROLE_FOLDER = "/etc/weft-pod"
ROLE_FILE = "role"

COORDINATOR = "coordinator"
"""The component of the coordinators, and their role."""
TLS_PORT = 8443
"""Where coordinators with a certificate serve clients; health and metrics stay on the plain port, for them alone."""
MESH_PORT = 8081
"""Where routers in a mesh serve clients and each other; health and metrics stay on the plain port, past the mesh."""
GRPC_PORT = 9002
"""Where endpoint pickers serve a gateway's proxies."""

STOP_MARGIN_S = 10
"""Time beyond the drain timeout for processes to end before they are killed."""


@dataclass(frozen=True, slots=True)
class Mounts:
    """Mounts of router containers: the names of their ConfigMaps and the hash of the internal token."""

    config: str
    front: str
    """The coordinators' ConfigMap."""
    token_hash: str
    redis_file: str | None = None
    """The file with the Redis URL in the Secret of the token; None where the store is in the memory of a process."""


def drain_seconds(rendering: Rendering) -> int:
    """Return the drain timeout in whole seconds."""
    return math.ceil(parse_duration(rendering.spec.rollout.drain_timeout))


def main_port(rendering: Rendering, component: str) -> int:
    """Return the port at which the routers of a component serve."""
    if component == PICKER_COMPONENT:
        return GRPC_PORT
    if component == COORDINATOR and rendering.spec.coordinator.tls is not None:
        return TLS_PORT
    return MESH_PORT if rendering.mesh else ROUTER_PORT


def router_container(
    rendering: Rendering, mounts: Mounts, *, role: str, env: list[Manifest], resources: Resources,
    engine_host: str = LOOPBACK,
) -> Manifest:  # fmt: skip
    """Return a router container of one role without its probes.

    With TLS, and in a mesh, probes and metrics have a port of their own.
    A sidecar reaches its engine at ``engine_host``. One of role ``worker`` reads the role that it has now from a file.
    """
    picks = role == "epp"
    port = GRPC_PORT if picks else main_port(rendering, role)
    args = [
        "router",
        f"--role={role}",
        "--config=/etc/weft/router.json",
        f"--listen=[::]:{port}",
        *([f"--health-listen=[::]:{ROUTER_PORT}"] if port != ROUTER_PORT else []),
        f"--drain-seconds={drain_seconds(rendering)}",
    ]
    if role not in (COORDINATOR, "epp"):
        args.append(f"--engine-url={http_url(engine_host, ENGINE_PORT)}")
    assigned = role == WORKER_COMPONENT
    return {
        "name": "router",
        "image": rendering.settings.router_image,
        "imagePullPolicy": "IfNotPresent",
        "args": args,
        "env": [
            _redis(rendering, mounts),
            {"name": "WEFT_TOKEN_FILE", "value": f"{TOKEN_FOLDER}/token"},
            {"name": "WEFT_LIVE_FILE", "value": f"{LIVE_FOLDER}/live.json"},
            *([{"name": "WEFT_ROLE_FILE", "value": f"{ROLE_FOLDER}/{ROLE_FILE}"}] if assigned else []),
            from_field("POD_NAME", "metadata.name"),
            from_field("POD_IP", "status.podIP"),
            from_field("NODE_NAME", "spec.nodeName"),
            *env,
        ],
        "ports": [
            {"name": "http", "containerPort": ROUTER_PORT, "protocol": "TCP"},
            *([{"name": "grpc", "containerPort": port, "protocol": "TCP"}] if picks else []),
            *([{"name": "https", "containerPort": port, "protocol": "TCP"}] if port == TLS_PORT else []),
            *([{"name": "http-mesh", "containerPort": port, "protocol": "TCP"}] if port == MESH_PORT else []),
        ],
        "resources": resources_of(resources),
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": CONFIG_VOLUME, "mountPath": "/etc/weft", "readOnly": True},
            {"name": LIVE_VOLUME, "mountPath": LIVE_FOLDER, "readOnly": True},
            {"name": TOKEN_VOLUME, "mountPath": TOKEN_FOLDER, "readOnly": True},
            {"name": TMP_VOLUME, "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod
            *([{"name": ROLE_VOLUME, "mountPath": ROLE_FOLDER, "readOnly": True}] if assigned else []),
        ],
    }


def _redis(rendering: Rendering, mounts: Mounts) -> Manifest:
    if mounts.redis_file is None:
        return {"name": "WEFT_REDIS_URL", "value": rendering.settings.redis_url}
    return {"name": "WEFT_REDIS_URL_FILE", "value": f"{TOKEN_FOLDER}/{mounts.redis_file}"}


def router_volumes(rendering: Rendering, config: str) -> list[Manifest]:
    """Return the volumes that a router container mounts; ``config`` is the name of its ConfigMap."""
    return [
        {"name": CONFIG_VOLUME, "configMap": {"name": config}},
        {"name": LIVE_VOLUME, "configMap": {"name": rendering.name("live")}},
        {"name": TOKEN_VOLUME, "secret": {"secretName": rendering.name("token"), "defaultMode": READABLE}},
        {"name": TMP_VOLUME, "emptyDir": {}},
    ]


def http_probe(path: str, *, period: int, failures: int, timeout: int = 2) -> Manifest:
    """Return a probe of the router's port; times are seconds."""
    return {
        "httpGet": {"path": path, "port": ROUTER_PORT},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }


def from_field(name: str, path: str) -> Manifest:
    """Return an environment variable that holds a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def resources_of(resources: Resources) -> Manifest:
    """Return a container's resources; amounts are texts, as the API server stores them."""
    return {
        kind: {name: str(amount) for name, amount in sorted(amounts.items())}
        for kind, amounts in (("limits", resources.limits), ("requests", resources.requests))
        if amounts
    }


def role_volume() -> Manifest:
    """Return the volume with a worker's role; the kubelet rewrites the file after the pod's label changed."""
    path = f"metadata.labels['{ROLE_LABEL}']"
    return {"name": ROLE_VOLUME, "downwardAPI": {"items": [{"path": ROLE_FILE, "fieldRef": {"fieldPath": path}}]}}
