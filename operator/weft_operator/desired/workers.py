"""One StatefulSet per worker: an engine, and beside it the router sidecar that alone may reach it.

About the probes. The engine listens on loopback, where the kubelet cannot reach it, so its probes ask the
sidecar, which asks the engine (``/engine/livez``). The sidecar is a native one: it starts before the engine and
outlives it, so the engine's preStop waits in the sidecar until live requests have ended.
"""

from weft_core.plan import content_hash
from weft_operator.api.capacity import Pool
from weft_operator.desired.config import profile_key
from weft_operator.desired.rendering import Rendering
from weft_operator.desired.router import (
    CONFIG_VOLUME,
    STOP_MARGIN_S,
    TMP_VOLUME,
    Mounts,
    drain_seconds,
    from_field,
    http_probe,
    resources_of,
    router_container,
    router_volumes,
)
from weft_operator.desired.security import container_security, pod_security
from weft_operator.engines import EngineContainer, EngineRequest, engine_container
from weft_operator.engines.container import CONFIG_FOLDER, ROUTER_PORT, SIDE_CHANNEL_PORT
from weft_operator.fleet import Worker
from weft_operator.manifest import (
    DEGREE_LABEL,
    PLAN_REVISION_LABEL,
    POOL_LABEL,
    REVISION_LABEL,
    TEMPLATE_HASH_ANNOTATION,
    TOKEN_HASH_ANNOTATION,
    WORKER_LABEL,
    Manifest,
)

NODE_LOSS_S = 15
"""How long a pod stays bound to a node that does not answer; Kubernetes' default is 300."""

_SHM_VOLUME = "shm"


def statefulset(rendering: Rendering, worker: Worker, mounts: Mounts) -> Manifest:
    """Return the StatefulSet of one worker."""
    name = worker.name(rendering.key.name)
    identity = {WORKER_LABEL: name, DEGREE_LABEL: str(worker.degree), POOL_LABEL: worker.pool}
    metadata = rendering.metadata(name, worker.role, {**identity, PLAN_REVISION_LABEL: rendering.record.plan.revision})
    template = {
        "metadata": {
            "labels": {
                **rendering.labels(worker.role),
                **identity,
                REVISION_LABEL: rendering.revision,
            },
            "annotations": {
                "kubectl.kubernetes.io/default-container": "engine",
                TOKEN_HASH_ANNOTATION: mounts.token_hash,
            },
        },
        "spec": _pod(rendering, worker, name, mounts),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {**metadata, "annotations": {TEMPLATE_HASH_ANNOTATION: content_hash(template, 16)}},
        "spec": {
            "replicas": 1,
            "serviceName": rendering.name(worker.role),
            "podManagementPolicy": "Parallel",
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": {**rendering.selector(worker.role), WORKER_LABEL: name}},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": template,
        },
    }


def _pod(rendering: Rendering, worker: Worker, name: str, mounts: Mounts) -> Manifest:
    pool = rendering.pool(worker.pool)
    engine = engine_container(
        rendering.spec,
        EngineRequest(
            role=worker.role,
            degree=worker.degree,
            default_image=rendering.settings.mock_image,
            paired=rendering.record.paired,
            profile_file=f"{CONFIG_FOLDER}/{_profile_key(rendering, worker)}",
        ),
    )
    pod: Manifest = {
        "serviceAccountName": rendering.name(),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": drain_seconds(rendering) + STOP_MARGIN_S,
        "tolerations": _tolerations(pool),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": pool.topology_key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": rendering.selector(worker.role)},
            }
        ],
        "initContainers": [_sidecar(rendering, worker, name, mounts)],
        "containers": [_engine(rendering, worker, pool, engine)],
        "volumes": [
            *router_volumes(rendering, mounts.config),
            {
                "name": _SHM_VOLUME,
                "emptyDir": {"medium": "Memory", "sizeLimit": str(rendering.spec.engine.shared_memory)},
            },
            *engine.volumes,
        ],
    }
    if pool.node_selector:
        pod["nodeSelector"] = dict(sorted(pool.node_selector.items()))
    if rendering.spec.engine.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret} for secret in rendering.spec.engine.image_pull_secrets]
    return pod


def _profile_key(rendering: Rendering, worker: Worker) -> str:
    return profile_key(worker.pool) if worker.pool in rendering.record.profiles else "profile.json"


def _sidecar(rendering: Rendering, worker: Worker, name: str, mounts: Mounts) -> Manifest:
    env: list[Manifest] = [
        {"name": "WEFT_WORKER", "value": name},
        {"name": "WEFT_DEGREE", "value": str(worker.degree)},
        {"name": "WEFT_POOL", "value": worker.pool},
        {"name": "WEFT_REVISION", "value": rendering.revision},
    ]
    resources = rendering.spec.routing.resources
    container = router_container(rendering, mounts, role=worker.role, env=env, resources=resources)
    return {
        **container,
        "restartPolicy": "Always",
        "readinessProbe": http_probe("/readyz", period=2, failures=2),
        "livenessProbe": http_probe("/healthz", period=10, failures=3, timeout=5),
        # A hook cannot carry the internal token over HTTP, so a small program in the image reads it and asks.
        "lifecycle": {"preStop": {"exec": {"command": ["python", "-m", "weft_router.drain"]}}},
    }


def _engine(rendering: Rendering, worker: Worker, pool: Pool, engine: EngineContainer) -> Manifest:
    container: Manifest = {
        "name": "engine",
        "image": engine.image,
        "imagePullPolicy": "IfNotPresent",
        "args": list(engine.args),
        "env": _engine_env(rendering, engine),
        "ports": [{"name": "kv", "containerPort": SIDE_CHANNEL_PORT, "protocol": "TCP"}],
        "resources": _engine_resources(rendering, worker, pool, engine),
        "securityContext": container_security(),
        "startupProbe": http_probe(
            "/engine/livez",
            period=engine.probe_period,
            failures=max(1, engine.start_seconds // engine.probe_period),
            timeout=5,
        ),
        "livenessProbe": http_probe("/engine/livez", period=10, failures=3, timeout=5),
        "lifecycle": {"preStop": {"httpGet": {"path": "/engine/prestop", "port": ROUTER_PORT}}},
        "volumeMounts": [
            {"name": CONFIG_VOLUME, "mountPath": CONFIG_FOLDER, "readOnly": True},
            {"name": TMP_VOLUME, "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod
            {"name": _SHM_VOLUME, "mountPath": "/dev/shm"},  # noqa: S108 - an emptyDir of the pod
            *engine.mounts,
        ],
    }
    if engine.command:
        container["command"] = list(engine.command)
    return container


def _engine_env(rendering: Rendering, engine: EngineContainer) -> list[Manifest]:
    """Return the engine's variables; the spec's win over the adapter's, for a name may appear once only."""
    env: list[Manifest] = [
        from_field("POD_NAME", "metadata.name"),
        from_field("POD_IP", "status.podIP"),
        from_field("NODE_NAME", "spec.nodeName"),
        *({"name": name, "value": value} for name, value in engine.env),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
            for name, secret, key in engine.secret_env
        ),
        *({"name": item.name, "value": item.value} for item in rendering.spec.engine.env),
    ]
    return list({item["name"]: item for item in env}.values())


def _engine_resources(rendering: Rendering, worker: Worker, pool: Pool, engine: EngineContainer) -> Manifest:
    """Return the engine's resources: devices from the pool, requests equal to limits as extended resources need."""
    devices = {pool.resource: str(worker.degree)}
    if pool.rdma is not None and rendering.record.paired:
        devices[pool.rdma.resource] = str(pool.rdma.count)
    asked = resources_of(rendering.spec.engine.resources)
    requests = {**{name: str(amount) for name, amount in engine.requests.items()}, **asked.get("requests", {})}
    return {
        "limits": dict(sorted({**asked.get("limits", {}), **devices}.items())),
        "requests": dict(sorted({**requests, **devices}.items())),
    }


def _tolerations(pool: Pool) -> list[Manifest]:
    node_loss = [
        {
            "key": f"node.kubernetes.io/{taint}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": NODE_LOSS_S,
        }
        for taint in ("not-ready", "unreachable")
    ]
    return [
        *node_loss,
        *(item.model_dump(mode="json", by_alias=True, exclude_none=True) for item in pool.tolerations),
    ]
