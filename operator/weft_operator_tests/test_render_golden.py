"""Everything that is rendered for a service, pinned byte for byte: WEFT_UPDATE_GOLDEN=1 rewrites the files."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_core.plan import PlannedGroup
from weft_operator.api.objects import Manifest, labels_of
from weft_operator.render.inputs import Rendering
from weft_operator.render.objects import desired_objects
from weft_operator_tests.samples import (
    HYBRID,
    POOL_PROFILES,
    PROFILE_JSON,
    SYMMETRIC,
    TOKEN,
    colocated,
    group,
    on_nodes,
    rendered,
    rendering,
    two_pools,
    with_both_roles,
)
from weft_operator_tests.valid import (
    changed,
    front_service,
    gateway_service,
    neuron_service,
    picker_service,
    pools_service,
    service,
    sglang_service,
    tensorrt_llm_service,
    vllm_service,
)

GOLDEN = Path(__file__).parent / "golden"

PVC = changed(vllm_service(), "spec.model.source", {"pvc": {"claimName": "models", "path": "llama-70b"}})
PLUGIN = changed(PVC, "spec.engine.plugin", "Expected")
KEYS = changed(
    changed(
        service(), "spec.coordinator", {"replicas": 3, "auth": {"apiKeySecretRef": {"name": "keys", "key": "all"}}}
    ),
    "spec.engine",
    {"type": "mock", "kvTransfer": {"bidirectional": False}, "mock": {"timeScale": 0.1, "chunkTokens": 512}},
)
ADAPTERS = [
    {"name": "sql", "source": {"pvc": {"claimName": "adapters", "path": "sql"}}},
    {"name": "law", "source": {"huggingFace": "acme/law-lora"}},
]
ON_CORES = (group("prefill", 16, 2, "trn2"), group("decode", 32, 1, "trn2"))
CASES = {
    "mock": rendering(service()),
    "mock-front": rendering(front_service()),
    "mock-gateway": rendering(gateway_service()),
    "mock-picker": rendering(picker_service()),
    "mock-keys": rendering(KEYS),
    "mock-pools": two_pools(),
    "neuron": rendering(neuron_service(), *ON_CORES),
    "sglang": rendering(sglang_service()),
    "tensorrt-llm": rendering(tensorrt_llm_service()),
    "tensorrt-llm-colocated": colocated(tensorrt_llm_service()),
    "vllm": rendering(vllm_service()),
    "vllm-colocated": colocated(vllm_service()),
    "vllm-pvc": rendering(PVC),
    "vllm-plugin": rendering(PLUGIN),
    "vllm-istio": rendering(changed(vllm_service(), "spec.network", {"mesh": {"type": "istio", "mtls": "Strict"}})),
    "vllm-adapters": rendering(changed(vllm_service(), "spec.model.adapters", ADAPTERS)),
    "mock-front-linkerd": rendering(
        changed(front_service(), "spec.network", {"mesh": {"type": "linkerd", "mtls": "Strict"}})
    ),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_rendered_objects_are_those_of_the_golden_file(name: str) -> None:
    pinned(name, desired_objects(CASES[name], token=TOKEN))


def test_workers_of_groups_are_those_of_the_golden_file() -> None:
    """What the group controller makes of the groups is pinned beside what is rendered."""
    pinned("mock-workers", [item for item in rendered(CASES["mock"]) if item["kind"] == "StatefulSet"])


WITH_BOTH_ROLES = {"symmetric": SYMMETRIC, "hybrid": HYBRID}


@pytest.mark.parametrize("layout", sorted(WITH_BOTH_ROLES))
@pytest.mark.parametrize("engine", ["mock", "vllm"])
def test_workers_with_both_roles_are_those_of_the_golden_file(engine: str, layout: str) -> None:
    """They differ from other workers in the label of their role alone, and disruption budgets follow that."""
    body = service() if engine == "mock" else vllm_service()
    base = with_both_roles(body, *WITH_BOTH_ROLES[layout])
    kinds = ("PodDisruptionBudget", "StatefulSet")
    pinned(f"{engine}-{layout}", [item for item in rendered(base) if item["kind"] in kinds])


NODES = {
    "mock-nodes": service(),
    "sglang-nodes": sglang_service(),
    "tensorrt-llm-nodes": tensorrt_llm_service(),
    "vllm-nodes": vllm_service(),
}


GANGS: dict[str, Manifest] = {
    "kueue": {"queue": "team-a"},
    "volcano": {"queue": "team-a"},
    "kai": {"queue": "team-a"},
    "coscheduling": {"schedulerName": "second-scheduler"},
}


@pytest.mark.parametrize("scheduler", sorted(GANGS))
def test_what_gang_schedulers_read_is_that_of_the_golden_file(scheduler: str) -> None:
    """On two nodes and on one: what names the scheduler, the queue and the PodGroup, of each object and its pods."""
    body = changed(service(), "spec.scheduling", {"gang": {"scheduler": scheduler, **GANGS[scheduler]}})
    pool = {"topology": {"required": "nvidia.com/gpu.clique"}, "computeDomain": True, "priorityClassName": "high"}
    body["spec"]["capacity"]["pools"][0] |= pool
    objects = [item for item in rendered(on_nodes(body)) if "weft.dev/worker" in item["metadata"]["labels"]]
    pinned(f"gang-{scheduler}", [scheduled(item) for item in objects if item["kind"] != "NetworkPolicy"])


def scheduled(item: Manifest) -> Manifest:
    """Return the part of an object that schedulers read."""
    if item["kind"] != "StatefulSet":
        return item
    template = item["spec"]["template"]
    fields = ("affinity", "priorityClassName", "resourceClaims", "schedulerName", "topologySpreadConstraints")
    pod: Manifest = {name: template["spec"][name] for name in fields if name in template["spec"]}
    pod["engine"] = template["spec"]["containers"][0]["resources"]
    metadata = {"name": item["metadata"]["name"], "labels": item["metadata"]["labels"]}
    return {
        "kind": item["kind"],
        "metadata": metadata,
        "spec": {"replicas": item["spec"]["replicas"], "template": {"metadata": template["metadata"], "spec": pod}},
    }


@pytest.mark.parametrize("name", sorted(NODES))
def test_workers_on_several_nodes_are_those_of_the_golden_file(name: str) -> None:
    kinds = ("Service", "StatefulSet", "NetworkPolicy")
    objects = [item for item in rendered(on_nodes(NODES[name])) if item["kind"] in kinds]
    of_decode = [one for one in objects if labels_of(one)["app.kubernetes.io/component"] in ("decode", "worker")]
    pinned(name, [item for item in of_decode if labels_of(item).get("weft.dev/role") != "prefill"])


def pinned(name: str, objects: Sequence[Manifest]) -> None:
    text = yaml.safe_dump_all(objects, sort_keys=True, width=120)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("WEFT_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text, "if this is meant, run WEFT_UPDATE_GOLDEN=1 make test-unit and read the difference"


def test_golden_objects_are_applied_after_what_they_mount() -> None:
    base = rendering()
    kinds = [item["kind"] for item in desired_objects(base, token=TOKEN)]
    first_pod = min(kinds.index("WorkerGroup"), kinds.index("Deployment"))
    assert {"Secret", "ConfigMap", "ServiceAccount", "Service"} <= set(kinds[:first_pod])


def containers(objects: tuple[Manifest, ...]) -> list[Manifest]:
    specs = [item["spec"]["template"]["spec"] for item in objects if item["kind"] in ("StatefulSet", "Deployment")]
    return [item for spec in specs for item in (*spec.get("initContainers", ()), *spec["containers"])]


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_pod_is_restricted(name: str) -> None:
    base = CASES[name]
    objects = rendered(base)
    for container in containers(objects):
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"] is True
    for item in objects:
        if item["kind"] in ("StatefulSet", "Deployment"):
            pod = item["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert pod["automountServiceAccountToken"] is False


def test_only_the_secret_holds_the_token() -> None:
    base = rendering(KEYS)
    objects = rendered(base)
    others = yaml.safe_dump_all([item for item in objects if item["kind"] != "Secret"])
    assert TOKEN.decode() not in others


def test_the_engine_takes_the_gpus_and_network_devices_of_its_worker() -> None:
    base = rendering()
    objects = rendered(base)
    sets = {item["metadata"]["name"]: item for item in objects if item["kind"] == "StatefulSet"}
    assert sorted(sets) == ["demo-w4-0", "demo-w4-1", "demo-w8-0"]
    for name, degree in (("demo-w8-0", "8"), ("demo-w4-1", "4")):
        engine = sets[name]["spec"]["template"]["spec"]["containers"][0]
        assert engine["resources"]["limits"] == {"nvidia.com/gpu": degree, "rdma/ib": "1"}
        assert engine["resources"]["requests"]["nvidia.com/gpu"] == degree


def test_a_variable_of_the_spec_wins_over_the_adapters() -> None:
    base = rendering(changed(vllm_service(), "spec.engine.env", [{"name": "HOME", "value": "/models/home"}]))
    objects = rendered(base)
    engine = next(item for item in containers(objects) if item["name"] == "engine")
    assert [item["value"] for item in engine["env"] if item["name"] == "HOME"] == ["/models/home"]


def engines(base: Rendering) -> dict[str, Manifest]:
    objects = rendered(base)
    sets = [item for item in objects if item["kind"] == "StatefulSet"]
    return {item["metadata"]["name"]: item["spec"]["template"]["spec"] for item in sets}


def test_each_worker_takes_degree_devices_nodes_and_profile_from_its_group() -> None:
    pods = engines(two_pools())
    assert sorted(pods) == ["demo-w4-0", "demo-w4-1", "demo-w8-0"]
    for name, pool, devices in (
        ("demo-w8-0", "h20", {"nvidia.com/gpu": "8"}),
        ("demo-w4-0", "h100", {"example.com/h100": "4", "rdma/ib": "1"}),
        ("demo-w4-1", "h100", {"example.com/h100": "4", "rdma/ib": "1"}),
    ):
        engine, sidecar = pods[name]["containers"][0], pods[name]["initContainers"][0]
        assert pods[name]["nodeSelector"] == {"gpu": pool}
        assert engine["resources"]["limits"] == devices
        assert f"--profile=/etc/weft/profile-{pool}.json" in engine["args"]
        assert {"name": "WEFT_POOL", "value": pool} in sidecar["env"]


def test_the_pods_of_a_worker_take_their_nodes_gpus_and_stay_apart() -> None:
    objects = rendered(on_nodes())
    sets = {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "StatefulSet"}
    assert {name: spec["replicas"] for name, spec in sets.items()} == {"demo-w8-0": 2, "demo-w4-0": 1, "demo-w4-1": 1}
    assert sets["demo-w8-0"]["updateStrategy"] == {"type": "OnDelete"}
    pod = sets["demo-w8-0"]["template"]["spec"]
    engine = pod["containers"][0]
    assert engine["resources"]["limits"] == {"nvidia.com/gpu": "4", "rdma/ib": "1"}
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    own = {"weft.dev/service": "demo", "weft.dev/worker": "demo-w8-0"}
    assert apart == {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": own}}
    assert "topologySpreadConstraints" not in pod
    for container in (engine, pod["initContainers"][0]):
        told = {item["name"]: item.get("value") for item in container["env"]}
        assert told["WEFT_WORKER"] == "demo-w8-0"
        assert told["WEFT_LEADER"] == "$(WEFT_WORKER)-0.demo-worker.default.svc"
        names = [item["name"] for item in container["env"]]
        assert names.index("WEFT_WORKER") < names.index("WEFT_LEADER"), "a variable knows only those before it"
    alone = sets["demo-w4-0"]["template"]["spec"]["containers"][0]
    assert not [item for item in alone["env"] if item["name"].startswith("WEFT_")], "nothing changes for other workers"


def test_the_pods_of_one_worker_reach_each_other_and_no_others() -> None:
    def opened(base: Rendering) -> list[Manifest]:
        kinds = [item for item in rendered(base) if item["kind"] == "NetworkPolicy"]
        return [item for item in kinds if "weft.dev/worker" in item["metadata"]["labels"]]

    (policy,) = opened(on_nodes())
    mine = {"podSelector": {"matchLabels": {"weft.dev/service": "demo", "weft.dev/worker": "demo-w8-0"}}}
    assert policy["spec"] == {**mine, "policyTypes": ["Ingress"], "ingress": [{"from": [mine]}]}
    assert opened(rendering(service())) == []
    off = on_nodes(changed(service(), "spec.networkPolicy", {"enabled": False}))
    assert opened(off) == [], "a policy would close what nothing closes"


@pytest.mark.parametrize("body", [service(), vllm_service()], ids=["mock", "vllm"])
def test_co_located_workers_hand_no_kv_to_each_other(body: Manifest) -> None:
    pods = engines(colocated(body))
    assert sorted(pods) == ["demo-w8-0", "demo-w8-1"]
    for pod in pods.values():
        engine = pod["containers"][0]
        assert not [arg for arg in engine["args"] if "kv-transfer-config" in arg or "bidirectional" in arg]
        assert not [item for item in engine["env"] if "SIDE_CHANNEL" in item["name"]]
        assert engine["resources"]["limits"].keys() - {"memory"} == {"nvidia.com/gpu"}, "no network devices"


GROUPS = st.lists(
    st.builds(
        group,
        st.sampled_from(["prefill", "decode"]),
        st.sampled_from([4, 8]),
        st.integers(1, 3),
        st.sampled_from(["h20", "h100"]),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda g: (g.role, g.degree, g.pool),
)


@given(GROUPS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_worker_of_any_plan_finds_its_own_pool(groups: list[PlannedGroup], differ: bool) -> None:
    base = rendering(pools_service(), *groups)
    profiles = {pool: POOL_PROFILES[pool] for pool in {g.pool for g in groups}} if differ else {}
    base = replace(base, record=replace(base.record, profiles=profiles))
    objects = rendered(base)
    mounted = next(item["data"] for item in objects if "router.json" in item.get("data", {}))
    sets = [item for item in objects if item["kind"] == "StatefulSet"]
    assert len({item["metadata"]["name"] for item in sets}) == sum(g.replicas for g in groups) == len(sets)
    for item in sets:
        pod, pool = item["spec"]["template"]["spec"], item["metadata"]["labels"]["weft.dev/pool"]
        (file,) = (arg.rpartition("/")[2] for arg in pod["containers"][0]["args"] if arg.startswith("--profile="))
        assert json.loads(mounted[file])["gpu"] == (f"nvidia-{pool}" if differ else PROFILE_JSON["gpu"])
        assert pod["nodeSelector"] == {"gpu": pool}
