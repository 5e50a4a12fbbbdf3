"""The objects of a weights cache: the claim, the Jobs that download and remove a model, the workers' sidecar. Pure."""

from typing import Any

from weft_operator.api.model import CacheClaim
from weft_operator.api.model_cache import VOLUME, CachedModel, own_claim
from weft_operator.api.objects import WEIGHTS_ANNOTATION, WEIGHTS_COMPONENT, Manifest
from weft_operator.render.inputs import Rendering
from weft_operator.render.mesh import no_injection
from weft_operator.render.router_container import TMP_VOLUME, TOKEN_VOLUME, Mounts, from_field
from weft_operator.render.scheduling import pod_placement, pull_secrets
from weft_operator.render.security_context import READABLE, USER, container_security, pod_security

CONTAINER = "weights"
ROOT = "/weights"
READY_FILE = "/tmp/weights-ready"  # noqa: S108 - the pod's own
TRIES = 3
"""Pods of a Job, each of which resumes and tolerates interruptions of ten minutes."""
REMOVED_S = 600
DAY_S = 86_400
CLAIM_ANNOTATION = "weft.dev/weights-claim"
"""On a Job: the uid of the claim that it fills; another claim of the same name is empty."""
_READY_PERIOD_S = 5
_IS_READY = f"import os, sys; sys.exit(not os.path.exists('{READY_FILE}'))"
_REDIS_VOLUME = "redis"
_REDIS_FOLDER = "/etc/weft-redis"
_PERMANENT = 2
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_OWN_TMP = "weights-tmp"
_ROOT_MOUNT: Manifest = {"name": VOLUME, "mountPath": ROOT}
_RESOURCES: Manifest = {"requests": {"cpu": "500m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
_SIDECAR_RESOURCES: Manifest = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
"""It downloads once and then holds a lock, for as long as the worker lives; its 60 MB are the interpreter's."""


def claim(rendering: Rendering, asked: CacheClaim) -> Manifest:
    """Return the claim of a service."""
    spec: Manifest = {
        "accessModes": [asked.access_mode],
        "resources": {"requests": {"storage": str(asked.size)}},
        **({"storageClassName": asked.storage_class_name} if asked.storage_class_name else {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": rendering.metadata(own_claim(rendering.key.name), WEIGHTS_COMPONENT),
        "spec": spec,
    }


def fetch_job(rendering: Rendering, mounts: Mounts, model: CachedModel, *, claim_uid: str) -> Manifest:
    """Return the Job that downloads a model onto a claim; it stays as the record of the download."""
    job = _job(rendering, fetch_name(rendering.key.name, model.key), "fetch", model.key, model.folder(rendering.key))
    job["metadata"]["annotations"][CLAIM_ANNOTATION] = claim_uid
    container = job["spec"]["template"]["spec"]["containers"][0]
    redis_env, redis_volumes, redis_mounts = _redis(rendering, mounts)
    container["env"] = [*_fetch_env(rendering, model), *redis_env]
    container["volumeMounts"] += redis_mounts
    job["spec"]["template"]["spec"]["volumes"] += [model.volume(rendering.key.name), *redis_volumes]
    return job


def remove_job(rendering: Rendering, key: str, volume: Manifest) -> Manifest:
    """Return the Job that removes a model which no worker uses from a claim."""
    folder = f"{rendering.key.namespace}/{rendering.key.name}/{key}"
    job = _job(rendering, remove_name(rendering.key.name, key), "remove", key, folder)
    job["spec"]["ttlSecondsAfterFinished"] = REMOVED_S
    job["spec"]["template"]["spec"]["volumes"].append(volume)
    return job


def fetch_name(service: str, key: str) -> str:
    """Return the name of the Job that downloads a model."""
    return f"{service}-weights-{key}"


def remove_name(service: str, key: str) -> str:
    """Return the name of the Job that removes a model."""
    return f"{service}-weights-rm-{key}"


def sidecar(rendering: Rendering, mounts: Mounts, model: CachedModel) -> tuple[Manifest, Manifest]:
    """Return the sidecar that downloads a model onto a worker's node and keeps it there, and its volume.

    The engine starts once its startup probe succeeded. It needs the pod's volume with the Secret of the token.
    """
    redis_env, _, _ = _redis(rendering, mounts)
    file = mounts.redis_file
    url = [{"name": TOKEN_VOLUME, "mountPath": f"{_REDIS_FOLDER}/{file}", "subPath": file, "readOnly": True}]
    container = _container(rendering, "hold", model.folder(rendering.key))
    container["args"].append(f"--keep-unused-seconds={model.keep_unused_s:g}")
    container |= {
        "env": [*_fetch_env(rendering, model), *redis_env],
        "volumeMounts": [_ROOT_MOUNT, {"name": _OWN_TMP, "mountPath": "/tmp"}, *(url if file else [])],  # noqa: S108
        "resources": _SIDECAR_RESOURCES,
        "restartPolicy": "Always",
        "startupProbe": {
            "exec": {"command": ["python", "-I", "-S", "-c", _IS_READY]},
            "periodSeconds": _READY_PERIOD_S,
            "timeoutSeconds": _READY_PERIOD_S,
            "failureThreshold": DAY_S // _READY_PERIOD_S,
        },
    }
    return container, {"name": _OWN_TMP, "emptyDir": {}}


def _job(rendering: Rendering, name: str, verb: str, key: str, folder: str) -> dict[str, Any]:
    marks = {WEIGHTS_ANNOTATION: key}
    of_mesh = no_injection(rendering)
    metadata = rendering.metadata(name, WEIGHTS_COMPONENT)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**metadata, "annotations": dict(marks)},
        "spec": {
            "backoffLimit": TRIES - 1,
            "podFailurePolicy": {
                "rules": [
                    # An eviction says nothing of the download; exit code 2 says that no further attempt helps.
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [_PERMANENT]},
                    },
                ]
            },
            "template": {
                "metadata": {
                    "labels": {**rendering.labels(WEIGHTS_COMPONENT), **of_mesh.labels},
                    "annotations": {**marks, **of_mesh.annotations},
                },
                "spec": {
                    **placement(rendering),
                    "serviceAccountName": rendering.name(),
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 30,
                    "securityContext": _volume_security(rendering),
                    "containers": [_container(rendering, verb, folder)],
                    "volumes": [{"name": TMP_VOLUME, "emptyDir": {}}],
                },
            },
        },
    }


def _volume_security(rendering: Rendering) -> Manifest:
    """Return the security context of a pod that writes to a claim: a new volume belongs to root, so it gets a group.

    On OpenShift the SecurityContextConstraints give the user and the group.
    """
    group = {} if rendering.settings.openshift else {"fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch"}
    return {**pod_security(), **group}


def placement(rendering: Rendering) -> Manifest:
    """Return where the pods of these Jobs may run, which is where coordinators do, and the Secrets for their image."""
    return {**pod_placement(rendering.spec.coordinator), **pull_secrets(rendering.spec, engine=False)}


def _container(rendering: Rendering, verb: str, folder: str) -> dict[str, Any]:
    return {
        "name": CONTAINER,
        "image": rendering.settings.operator_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "weft_operator.weights.fetch"],
        "args": [verb, f"--root={ROOT}", f"--model={folder}"],
        "resources": _RESOURCES,
        "securityContext": container_security(),
        "volumeMounts": [_ROOT_MOUNT, {"name": TMP_VOLUME, "mountPath": "/tmp"}],  # noqa: S108
    }


def _fetch_env(rendering: Rendering, model: CachedModel) -> list[Manifest]:
    """Return the variables of a download: source, secrets, and the engines' proxies."""
    return [
        from_field("POD_NAME", "metadata.name"),
        {"name": "WEFT_WEIGHTS_SOURCE", "value": model.source_json()},
        *(
            {"name": item.name, "value": item.value}
            for item in rendering.spec.engine.env
            if item.name.upper() in _PROXY_VARIABLES
        ),
        *(
            {
                "name": name,
                "valueFrom": {"secretKeyRef": {"name": secret, "key": key, **({"optional": True} if optional else {})}},
            }
            for name, secret, key, optional in model.secret_env
        ),
    ]


def _redis(rendering: Rendering, mounts: Mounts) -> tuple[list[Manifest], list[Manifest], list[Manifest]]:
    """Return the variables, volumes and mounts for a download's progress; of the Secret only the URL is mounted."""
    if mounts.redis_file is None:
        return [{"name": "WEFT_REDIS_URL", "value": rendering.settings.redis_url}], [], []
    secret = {
        "secretName": rendering.name("token"),
        "items": [{"key": mounts.redis_file, "path": mounts.redis_file}],
        "defaultMode": READABLE,
    }
    return (
        [{"name": "WEFT_REDIS_URL_FILE", "value": f"{_REDIS_FOLDER}/{mounts.redis_file}"}],
        [{"name": _REDIS_VOLUME, "secret": secret}],
        [{"name": _REDIS_VOLUME, "mountPath": _REDIS_FOLDER, "readOnly": True}],
    )
