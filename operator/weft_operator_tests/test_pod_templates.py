"""A service's own patches of its pods: merged as Kubernetes does, in their order, and never onto what Weft needs."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_operator.api.objects import Manifest, labels_of
from weft_operator.commands.manifest_checks import service_messages
from weft_operator.controllers.plan_request import build_plan_request
from weft_operator.errors import StalledError
from weft_operator.kube.observe import Observed
from weft_operator.kube.stored_service import parse_service
from weft_operator.render.inputs import Rendering
from weft_operator.render.objects import desired_objects
from weft_operator.render.pod_templates.protected import CONTAINER_FIELDS, POD_FIELDS, VOLUMES, protected_fault
from weft_operator.render.pod_templates.strategic import PatchError, merge_patch
from weft_operator_tests.samples import TOKEN, rendering, two_pools
from weft_operator_tests.valid import changed, pools_service, service

DEVICES = frozenset({"nvidia.com/gpu", "rdma/ib"})


def patched(*patches: Manifest, body: Manifest | None = None) -> Manifest:
    return changed(body or service(), "spec.podTemplates", list(patches))


def pods(base: Rendering) -> dict[str, Manifest]:
    """Return the rendered pod templates: those of worker groups by role and pool, and the coordinator's."""
    found = {}
    for item in desired_objects(base, token=TOKEN):
        if item["kind"] == "Deployment":
            found["coordinator"] = item["spec"]["template"]
        elif item["kind"] == "WorkerGroup":
            kind = labels_of(item)["app.kubernetes.io/component"]
            found[f"{kind}/{item['spec']['degree']}/{item['spec']['pool']}"] = item["spec"]["template"]
    return found


def container(template: Manifest, name: str) -> Manifest:
    spec = template["spec"]
    return next(item for item in (*spec.get("initContainers", ()), *spec["containers"]) if item["name"] == name)


def test_patches_apply_in_order_to_the_pods_they_name() -> None:
    base = rendering(
        patched(
            {"patch": {"metadata": {"annotations": {"team": "all", "role": "any"}}}},
            {"component": "prefill", "patch": {"metadata": {"annotations": {"role": "prefill"}}}},
            {"component": "coordinator", "patch": {"metadata": {"annotations": {"team": "front"}}}},
        )
    )
    notes = {name: template["metadata"]["annotations"] for name, template in pods(base).items()}
    assert (notes["prefill/4/h20"]["team"], notes["prefill/4/h20"]["role"]) == ("all", "prefill")
    assert (notes["decode/8/h20"]["team"], notes["decode/8/h20"]["role"]) == ("all", "any")
    assert notes["coordinator"]["team"] == "front"
    assert "role" not in notes["coordinator"]


def test_a_patch_may_be_for_one_pool() -> None:
    body = patched({"pool": "h100", "patch": {"spec": {"runtimeClassName": "kata"}}}, body=pools_service())
    classes = {name: template["spec"].get("runtimeClassName") for name, template in pods(two_pools(body)).items()}
    assert {name for name, value in classes.items() if value} == {"worker/4/h100"}


def test_containers_variables_and_mounts_are_merged_by_name() -> None:
    patch = {
        "spec": {
            "containers": [
                {
                    "name": "engine",
                    "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
                    "resources": {"requests": {"cpu": "4"}},
                    "volumeMounts": [{"mountPath": "/scratch", "name": "scratch"}],
                },
                {"name": "exporter", "image": "registry.example.com/dcgm:4"},
            ],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        }
    }
    before, after = pods(rendering())["worker/8/h20"], pods(rendering(patched({"patch": patch})))["worker/8/h20"]
    engine, was = container(after, "engine"), container(before, "engine")
    assert engine["args"] == was["args"]
    assert [*was["env"], {"name": "NCCL_DEBUG", "value": "INFO"}] == engine["env"]
    assert engine["resources"]["limits"] == was["resources"]["limits"]
    assert engine["resources"]["requests"]["cpu"] == "4"
    assert {item["mountPath"] for item in engine["volumeMounts"]} - {i["mountPath"] for i in was["volumeMounts"]} == {
        "/scratch"
    }
    assert [item["name"] for item in after["spec"]["containers"]] == ["engine", "exporter"]


def test_a_service_without_patches_is_rendered_as_before() -> None:
    assert pods(rendering(patched())) == pods(rendering())


@pytest.mark.parametrize(
    ("base", "patch", "result"),
    [
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"a": {"x": 1}}, {"a": {"$patch": "replace", "y": 2}}, {"a": {"y": 2}}),
        ({"args": ["a"]}, {"args": ["b"]}, {"args": ["b"]}),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
        (
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            {"env": [{"name": "A", "$patch": "delete"}, {"name": "C", "value": "3"}]},
            {"env": [{"name": "B", "value": "2"}, {"name": "C", "value": "3"}]},
        ),
        (
            {"env": [{"name": "A", "value": "1"}]},
            {"env": [{"name": "A", "value": "2"}]},
            {"env": [{"name": "A", "value": "2"}]},
        ),
        ({"env": [{"name": "A"}]}, {"env": [{"$patch": "replace"}, {"name": "B"}]}, {"env": [{"name": "B"}]}),
    ],
)
def test_maps_and_lists_are_merged_as_kubernetes_does(base: Manifest, patch: Manifest, result: Manifest) -> None:
    copy = {**base}
    assert merge_patch(base, patch) == result
    assert base == copy, "the argument is not changed"


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"env": [{"value": "1"}]}, "env[0]"),
        ({"a": {"$patch": "merge-them"}}, "a"),
        ({"$setElementOrder/env": [{"name": "A"}]}, "$setElementOrder/env"),
    ],
)
def test_a_patch_that_cannot_be_merged_names_the_field(patch: Manifest, field: str) -> None:
    with pytest.raises(PatchError) as caught:
        merge_patch({}, patch)
    assert caught.value.field == field


def protected() -> list[tuple[Manifest, str]]:
    """Return patches that touch what they may not, each with the field that must be named."""
    cases: list[tuple[Manifest, str]] = [({"spec": {name: "mine"}}, f"spec.{name}") for name in POD_FIELDS]
    for name, fields in CONTAINER_FIELDS.items():
        place = "initContainers" if name == "router" else "containers"
        cases += [
            ({"spec": {place: [{"name": name, field: "mine"}]}}, f"spec.{place}[{name}].{field}") for field in fields
        ]
    cases += [({"spec": {"volumes": [{"name": name, "emptyDir": {}}]}}, f"spec.volumes[{name}]") for name in VOLUMES]
    engine = "spec.containers[engine]"

    def of_engine(**fields: Any) -> Manifest:
        return {"spec": {"containers": [{"name": "engine", **fields}]}}

    def of_another(**fields: Any) -> Manifest:
        return {"spec": {"containers": [{"name": "mine", "image": "x:1", **fields}]}}

    return [
        *cases,
        (of_engine(env=[{"name": "POD_IP", "value": "1.2.3.4"}]), f"{engine}.env[POD_IP]"),
        (of_engine(env=[{"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "value": "x"}]), f"{engine}.env[VLLM_NIXL"),
        (of_engine(resources={"limits": {"nvidia.com/gpu": "1"}}), f"{engine}.resources.limits[nvidia.com/gpu]"),
        (of_engine(resources={"limits": {"rdma/ib": None}}), f"{engine}.resources.limits[rdma/ib]"),
        (of_engine(resources={"limits": {"amd.com/gpu": "1"}}), f"{engine}.resources.limits[amd.com/gpu]"),
        (of_engine(resources=None), f"{engine}.resources.limits[nvidia.com/gpu]"),
        (of_engine(volumeMounts=[{"mountPath": "/etc/weft", "name": "other"}]), f"{engine}.volumeMounts[/etc/weft]"),
        (of_engine(volumeMounts=[{"mountPath": "/mine", "name": "token"}]), f"{engine}.volumeMounts[/mine]"),
        (
            of_another(volumeMounts=[{"mountPath": "/mine", "name": "token"}]),
            "spec.containers[mine].volumeMounts[/mine]",
        ),
        (
            of_another(resources={"limits": {"nvidia.com/gpu": "1"}}),
            "spec.containers[mine].resources.limits[nvidia.com/gpu]",
        ),
        (of_engine(**{"$patch": "delete"}), f"{engine}.image"),
        ({"spec": {"containers": None}}, f"{engine}.image"),
        ({"spec": {"containers": [{"$patch": "replace"}]}}, f"{engine}.image"),
        ({"spec": {"$patch": "replace"}}, "spec.serviceAccountName"),
        ({"spec": None}, "spec.serviceAccountName"),
        ({"metadata": {"labels": {"weft.dev/service": "other"}}}, "metadata.labels[weft.dev/service]"),
        ({"metadata": {"annotations": {"weft.dev/token-hash": "0"}}}, "metadata.annotations[weft.dev/token-hash]"),
        ({"metadata": {"name": "mine"}}, "metadata.name"),
        ({"status": {}}, "status"),
        ({"spec": {"containers": [{"name": "enigne", "env": []}]}}, "spec.containers[enigne]"),
    ]


@pytest.mark.parametrize(("patch", "field"), protected(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_protected_field_is_named(patch: Manifest, field: str) -> None:
    fault = protected_fault(patch, DEVICES, coordinator=False)
    assert fault is not None
    assert fault.startswith(field), fault
    body = patched({"patch": patch})
    with pytest.raises(StalledError) as caught:
        build_plan_request(
            parse_service(body), Observed(service=body, owned=(), pods=()), now=datetime(2026, 1, 1, tzinfo=UTC)
        )
    assert caught.value.reason == "ProtectedField"
    assert caught.value.message.startswith(f"spec.podTemplates[0].patch.{field}")
    assert service_messages(body) == [caught.value.message], "weft plan says the same"


def test_a_container_of_one_s_own_may_have_devices_that_no_plan_counts() -> None:
    mine = {"name": "mine", "image": "x:1", "resources": {"limits": {"example.com/fpga": "1", "cpu": "1"}}}
    assert protected_fault({"spec": {"containers": [mine]}}, DEVICES, coordinator=False) is None


def test_the_page_names_every_field_and_volume_that_is_protected() -> None:
    page = (Path(__file__).parents[2] / "docs/pod-templates.md").read_text(encoding="utf-8")
    fields = {name for fields in CONTAINER_FIELDS.values() for name in fields if not name.endswith("Probe")}
    assert {name for name in (*POD_FIELDS, *VOLUMES, *fields) if f"`{name}`" not in page} == set()


ALLOWED = st.fixed_dictionaries(
    {},
    optional={
        "schedulerName": st.text(min_size=1, max_size=5),
        "runtimeClassName": st.sampled_from(["kata", "nvidia"]),
        "priorityClassName": st.sampled_from(["high", "low"]),
        "dnsPolicy": st.sampled_from(["Default", "ClusterFirst"]),
        "tolerations": st.lists(st.fixed_dictionaries({"key": st.sampled_from(["a", "b"])}), max_size=2),
        "affinity": st.fixed_dictionaries({"nodeAffinity": st.just({})}),
        "containers": st.lists(
            st.one_of(
                st.fixed_dictionaries(
                    {"name": st.just("engine")},
                    optional={
                        "env": st.lists(
                            st.fixed_dictionaries(
                                {"name": st.sampled_from(["A", "NCCL_DEBUG"]), "value": st.text(max_size=3)}
                            ),
                            max_size=2,
                        ),
                        "securityContext": st.fixed_dictionaries({"capabilities": st.just({"add": ["IPC_LOCK"]})}),
                        "resources": st.fixed_dictionaries({"requests": st.just({"cpu": "2", "memory": "1Gi"})}),
                    },
                ),
                st.fixed_dictionaries({"name": st.sampled_from(["exporter", "proxy"]), "image": st.just("x:1")}),
            ),
            max_size=2,
        ),
    },
)


@given(ALLOWED)
@settings(max_examples=60, deadline=None)
def test_no_allowed_patch_changes_a_protected_field(spec: Manifest) -> None:
    assert protected_fault({"spec": spec}, DEVICES, coordinator=False) is None
    base = rendering(patched({"patch": {"spec": spec}}))
    for name, template in pods(base).items():
        plain = pods(rendering())[name]
        for field in POD_FIELDS:
            assert template["spec"].get(field) == plain["spec"].get(field)
        for kind in ("engine", "router"):
            if name == "coordinator" and kind == "engine":
                continue
            for field in CONTAINER_FIELDS[kind]:
                assert container(template, kind).get(field) == container(plain, kind).get(field)


def test_pools_bring_claims_priority_and_affinity() -> None:
    affinity: Manifest = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    body = service()
    body["spec"]["capacity"]["elastic"] = True
    body["spec"]["capacity"]["pools"][0] |= {
        "gpusFromClaims": True,
        "resourceClaims": [
            {"name": "gpus", "template": "four-gpus", "degrees": [1, 2, 4]},
            {"name": "gpus", "template": "eight-gpus", "degrees": [8]},
            {"name": "nic", "template": "nic"},
        ],
        "priorityClassName": "serving",
        "affinity": affinity,
    }
    body["spec"]["coordinator"] = {"priorityClassName": "front"}
    assert service_messages(body) == []
    found = pods(rendering(body))
    for name, template in (("worker/4/h20", "four-gpus"), ("worker/8/h20", "eight-gpus")):
        pod = found[name]["spec"]
        assert pod["resourceClaims"] == [
            {"name": "gpus", "resourceClaimTemplateName": template},
            {"name": "nic", "resourceClaimTemplateName": "nic"},
        ]
        resources = container(found[name], "engine")["resources"]
        assert resources["claims"] == [{"name": "gpus"}, {"name": "nic"}]
        assert "nvidia.com/gpu" not in resources["limits"]
        assert (pod["priorityClassName"], pod["affinity"]) == ("serving", affinity)
    assert found["coordinator"]["spec"]["priorityClassName"] == "front"
