"""The Deployments of coordinators and endpoint pickers: the front door, stateless but for Redis."""

import math

from weft_operator.api.coordinator import Coordinator
from weft_operator.api.objects import PICKER_COMPONENT, TOKEN_HASH_ANNOTATION, Manifest
from weft_operator.render.inputs import Rendering
from weft_operator.render.mesh import mesh_marks
from weft_operator.render.pod_templates.overrides import with_pod_templates
from weft_operator.render.router_config import JWKS_FOLDER, KEYS_FOLDER, TLS_FOLDER
from weft_operator.render.router_container import (
    COORDINATOR,
    STOP_MARGIN_S,
    Mounts,
    drain_seconds,
    http_probe,
    router_container,
    router_volumes,
)
from weft_operator.render.scheduling import pod_placement, pull_secrets
from weft_operator.render.security_context import READABLE, pod_security
from weft_operator.render.worker_placement import HOSTNAME

COMPONENT = COORDINATOR

UNLISTED_S = 3
"""Time until all nodes' Service rules have removed a stopping pod, which accepts connections until then."""

_KEYS = "api-keys"


def coordinator(rendering: Rendering, mounts: Mounts) -> Manifest:
    """Return the coordinator's Deployment."""
    return _deployment(rendering, mounts, name=rendering.name(), component=COMPONENT, role=COMPONENT)


def endpoint_picker(rendering: Rendering, mounts: Mounts) -> tuple[Manifest, ...]:
    """Return the Deployment of endpoint pickers, if there are any: as many as coordinators, and like these."""
    if not rendering.picked:
        return ()
    return (
        _deployment(rendering, mounts, name=rendering.name(PICKER_COMPONENT), component=PICKER_COMPONENT, role="epp"),
    )


def _deployment(rendering: Rendering, mounts: Mounts, *, name: str, component: str, role: str) -> Manifest:
    marks = mesh_marks(rendering, component)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": rendering.metadata(name, component),
        "spec": {
            "replicas": coordinators(rendering),
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": rendering.selector(component)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": with_pod_templates(
                rendering.spec,
                {
                    "metadata": {
                        "labels": {**rendering.labels(component), **marks.labels},
                        "annotations": {TOKEN_HASH_ANNOTATION: mounts.token_hash, **marks.annotations},
                    },
                    "spec": _pod(rendering, mounts, component=component, role=role),
                },
                component=COMPONENT,
            ),
        },
    }


def coordinators(rendering: Rendering) -> int:
    """Return how many coordinators there are to be: as many as the plan by which routers choose needs, within bounds.

    It is for the load up to which that plan holds the SLO, not for what arrives: the front door must not be what
    breaks first, and its number changes with plans only.
    """
    spec, plan = rendering.spec.coordinator, rendering.rules or rendering.record.plan
    if spec.scaling is None or plan.validity is None:
        return spec.replicas
    rounds = plan.validity.rate_high * plan.validity.rounds
    return min(spec.scaling.max, max(spec.replicas, math.ceil(rounds / spec.scaling.rounds_per_second)))


def _pod(rendering: Rendering, mounts: Mounts, *, component: str, role: str) -> Manifest:
    spec = rendering.spec.coordinator
    files = _files(spec)
    env: list[Manifest] = [{"name": "WEFT_API_KEYS_FILE", "value": f"{KEYS_FOLDER}/keys"}] if _KEYS in files else []
    container = router_container(rendering, mounts, role=role, env=env, resources=spec.resources)
    mounted = [{"name": name, "mountPath": folder, "readOnly": True} for name, (folder, _) in files.items()]
    container["volumeMounts"] = [*container["volumeMounts"], *mounted]
    volumes = [
        *router_volumes(rendering, mounts.front),
        *({"name": name, **source} for name, (_, source) in files.items()),
    ]
    return {
        "serviceAccountName": rendering.name(),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": UNLISTED_S + drain_seconds(rendering) + STOP_MARGIN_S,
        **pod_placement(spec),
        **pull_secrets(rendering.spec, engine=False),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": HOSTNAME,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": rendering.selector(component)},
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


def _files(spec: Coordinator) -> dict[str, tuple[str, Manifest]]:
    """Return a coordinator's mounts other than its configuration: folder and source by volume."""
    files: dict[str, tuple[str, Manifest]] = {}
    key, jwt, tls = spec.auth.api_key_secret_ref, spec.auth.jwt, spec.tls
    if key is not None:
        files[_KEYS] = KEYS_FOLDER, _secret(key.name, {key.key: "keys"})
    if jwt is not None and jwt.jwks_config_map_ref is not None:
        ref = jwt.jwks_config_map_ref
        files["jwks"] = JWKS_FOLDER, {"configMap": {"name": ref.name, "items": [{"key": ref.key, "path": "jwks.json"}]}}
    if tls is not None:
        files["tls"] = TLS_FOLDER, _secret(tls.secret_ref.name, {"tls.crt": "tls.crt", "tls.key": "tls.key"})
    return files


def _secret(name: str, items: dict[str, str]) -> Manifest:
    return {
        "secret": {
            "secretName": name,
            "defaultMode": READABLE,
            "items": [{"key": key, "path": path} for key, path in items.items()],
        }
    }
