"""One WorkerGroup per degree and pool: an engine, and beside it the router sidecar that alone may reach it.

Where engines fix their role at the start there is one group for each role. Otherwise the role is in no immutable part
of the pod: the sidecar reads it from a file with the value of a label, and both roles have the same engine.

About the probes. The engine listens on loopback, where the kubelet cannot reach it, so its probes ask the
sidecar, which asks the engine (``/engine/livez``). The sidecar is a native one: it starts before the engine and
outlives it, so the engine's preStop waits in the sidecar until live requests have ended.

A worker on several nodes has one pod on each, all of one template: the first leads, and alone registers and serves.
"""

from weft_core.authority import http_url
from weft_core.parallelism import Degree, degree_to_json, gpus_of
from weft_core.plan import PlannedGroup, content_hash
from weft_core.spans import nodes_spanned
from weft_operator.api.base import ApiModel
from weft_operator.api.capacity import Pool
from weft_operator.api.model_cache import cached_model
from weft_operator.api.objects import (
    DEGREE_LABEL,
    OPERATOR_LABEL,
    PLAN_REVISION_LABEL,
    POOL_LABEL,
    REVISION_LABEL,
    TOKEN_HASH_ANNOTATION,
    WEIGHTS_ANNOTATION,
    Manifest,
)
from weft_operator.api.worker_group import GROUP_KIND
from weft_operator.render.config_maps import profile_key
from weft_operator.render.engines.adapters import engine_container
from weft_operator.render.engines.container import (
    CONFIG_FOLDER,
    LEADER,
    LEADER_VARIABLE,
    LOOPBACK,
    PROOF_KEY,
    PROOF_VARIABLE,
    RANK_VARIABLE,
    ROUTER_PORT,
    EngineContainer,
    EngineRequest,
)
from weft_operator.render.engines.kv_tiers import mooncake_of
from weft_operator.render.inputs import Rendering
from weft_operator.render.kv_disk import (
    MOUNT,
    disk_of,
    disk_sidecar,
    disk_volume,
    report_port,
    shared_memory,
    volume_group,
    with_tier_memory,
)
from weft_operator.render.mesh import mesh_marks
from weft_operator.render.pod_templates.overrides import with_pod_templates
from weft_operator.render.router_container import (
    CONFIG_VOLUME,
    STOP_MARGIN_S,
    TMP_VOLUME,
    TOKEN_FOLDER,
    Mounts,
    drain_seconds,
    from_field,
    http_probe,
    main_port,
    resources_of,
    role_volume,
    router_container,
    router_volumes,
)
from weft_operator.render.scheduling import affinity_of, pod_placement, pull_secrets, spread, worker_topology
from weft_operator.render.security_context import container_security, engine_user, pod_security
from weft_operator.render.statefulsets import WORKER_VARIABLE
from weft_operator.render.weights import sidecar
from weft_operator.workers.groups import GROUP_API, fixed_role, group_name

_SHM_VOLUME = "shm"


def worker_group(rendering: Rendering, group: PlannedGroup, mounts: Mounts) -> Manifest:
    """Return the WorkerGroup of one group of the plan, without replicas, which the rollout sets.

    Its controller adds the worker's name to the template, as a label and as the variable WEFT_WORKER.
    """
    cached = cached_model(rendering.spec.model)
    component = rendering.component(group.role)
    identity = {DEGREE_LABEL: str(group.degree), POOL_LABEL: group.pool, REVISION_LABEL: rendering.revision}
    of_mesh = mesh_marks(rendering, component, nodes=_nodes(rendering, group))
    template = with_pod_templates(
        rendering.spec,
        {
            "metadata": {
                "labels": {**rendering.labels(component), **identity, **of_mesh.labels},
                "annotations": {
                    "kubectl.kubernetes.io/default-container": "engine",
                    TOKEN_HASH_ANNOTATION: mounts.token_hash,
                    **({} if cached is None else {WEIGHTS_ANNOTATION: cached.key}),
                    **of_mesh.annotations,
                },
            },
            "spec": _pod(rendering, group, mounts),
        },
        component=component,
        pool=group.pool,
    )
    marks = {PLAN_REVISION_LABEL: rendering.record.plan.revision}
    if rendering.settings.instance:
        marks[OPERATOR_LABEL] = rendering.settings.instance
    nodes = _nodes(rendering, group)
    fixed = fixed_role(group.role, fixed_roles=rendering.fixed_roles)
    name = group_name(rendering.key.name, fixed, group.degree, group.pool, rendering.revision)
    return {
        "apiVersion": GROUP_API,
        "kind": GROUP_KIND,
        "metadata": rendering.metadata(name, component, {**identity, **marks}),
        "spec": {
            "service": rendering.key.name,
            **({} if fixed is None else {"role": fixed}),
            "degree": degree_to_json(group.degree),
            "pool": group.pool,
            "nodesPerWorker": nodes,
            **_together(rendering, group),
            "revision": rendering.revision,
            "templateHash": content_hash(template, 16),
            "drainTimeout": rendering.spec.rollout.drain_timeout,
            "template": template,
        },
    }


def _together(rendering: Rendering, group: PlannedGroup) -> Manifest:
    """Return the fields that connect the pods of one worker: its gang, and on several nodes what these share."""
    spec, pool = rendering.spec, rendering.pool(group.pool)
    gang = spec.scheduling.gang
    found: Manifest = {} if gang is None else {"gang": _plain(gang)}
    if _nodes(rendering, group) == 1:
        return found
    if spec.network_policy.enabled:
        found["isolated"] = True
    topology = worker_topology(pool)
    if topology is not None:
        found["topology"] = _plain(topology)
    if pool.compute_domain:
        found["computeDomain"] = True
    if gang is None:
        found["unschedulableTimeout"] = spec.rollout.unschedulable_timeout
    return found


def _plain(part: ApiModel) -> Manifest:
    return part.model_dump(mode="json", by_alias=True, exclude_none=True)


def _pod(rendering: Rendering, worker: PlannedGroup, mounts: Mounts) -> Manifest:
    pool, nodes = rendering.pool(worker.pool), _nodes(rendering, worker)
    engine = engine_container(
        rendering.spec,
        EngineRequest(
            role=worker.role if rendering.fixed_roles else "both",
            degree=worker.degree,
            default_image=rendering.settings.mock_image,
            paired=rendering.record.paired,
            nodes=nodes,
            secret=rendering.name("token"),
            service=rendering.key,
            revision=rendering.revision,
            profile_file=f"{CONFIG_FOLDER}/{_profile_key(rendering, worker)}",
        ),
    )
    disk = disk_of(rendering, engine.tiers)
    pod: Manifest = {
        "serviceAccountName": rendering.name(),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {**pod_security(), **volume_group(rendering, disk)},
        "terminationGracePeriodSeconds": drain_seconds(rendering) + STOP_MARGIN_S,
        **pod_placement(pool),
        **pull_secrets(rendering.spec, engine=True),
        "initContainers": [_sidecar(rendering, worker, mounts, engine)],
        "containers": [_engine(rendering, worker, pool, engine)],
        "volumes": [
            *router_volumes(rendering, mounts.config),
            {
                "name": _SHM_VOLUME,
                "emptyDir": {"medium": "Memory", "sizeLimit": shared_memory(rendering, engine.tiers)},
            },
            *([] if rendering.fixed_roles else [role_volume()]),
            *engine.volumes,
        ],
    }
    if nodes == 1:
        # Workers on several nodes fill these, and their own pods are to be near each other, not apart.
        pod["topologySpreadConstraints"] = [spread(rendering.selector(rendering.component(worker.role)), pool)]
    cached = cached_model(rendering.spec.model)
    if cached is not None and cached.cache.node is not None:
        container, volume = sidecar(rendering, mounts, cached)
        pod["initContainers"].append(container)
        pod["volumes"].append(volume)
    if disk is not None:
        pod["initContainers"].append(disk_sidecar(rendering, disk, engine.tiers))
        pod["volumes"].append(disk_volume(disk))
    claims = _claims(pool, worker.degree)
    if claims:
        pod["resourceClaims"] = claims
    affinity = affinity_of(rendering.key.name, pool, rendering.worker_components)
    if affinity:
        pod["affinity"] = affinity
    return pod


def _nodes(rendering: Rendering, worker: PlannedGroup) -> int:
    return nodes_spanned(worker.degree, rendering.pool(worker.pool).gpus_per_node)


def _node_env(rendering: Rendering, worker: PlannedGroup) -> list[Manifest]:
    """Return the variables that connect the pods of a worker on several nodes; none for other workers."""
    if _nodes(rendering, worker) == 1:
        return []
    leader = f"$({WORKER_VARIABLE})-0.{rendering.name(rendering.component(worker.role))}.{rendering.key.namespace}.svc"
    return [
        from_field(RANK_VARIABLE, "metadata.labels['apps.kubernetes.io/pod-index']"),
        {"name": LEADER_VARIABLE, "value": leader},
    ]


def _profile_key(rendering: Rendering, worker: PlannedGroup) -> str:
    return profile_key(worker.pool) if worker.pool in rendering.record.profiles else "profile.json"


def _sidecar(rendering: Rendering, worker: PlannedGroup, mounts: Mounts, engine: EngineContainer) -> Manifest:
    component = rendering.component(worker.role)
    port = main_port(rendering, component)
    env: list[Manifest] = [
        {"name": WORKER_VARIABLE, "value": ""},
        {"name": "WEFT_DEGREE", "value": str(worker.degree)},
        {"name": "WEFT_POOL", "value": worker.pool},
        {"name": "WEFT_REVISION", "value": rendering.revision},
        *_node_env(rendering, worker),
    ]
    if _nodes(rendering, worker) > 1:
        env.append({"name": "WEFT_LEADER_URL", "value": f"http://{LEADER}:{port}"})
    if port != ROUTER_PORT:
        env.append({"name": "WEFT_DRAIN_URL", "value": f"{http_url(LOOPBACK, port)}/drain"})
    if rendering.spec.engine.plugin is not None:
        env.append({"name": PROOF_VARIABLE, "value": f"{TOKEN_FOLDER}/{PROOF_KEY}"})
    if engine.side_channel_port:
        env.append({"name": "WEFT_KV_PORT", "value": str(engine.side_channel_port)})
        if all(pool.rdma is not None for pool in rendering.spec.capacity.pools):
            env.append({"name": "WEFT_KV_TRANSPORT", "value": "rdma"})
    if engine.tiers.folder:
        env.append(report_port())
    if engine.kv_events_port:
        env.append({"name": "WEFT_KV_EVENTS_PORT", "value": str(engine.kv_events_port)})
    resources = rendering.spec.routing.resources
    container = router_container(
        rendering,
        mounts,
        role=component,
        env=env,
        resources=resources,
        engine_host=engine.host,
    )
    return {
        **container,
        "restartPolicy": "Always",
        "readinessProbe": http_probe("/readyz", period=2, failures=2),
        "livenessProbe": http_probe("/healthz", period=10, failures=3, timeout=5),
        # A hook cannot carry the internal token over HTTP, so a small program in the image reads it and asks.
        "lifecycle": {"preStop": {"exec": {"command": ["python", "-m", "weft_router.drain"]}}},
    }


def _engine(rendering: Rendering, worker: PlannedGroup, pool: Pool, engine: EngineContainer) -> Manifest:
    container: Manifest = {
        "name": "engine",
        "image": engine.image,
        "imagePullPolicy": "IfNotPresent",
        "args": list(engine.args),
        "env": _engine_env(rendering, worker, engine),
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in engine.ports],
        "resources": _engine_resources(rendering, worker, pool, engine),
        "securityContext": container_security(
            engine_user(rendering.spec.engine, openshift=rendering.settings.openshift)
        ),
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
            *([MOUNT] if engine.tiers.folder else []),
        ],
    }
    if engine.log_on_failure:
        container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    if engine.command:
        container["command"] = list(engine.command)
    return container


def _engine_env(rendering: Rendering, worker: PlannedGroup, engine: EngineContainer) -> list[Manifest]:
    """Return the engine's variables: the adapter's, but for those that the spec has, too, and after them the spec's.

    Those keep their order, because Kubernetes puts only variables that stand before into a value ($(NAME)).
    """
    own = [{"name": item.name, "value": item.value} for item in rendering.engine(worker.role).env]
    env: list[Manifest] = [
        from_field("POD_NAME", "metadata.name"),
        from_field("POD_IP", "status.podIP"),
        from_field("NODE_NAME", "spec.nodeName"),
        *([{"name": WORKER_VARIABLE, "value": ""}, *nodes] if (nodes := _node_env(rendering, worker)) else []),
        *({"name": name, "value": value} for name, value in engine.env),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
            for name, secret, key in engine.secret_env
        ),
    ]
    named = {item["name"] for item in own}
    return [*(item for item in env if item["name"] not in named), *own]


def _engine_resources(rendering: Rendering, worker: PlannedGroup, pool: Pool, engine: EngineContainer) -> Manifest:
    """Return the engine's resources: devices from the pool, requests equal to limits as extended resources need."""
    of_pod = gpus_of(worker.degree) // _nodes(rendering, worker) // pool.gpus_of_device
    devices = {} if pool.gpus_from_claims else {pool.resource: str(of_pod)}
    if pool.rdma is not None and (rendering.record.paired or _reaches_store_by_rdma(rendering)):
        devices[pool.rdma.resource] = str(pool.rdma.count)
    asked = resources_of(rendering.engine(worker.role).resources)
    own = {name: str(amount) for name, amount in engine.requests.items()}
    requests, limits = with_tier_memory({**own, **asked.get("requests", {})}, asked.get("limits", {}), engine.tiers)
    claims = [{"name": claim["name"]} for claim in _claims(pool, worker.degree)]
    return {
        "limits": dict(sorted({**limits, **devices}.items())),
        "requests": dict(sorted({**requests, **devices}.items())),
        **({"claims": claims} if claims else {}),
    }


def _reaches_store_by_rdma(rendering: Rendering) -> bool:
    store = mooncake_of(rendering.spec)
    return store is not None and store.protocol == "rdma" and rendering.spec.engine.type != "mock"


def _claims(pool: Pool, degree: Degree) -> list[Manifest]:
    """Return the claims of a worker's pod by dynamic resource allocation."""
    return [
        {"name": claim.name, "resourceClaimTemplateName": claim.template}
        for claim in pool.resource_claims or ()
        if claim.degrees is None or gpus_of(degree) in claim.degrees
    ]
