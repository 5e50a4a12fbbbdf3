"""The Jobs of a measurement: a worker's pod with a profiling program instead of the router. Pure.

The engine is started as the plan's workers are: from the same template, the service's own changes to it included.
"""

import json
import math
from dataclasses import replace
from typing import Any

from weft_core.authority import http_url
from weft_core.durations import parse_duration
from weft_core.plan import PlannedGroup, Role
from weft_operator.api.engine_merge import measured_engine
from weft_operator.api.objects import DEGREE_LABEL, POOL_LABEL, PROFILE_COMPONENT, Manifest
from weft_operator.api.planning import MeasureProfile
from weft_operator.profiling.targets import MeasurementTarget
from weft_operator.render.engines.adapters import engine_container
from weft_operator.render.engines.container import ENGINE_PORT, LOOPBACK, PROOF_VARIABLE, PROOF_VOLUME, EngineRequest
from weft_operator.render.gang import add_gang, workload_labels
from weft_operator.render.inputs import Rendering
from weft_operator.render.mesh import no_injection
from weft_operator.render.router_container import TMP_VOLUME, Mounts
from weft_operator.render.security_context import container_security
from weft_operator.render.worker_groups import worker_group

KEPT_S = 3600
"""How long an ended Job stays: for its log, and as the pause after a failure."""
SPARE_S = 300
"""Time for scheduling, fitting and termination, in addition to the engine's start and the budget."""
_STOP_S = 5
_PROFILER = "profile"
_OPEN_HOST = {"vllm": "--host=$(POD_IP)", "mock": f"--listen=[::]:{ENGINE_PORT}"}
"""Sidecars reach an engine on loopback; this one is reached from another pod. Of two flags the last one counts."""


def profile_job(
    rendering: Rendering, mounts: Mounts, target: MeasurementTarget, measure: MeasureProfile, *, name: str, reader: str
) -> Manifest:
    """Return the Job that times the engine of a target; ``reader`` is where another one reads its KV, "" for none."""
    pod = _engine_pod(rendering, mounts, target, "prefill")
    start_s = _start_s(rendering, target)
    budget_s = parse_duration(measure.budget)
    words = [http_url(LOOPBACK, ENGINE_PORT), f"--degree={target.degree}", f"--gpu={target.gpu}"]
    words += [f"--model={rendering.spec.model.served}", f"--budget={budget_s:g}", f"--start-seconds={start_s}"]
    words += [f"--decode-url={reader}"] if reader else []
    engine = pod["containers"][0]
    config = rendering.spec.model.config
    pod |= {
        "initContainers": [*pod.get("initContainers", ()), {**engine, "restartPolicy": "Always"}],
        "containers": [
            {
                "name": _PROFILER,
                "image": rendering.settings.operator_image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["python", "-m", "weft_operator.profiling.measure"],
                "args": words,
                "env": [{"name": "WEFT_MODEL_CONFIG", "value": json.dumps(config, sort_keys=True)}] if config else [],
                "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
                "securityContext": container_security(),
                "volumeMounts": [{"name": TMP_VOLUME, "mountPath": "/tmp"}],  # noqa: S108 - an emptyDir of the pod
            }
        ],
    }
    return _job(rendering, target, name, pod, deadline_s=math.ceil(start_s + budget_s + SPARE_S))


def reader_job(
    rendering: Rendering, mounts: Mounts, target: MeasurementTarget, measure: MeasureProfile, *, name: str
) -> Manifest:
    """Return the Job with the decode engine that reads the KV; it runs until it is deleted, or to its deadline."""
    pod = _engine_pod(rendering, mounts, target, "decode", more=(_OPEN_HOST[rendering.spec.engine.type],))
    deadline_s = 2 * _start_s(rendering, target) + parse_duration(measure.budget) + SPARE_S
    return _job(rendering, target, name, pod, deadline_s=math.ceil(deadline_s))


def _engine_pod(
    rendering: Rendering, mounts: Mounts, target: MeasurementTarget, role: Role, *, more: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return a worker's pod without its router, and its engine without what needs the router."""
    group = PlannedGroup(role=role, degree=target.degree, replicas=1, pool=target.pool)
    pod: dict[str, Any] = dict(worker_group(_measured(rendering), group, mounts)["spec"]["template"]["spec"])
    engine = dict(next(item for item in pod["containers"] if item["name"] == "engine"))
    for asks_the_router in ("startupProbe", "livenessProbe", "readinessProbe", "lifecycle"):
        engine.pop(asks_the_router, None)
    engine["args"] = [*engine.get("args", ()), *more]
    # The one who measures has no proof to show, and the pod has no Secret of the service's: nobody else reaches it.
    engine["env"] = [item for item in engine["env"] if item["name"] != PROOF_VARIABLE]
    engine["volumeMounts"] = [mount for mount in engine["volumeMounts"] if mount["name"] != PROOF_VOLUME]
    inits = [item for item in pod.pop("initContainers", ()) if item["name"] != "router"]
    mounted = {mount["name"] for item in (engine, *inits) for mount in item.get("volumeMounts") or ()} | {TMP_VOLUME}
    # Neither apart from workers nor near them: where none runs there would be nobody to be near to.
    pod.pop("topologySpreadConstraints", None)
    affinity = {kind: terms for kind, terms in pod.pop("affinity", {}).items() if kind != "podAffinity"}
    own = (rendering.pool(target.pool).affinity or {}).get("podAffinity")
    if own:
        affinity["podAffinity"] = own
    return {
        **pod,
        **({"affinity": affinity} if affinity else {}),
        **({"initContainers": inits} if inits else {}),
        "containers": [engine],
        "volumes": [volume for volume in pod["volumes"] if volume["name"] in mounted],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _STOP_S,
    }


def _measured(rendering: Rendering) -> Rendering:
    """Return a rendering whose engines have settings for both roles: figures are of both."""
    # Nor have they tiers that keep KV: what a prompt had cached would not be computed.
    spec = rendering.spec.model_copy(update={"engine": measured_engine(rendering.spec.engine), "kv_cache": None})
    return replace(rendering, record=replace(rendering.record, spec=spec))


def _start_s(rendering: Rendering, target: MeasurementTarget) -> int:
    request = EngineRequest(role="prefill", degree=target.degree, default_image=rendering.settings.mock_image)
    return engine_container(rendering.spec, request).start_seconds


def _job(rendering: Rendering, target: MeasurementTarget, name: str, pod: Manifest, *, deadline_s: int) -> Manifest:
    marks = {DEGREE_LABEL: str(target.degree), POOL_LABEL: target.pool}
    gang = rendering.spec.scheduling.gang
    of_mesh = no_injection(rendering)
    template = {
        "metadata": {
            "labels": {**rendering.labels(PROFILE_COMPONENT), **marks, **of_mesh.labels},
            "annotations": {
                "kubectl.kubernetes.io/default-container": pod["containers"][0]["name"],
                **of_mesh.annotations,
            },
        },
        "spec": pod,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": rendering.metadata(name, PROFILE_COMPONENT, {**marks, **workload_labels(gang)}),
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": deadline_s,
            "ttlSecondsAfterFinished": KEPT_S,
            "template": add_gang(gang, template),
        },
    }
