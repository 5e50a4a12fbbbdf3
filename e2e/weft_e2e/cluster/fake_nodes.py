"""Fake nodes: API objects that KWOK keeps Ready, for questions of scale; no container ever runs on them."""

import json
from dataclasses import replace

from weft_e2e.cluster import kubectl, members, node, state, toolchain
from weft_e2e.cluster.config import CONTROL_PLANE, ClusterConfig
from weft_e2e.cluster.errors import Refused
from weft_e2e.cluster.paths import ClusterPaths
from weft_e2e.cluster.progress import Progress
from weft_e2e.cluster.specs import MemberService, MemberSpec
from weft_e2e.cluster.toolchain import manifests_of, tool_path

KWOK = "kwok"
ANNOTATION = {"kwok.x-k8s.io/node": "fake"}
MAX_FAKE = 1000
READY_SECONDS = 60.0


def scale(paths: ClusterPaths, count: int, progress: Progress) -> None:
    """Make the number of fake nodes `count`; returns when all of them are Ready. KWOK is built where it is missing."""
    if not 0 <= count <= MAX_FAKE:
        raise Refused(f"fake-nodes {count}: choose 0 to {MAX_FAKE}")
    state.require(paths)
    if count:
        toolchain.build_all(progress, only=frozenset({KWOK}))
    with state.locked(paths):
        known = state.require(paths)
        _run_kwok(paths, wanted=count > 0)
        names = [f"fake-{i}" for i in range(1, count + 1)]
        if names:
            kubectl.apply(paths.kubeconfig, [fake_node(name, known.config) for name in names])
        surplus = [f"node/fake-{i}" for i in range(count + 1, known.fake_nodes + 1)]
        if surplus:
            kubectl.run(kubectl.kubectl_argv("delete", "--ignore-not-found", *surplus), paths.kubeconfig, timeout=120)
        state.write(paths, replace(known, fake_nodes=count))
        if names:
            argv = ["wait", "--for=condition=Ready", "node", "-l", "type=kwok", f"--timeout={READY_SECONDS:.0f}s"]
            kubectl.run(kubectl.kubectl_argv(*argv), paths.kubeconfig, timeout=READY_SECONDS + 10)


def fake_node(name: str, config: ClusterConfig) -> dict[str, object]:
    """Return a Node object. The taint keeps pods away that really have to run; tolerate it to use the node."""
    capacity = {
        "cpu": "96",
        "memory": "1Ti",
        "pods": "110",
        "nvidia.com/gpu": str(config.gpus),
        "rdma/ib": str(config.rdma),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": ANNOTATION,
            "labels": node.labels(config)
            | {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok", "weft.dev/fake": "true"},
        },
        "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def kwok_service(paths: ClusterPaths) -> MemberService:
    key, value = next(iter(ANNOTATION.items()))
    return MemberService(
        KWOK,
        [
            str(tool_path(KWOK)),
            f"--kubeconfig={paths.root / 'admin.kubeconfig'}",
            "--manage-all-nodes=false",
            f"--manage-nodes-with-annotation-selector={key}={value}",
            "--node-lease-duration-seconds=40",
            *(f"--config={file}" for file in manifests_of(KWOK)),
        ],
    )


def _run_kwok(paths: ClusterPaths, *, wanted: bool) -> None:
    """Add KWOK to the control plane's programs, or take it away."""
    state.require_member_pid(paths, CONTROL_PLANE)
    file = paths.member(CONTROL_PLANE) / "init-spec.json"
    values = json.loads(file.read_text())
    services = [MemberService(**item) for item in values.pop("services")]
    if wanted == any(service.name == KWOK for service in services):
        return
    others = [service for service in services if service.name != KWOK]
    programs = [*others, kwok_service(paths)] if wanted else others
    members.signal_reload(paths, CONTROL_PLANE, MemberSpec(**values, services=programs))
