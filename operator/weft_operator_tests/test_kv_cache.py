"""KV cache tiers: flags, files and pods of each engine, their place in revisions, policies and measurements."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_core.parallelism import Degree, degree_of
from weft_core.plan import Role
from weft_core.quantities import bytes_of, size_text
from weft_mock.kv_transfer_config import check_transfer_config
from weft_operator.api.kv_cache import kv_disk_fault
from weft_operator.api.objects import Manifest
from weft_operator.api.planning import MeasureProfile
from weft_operator.api.quantities import tier_fault
from weft_operator.commands.manifest_checks import service_messages
from weft_operator.profiling.jobs import profile_job
from weft_operator.profiling.targets import MeasurementTarget
from weft_operator.render.engines.adapters import engine_container, engine_files
from weft_operator.render.engines.container import EngineContainer, EngineRequest
from weft_operator.render.inputs import Rendering
from weft_operator.render.objects import desired_objects, mounts_of
from weft_operator_tests.invalid_kv_cache import CPU, DISK, LMCACHE, MOONCAKE, with_tiers
from weft_operator_tests.samples import KEY, TOKEN, colocated, group, rendering
from weft_operator_tests.test_render_golden import pinned
from weft_operator_tests.valid import (
    REMOVED,
    changed,
    service,
    sglang_service,
    spec,
    tensorrt_llm_service,
    vllm_service,
)

BODIES = {"mock": service(), "vllm": vllm_service(), "sglang": sglang_service(), "tensorrt-llm": tensorrt_llm_service()}
TIERS: dict[str, dict[str, Manifest]] = {
    "cpu": {"cpu": CPU},
    "disk": {"cpu": CPU, "disk": DISK},
    "disk-class": {"cpu": CPU, "disk": {**DISK, "storageClassName": "local-nvme"}},
    "disk-claim": {"cpu": CPU, "disk": {**DISK, "claim": "kv"}},
    "disk-path": {"cpu": CPU, "disk": {**DISK, "path": "/mnt/nvme"}},
    "lmcache": {"cpu": CPU, "remote": LMCACHE},
    "mooncake": {"cpu": CPU, "remote": MOONCAKE},
    "mooncake-alone": {"remote": MOONCAKE},
}
POSSIBLE = {
    "vllm": tuple(TIERS),
    "sglang": ("cpu", "disk", "disk-path", "mooncake"),
    "tensorrt-llm": ("cpu",),
}
GI = 2**30
GROUPS = (group("prefill", 4, 1), group("decode", 8, 1))


def tiered(kind: str, name: str) -> Manifest:
    return with_tiers(BODIES[kind], **TIERS[name])


def container(body: Manifest, role: Role = "decode", degree: Degree = 8, **more: Any) -> EngineContainer:
    request = EngineRequest(role=role, degree=degree, default_image="mock:1", service=KEY, revision="r1", **more)
    return engine_container(spec(body), request)


def flag(found: EngineContainer, name: str) -> Any:
    (value,) = (arg.partition("=")[2] for arg in found.args if arg.startswith(f"{name}="))
    return value


def connectors(found: EngineContainer) -> dict[str, Any]:
    """Return the settings of each connector by its name."""
    config = json.loads(flag(found, "--kv-transfer-config"))
    children = config["kv_connector_extra_config"].get("connectors", [config])
    return {child["kv_connector"]: child["kv_connector_extra_config"] for child in children}


def pods(base: Rendering) -> dict[str, Manifest]:
    """Return the pods of workers by the name of their group."""
    made = [item for item in desired_objects(base, token=TOKEN) if item["kind"] == "WorkerGroup"]
    suffix = f"-{base.revision[:6]}"
    return {item["metadata"]["name"].removesuffix(suffix): item["spec"]["template"]["spec"] for item in made}


def added(pod: Manifest, plain: Manifest) -> Manifest:
    """Return what a pod has that one without tiers has not, or otherwise."""
    engine, other = pod["containers"][0], plain["containers"][0]
    fields = ("args", "env", "volumeMounts")
    found: Manifest = {name: [one for one in engine[name] if one not in other[name]] for name in fields}
    found["resources"] = engine["resources"] if engine["resources"] != other["resources"] else {}
    found |= {name: [one for one in pod[name] if one not in plain[name]] for name in ("volumes", "initContainers")}
    if pod["securityContext"] != plain["securityContext"]:
        found["securityContext"] = pod["securityContext"]
    of_revision = ("config", "router")  # which another store changes
    for name in ("volumes", "initContainers"):
        found[name] = [one for one in found[name] if one["name"] not in of_revision]
    return {name: value for name, value in found.items() if value}


@pytest.mark.parametrize("kind", sorted(POSSIBLE))
def test_pods_with_tiers_are_those_of_the_golden_file(kind: str) -> None:
    found = []
    for name in POSSIBLE[kind]:
        body, plain = tiered(kind, name), pods(rendering(BODIES[kind], *GROUPS))
        before, after = (engine_files(spec(one), paired=True) for one in (BODIES[kind], body))
        files = {file: json.loads(text) for file, text in after.items() if text not in before.values()}
        parts = {one: added(pod, plain[one]) for one, pod in pods(rendering(body, *GROUPS)).items()}
        found.append({"tiers": TIERS[name], "pods": parts, **({"files": files} if files else {})})
    pinned(f"kv-cache-{kind}", found)


@pytest.mark.parametrize("kind", ["mock", "vllm", "sglang", "tensorrt-llm"])
def test_a_service_without_tiers_is_as_before(kind: str) -> None:
    for role in ("prefill", "decode"):
        found = container(BODIES[kind], role)
        assert not [arg for arg in found.args if "Multi" in arg or "hicache" in arg]
        assert (found.tiers.memory, found.tiers.shared_memory, found.tiers.folder) == (0, 0, "")


def test_nixl_comes_first_and_as_it_was_without_tiers() -> None:
    plain = json.loads(flag(container(vllm_service(), "prefill"), "--kv-transfer-config"))
    config = json.loads(flag(container(tiered("vllm", "mooncake"), "prefill"), "--kv-transfer-config"))
    assert config["kv_connector_extra_config"]["connectors"][0] == plain
    assert (config["kv_connector"], config["kv_role"]) == ("MultiConnector", "kv_producer")
    assert list(connectors(container(tiered("vllm", "mooncake")))) == [
        "NixlConnector",
        "OffloadingConnector",
        "MooncakeStoreConnector",
    ]


@pytest.mark.parametrize("name", sorted(TIERS))
def test_what_a_remote_store_fails_to_hand_over_is_computed(name: str) -> None:
    config = json.loads(flag(container(tiered("vllm", name)), "--kv-transfer-config"))
    remote = "remote" in TIERS[name]
    assert config.get("kv_load_failure_policy") == ("recompute" if remote else None)


def test_co_located_workers_have_tiers_without_nixl() -> None:
    alone = json.loads(flag(container(tiered("vllm", "cpu"), paired=False), "--kv-transfer-config"))
    assert (alone["kv_connector"], alone["kv_role"]) == ("OffloadingConnector", "kv_both")
    two = container(tiered("vllm", "mooncake"), paired=False)
    assert list(connectors(two)) == ["OffloadingConnector", "MooncakeStoreConnector"]
    for pod in pods(colocated(tiered("vllm", "cpu"))).values():
        assert pod["containers"][0]["resources"]["requests"]["memory"] == "264Gi"


@pytest.mark.parametrize(
    ("degree", "nodes", "each", "memory", "shared"),
    [
        (8, 1, 200, 200, 200),
        (16, 2, 200, 100, 200),  # one engine over both nodes: its file is as large on each, and half of it is filled
        (degree_of(dp=8, ep=True), 1, 25, 200, 200),
        (degree_of(dp=16, ep=True), 2, 12.5, 100, 100),
    ],
)
def test_memory_is_that_of_one_worker(degree: Degree, nodes: int, each: float, memory: int, shared: int) -> None:
    found = container(tiered("vllm", "cpu"), degree=degree, nodes=nodes)
    assert connectors(found)["OffloadingConnector"]["cpu_bytes_to_use"] == each * GI
    assert (found.tiers.memory, found.tiers.shared_memory) == (memory * GI, shared * GI)


def test_memory_of_processes_is_a_part_for_each_gpu() -> None:
    assert connectors(container(tiered("vllm", "lmcache")))["LMCacheConnectorV1"]["lmcache.max_local_cpu_size"] == 25
    assert flag(container(tiered("sglang", "cpu"), "prefill"), "--hicache-size") == str(200 * GI // 8 // 10**9)
    small = changed(tiered("sglang", "cpu"), "spec.kvCache.cpu.size", "2Gi")
    assert flag(container(small, "prefill"), "--hicache-size") == "1", "of 0 it would take what it likes"
    path = flag(container(tiered("tensorrt-llm", "cpu")), "--extra_llm_api_options")
    options = json.loads(engine_files(spec(tiered("tensorrt-llm", "cpu")), paired=True)[path.rpartition("/")[2]])
    assert options["kv_cache_config"]["host_cache_size"] == 200 * GI // 8


def test_tensorrt_llm_has_the_file_of_every_worker_that_may_be_planned() -> None:
    body = changed(tiered("tensorrt-llm", "cpu"), "spec.capacity.pools.0.degrees", REMOVED)
    for open_to_all in (tiered("tensorrt-llm", "cpu"), body):
        files = engine_files(spec(open_to_all), paired=True)
        for degree in (1, 2, 4, 8):
            path = flag(container(open_to_all, "prefill", degree), "--extra_llm_api_options")
            assert path.rpartition("/")[2] in files


def test_decode_workers_of_sglang_have_memory_for_a_store_alone() -> None:
    for name in ("cpu", "disk"):
        found = container(tiered("sglang", name))
        assert found.tiers.memory == 0
        assert not [arg for arg in found.args if "cache" in arg.partition("=")[0] and "kv-cache-dtype" not in arg]
    stored = container(tiered("sglang", "mooncake"))
    assert "--disaggregation-decode-enable-offload-kvcache" in stored.args
    assert "--enable-hierarchical-cache" not in stored.args
    assert "--enable-hierarchical-cache" in container(tiered("sglang", "mooncake"), "prefill").args


@pytest.mark.parametrize("name", sorted(TIERS))
@pytest.mark.parametrize("paired", [True, False])
def test_a_mock_engine_is_given_what_it_accepts_and_its_pod_nothing(name: str, paired: bool) -> None:
    base = rendering(tiered("mock", name), *GROUPS) if paired else colocated(tiered("mock", name))
    plain = pods(rendering(BODIES["mock"], *GROUPS) if paired else colocated(BODIES["mock"]))
    for one, pod in pods(base).items():
        assert set(added(pod, plain[one])) == {"args"}
        arg, *sizes = added(pod, plain[one])["args"]
        check_transfer_config(arg.partition("=")[2], bidirectional=paired)
        own = [tier for tier in ("cpu", "disk") if tier in TIERS[name]]
        assert sizes == [f"--kv-tier={tier}:{bytes_of(TIERS[name][tier]['size'])}" for tier in own]


def test_resources_of_a_container_grow_by_the_tier() -> None:
    def resources(asked: Manifest) -> Manifest:
        body = changed(tiered("vllm", "cpu"), "spec.engine.resources", asked)
        found = next(iter(pods(rendering(body, *GROUPS)).values()))["containers"][0]["resources"]
        return {kind: found[kind].get("memory") for kind in ("requests", "limits")}

    assert resources({}) == {"requests": "200Gi", "limits": None}
    assert resources({"requests": {"memory": "64Gi"}}) == {"requests": "264Gi", "limits": None}
    assert resources({"limits": {"memory": "100Gi"}}) == {"requests": "300Gi", "limits": "300Gi"}
    both = {"requests": {"memory": "64Gi"}, "limits": {"memory": "100Gi"}}
    assert resources(both) == {"requests": "264Gi", "limits": "300Gi"}


def test_each_pod_has_a_folder_that_no_other_weights_have() -> None:
    for name in ("disk", "disk-claim", "disk-path"):
        tier = connectors(container(tiered("vllm", name)))["OffloadingConnector"]["secondary_tiers"][0]
        assert tier["root_dir"] == "/kv-cache/default/demo/r1-$(POD_NAME)"
        pod = next(iter(pods(rendering(tiered("vllm", name), *GROUPS)).values()))
        names = [item["name"] for item in pod["containers"][0]["env"]]
        assert "POD_NAME" in names, "Kubernetes puts it into arguments"
        sidecar = next(item for item in pod["initContainers"] if item["name"] == "kv-disk")
        assert any(arg.endswith("-$(POD_NAME)") for arg in sidecar["args"])
        assert sidecar["securityContext"].get("runAsUser") == pod["containers"][0]["securityContext"].get("runAsUser")


def test_a_volume_is_writable_for_the_engines_user() -> None:
    body = changed(tiered("vllm", "disk"), "spec.engine.runAsUser", 1234)
    for pod in pods(rendering(body, *GROUPS)).values():
        assert pod["securityContext"]["fsGroup"] == 1234
    for pod in pods(rendering(tiered("vllm", "disk-path"), *GROUPS)).values():
        assert "fsGroup" not in pod["securityContext"], "folders of nodes keep their owners"


def test_tiers_of_a_worker_s_own_keep_workers_paired_and_another_store_does_not() -> None:
    plain = rendering(BODIES["vllm"]).revision
    assert plain == rendering(tiered("vllm", "cpu")).revision == rendering(tiered("vllm", "disk")).revision
    assert len({plain, *(rendering(tiered("vllm", name)).revision for name in ("lmcache", "mooncake"))}) == 3


def test_keys_in_a_store_are_those_of_one_service_and_revision() -> None:
    extra = connectors(container(tiered("vllm", "mooncake")))["MooncakeStoreConnector"]
    assert extra["cache_prefix"] == "default-demo-r1"
    config = json.loads(flag(container(tiered("sglang", "mooncake")), "--hicache-storage-backend-extra-config"))
    assert config["extra_backend_tag"] == "default-demo-r1"


def test_pods_may_connect_to_the_store() -> None:
    def ports(body: Manifest) -> set[int]:
        made = desired_objects(rendering(body, *GROUPS), token=TOKEN)
        policies = [item for item in made if item["kind"] == "NetworkPolicy" and "worker" in item["metadata"]["name"]]
        rules = [rule for item in policies for rule in item["spec"].get("egress", ())]
        return {port["port"] for rule in rules for port in rule.get("ports", ())}

    assert ports(tiered("vllm", "lmcache")) - ports(BODIES["vllm"]) == {65432}
    assert ports(tiered("vllm", "mooncake")) - ports(BODIES["vllm"]) == {50051}
    metadata = changed(
        tiered("vllm", "mooncake"), "spec.kvCache.remote.mooncake.metadataServer", "http://meta.models.svc:8080/m"
    )
    assert ports(metadata) - ports(BODIES["vllm"]) == {50051, 8080}
    beyond = changed(tiered("vllm", "lmcache"), "spec.kvCache.remote.lmcache.url", "lm://store:99999")
    assert ports(beyond) == ports(BODIES["vllm"])


def test_rdma_of_a_store_gives_devices_to_co_located_workers() -> None:
    asked = {"remote": {"mooncake": {**MOONCAKE["mooncake"], "protocol": "rdma"}}}
    for pod in pods(colocated(with_tiers(BODIES["vllm"], **asked))).values():
        assert pod["containers"][0]["resources"]["limits"]["rdma/ib"] == "1"


def test_engines_are_measured_without_tiers() -> None:
    target = MeasurementTarget(gpu="nvidia-h20", degree=8, pool="h20")

    def job(body: Manifest) -> Manifest:
        base = rendering(body)
        mounts = mounts_of(base, token=TOKEN)
        made = profile_job(base, mounts, target, MeasureProfile(), name="demo-profile-8-x", reader="")
        pod: Manifest = made["spec"]["template"]["spec"]
        return pod

    plain, found = job(BODIES["vllm"]), job(tiered("vllm", "disk"))
    assert found == plain


@pytest.mark.parametrize(("name", "permission"), [("disk-path", "hostPath"), ("disk-claim", "writableClaims")])
def test_places_of_others_need_a_permission(name: str, permission: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = spec(tiered("vllm", name)).kv_cache
    field = name.removeprefix("disk-")
    fault = kv_disk_fault(cache, {"privileged"})
    assert fault is not None
    assert fault.startswith(f"spec.kvCache.disk.{field}: ")
    assert permission in fault
    assert kv_disk_fault(cache, {permission}) is None
    assert service_messages(tiered("vllm", name)) == [fault]
    monkeypatch.setenv("WEFT_POD_TEMPLATES_ALLOW", json.dumps([permission]))
    assert service_messages(tiered("vllm", name)) == []


@pytest.mark.parametrize("name", ["disk", "disk-class", "cpu", "mooncake", "lmcache"])
def test_other_tiers_need_none(name: str) -> None:
    assert service_messages(tiered("vllm", name)) == []


@pytest.mark.parametrize(("tier", "size"), [("cpu", "200"), ("cpu", "500m"), ("disk", "1023Mi"), ("cpu", 4096)])
def test_a_tier_of_no_use_is_refused(tier: str, size: object) -> None:
    body = changed(tiered("vllm", "disk"), f"spec.kvCache.{tier}.size", size)
    words = f"spec.kvCache.{tier}.size: is below 1Gi (got {size!r}); write an amount such as 200Gi"
    assert tier_fault(spec(body)) == words
    assert service_messages(body) == [words]


@given(st.integers(0, 2**62))
@settings(max_examples=200, deadline=None)
def test_a_number_of_bytes_is_written_as_what_it_is(size: int) -> None:
    assert bytes_of(size_text(size)) == size


def test_sizes_are_written_in_large_units() -> None:
    assert [size_text(size) for size in (264 * GI, 2 * 1024 * GI, 3 * 2**20, 1500)] == ["264Gi", "2Ti", "3Mi", "1500"]


def test_patches_may_not_take_the_place_of_a_tier() -> None:
    for patch, words in (
        ({"volumes": [{"name": "kv-disk", "emptyDir": {}}]}, "spec.volumes[kv-disk]"),
        ({"containers": [{"name": "engine", "volumeMounts": [{"name": "x", "mountPath": "/kv-cache"}]}]}, "/kv-cache"),
        ({"initContainers": [{"name": "kv-disk", "image": "mine:1"}]}, "spec.initContainers[kv-disk]"),
    ):
        body = changed(tiered("vllm", "disk"), "spec.podTemplates", [{"patch": {"spec": patch}}])
        (message,) = service_messages(body)
        assert words in message
