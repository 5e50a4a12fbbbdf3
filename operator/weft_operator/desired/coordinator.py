"""The coordinator Deployment: the front door, stateless but for Redis."""

from weft_operator.desired.rendering import Rendering
from weft_operator.desired.router import (
    STOP_MARGIN_S,
    Mounts,
    drain_seconds,
    http_probe,
    router_container,
    router_volumes,
)
from weft_operator.desired.security import pod_security
from weft_operator.desired.workers import NODE_LOSS_S
from weft_operator.manifest import TOKEN_HASH_ANNOTATION, Manifest

COMPONENT = "coordinator"

UNLISTED_S = 3
"""Time until Service rules everywhere have forgotten a pod that stops; it still accepts connections meanwhile."""

_KEYS_VOLUME = "api-keys"


def coordinator(rendering: Rendering, mounts: Mounts) -> Manifest:
    """Return the coordinator's Deployment."""
    spec = rendering.spec.coordinator
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": rendering.metadata(rendering.name(), COMPONENT),
        "spec": {
            "replicas": spec.replicas,
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": rendering.selector(COMPONENT)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {
                    "labels": rendering.labels(COMPONENT),
                    "annotations": {TOKEN_HASH_ANNOTATION: mounts.token_hash},
                },
                "spec": _pod(rendering, mounts),
            },
        },
    }


def _pod(rendering: Rendering, mounts: Mounts) -> Manifest:
    volumes = router_volumes(rendering, mounts)
    env: list[Manifest] = []
    keys: list[Manifest] = []
    key = rendering.spec.coordinator.auth.api_key_secret_ref
    if key is not None:
        env.append({"name": "WEFT_API_KEYS_FILE", "value": "/etc/weft-api-keys/keys"})
        keys.append({"name": _KEYS_VOLUME, "mountPath": "/etc/weft-api-keys", "readOnly": True})
        volumes.append(
            {
                "name": _KEYS_VOLUME,
                "secret": {
                    "secretName": key.name,
                    "defaultMode": 0o440,
                    "items": [{"key": key.key, "path": "keys"}],
                },
            }
        )
    container = router_container(rendering, role=COMPONENT, env=env, resources=rendering.spec.coordinator.resources)
    container["volumeMounts"] = [*container["volumeMounts"], *keys]
    return {
        "serviceAccountName": rendering.name(),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": UNLISTED_S + drain_seconds(rendering) + STOP_MARGIN_S,
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{taint}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": NODE_LOSS_S,
            }
            for taint in ("not-ready", "unreachable")
        ],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": rendering.selector(COMPONENT)},
            }
        ],
        "containers": [
            {
                **container,
                "readinessProbe": http_probe("/readyz", period=2, failures=2),
                "livenessProbe": http_probe("/healthz", period=10, failures=3, timeout=5),
                "lifecycle": {"preStop": {"sleep": {"seconds": UNLISTED_S}}},
            }
        ],
        "volumes": volumes,
    }
