"""A service in a mesh: requests and hops go through the proxies, KV, metrics, probes and Jobs past them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from weft_operator.api.objects import Manifest
from weft_operator.api.planning import MeasureProfile
from weft_operator.profiling.jobs import profile_job
from weft_operator.profiling.targets import MeasurementTarget
from weft_operator.render.engines.container import ROUTER_PORT
from weft_operator.render.inputs import Rendering
from weft_operator.render.objects import desired_objects, mounts_of
from weft_operator.render.router_container import MESH_PORT, TLS_PORT
from weft_operator.render.weights import remove_job
from weft_operator_tests.samples import SETTINGS, TOKEN, colocated, on_nodes, rendering
from weft_operator_tests.valid import (
    changed,
    front_service,
    picker_service,
    service,
    sglang_service,
    tensorrt_llm_service,
    vllm_service,
)

ENGINES = {
    "mock": service(),
    "sglang": sglang_service(),
    "tensorrt-llm": tensorrt_llm_service(),
    "vllm": vllm_service(),
}
MESHES = ("istio", "linkerd")
ISTIO, LINKERD = "traffic.sidecar.istio.io/", "config.linkerd.io/"
WORKERS = ("prefill", "decode", "worker")


def meshed(body: Any, mesh: str, **more: str) -> Any:
    return changed(body, "spec.network", {"mesh": {"type": mesh, **more}})


def pods(made: Rendering) -> dict[str, Manifest]:
    """Return the pod templates by component."""
    found = {}
    for item in desired_objects(made, token=TOKEN):
        if item["kind"] in ("WorkerGroup", "Deployment"):
            template = item["spec"]["template"]
            found[template["metadata"]["labels"]["app.kubernetes.io/component"]] = template
    return found


def annotations(template: Manifest) -> Mapping[str, str]:
    return dict(template["metadata"]["annotations"])


def spans(text: str) -> set[tuple[int, int]]:
    """Return a list of ports and ranges as Linkerd reads it."""
    parts = [part.partition("-") for part in text.split(",") if part]
    return {(int(first), int(last or first)) for first, _, last in parts}


def kv_ports_of(made: Rendering) -> set[tuple[int, int]]:
    """Return the ports at which workers are let at each other for KV, by the policies and by the containers."""
    found = set()
    for item in desired_objects(made, token=TOKEN):
        if item["kind"] == "NetworkPolicy" and item["spec"]["policyTypes"] == ["Ingress"]:
            for rule in item["spec"].get("ingress", ()):
                ports = {(port["port"], port.get("endPort", port["port"])) for port in rule["ports"]}
                if item["metadata"]["labels"]["app.kubernetes.io/component"] in WORKERS:
                    found |= {span for span in ports if span[0] not in (ROUTER_PORT, MESH_PORT, 4143)}
    for template in pods(made).values():
        for container in template["spec"]["containers"]:
            if container["name"] == "engine":
                for port in container["ports"]:
                    number = port["containerPort"]
                    assert any(first <= number <= last for first, last in found) or not made.record.paired
    return found


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_linkerd_skips_exactly_the_ports_of_kv_and_health(engine: str) -> None:
    made = rendering(meshed(ENGINES[engine], "linkerd"))
    wanted = kv_ports_of(made)
    assert wanted, "the engines hand KV to each other"
    for component, template in pods(made).items():
        found = annotations(template)
        assert found["linkerd.io/inject"] == "enabled"
        inward, outward = (spans(found.get(f"{LINKERD}skip-{way}bound-ports", "")) for way in ("in", "out"))
        kv = wanted if component in WORKERS else set()
        assert inward == kv | {(ROUTER_PORT, ROUTER_PORT)}
        assert outward == kv
        assert found.get(f"{LINKERD}opaque-ports") == (str(MESH_PORT) if component in WORKERS else None)


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_istio_redirects_the_routers_port_and_none_of_the_engines(engine: str) -> None:
    made = rendering(meshed(ENGINES[engine], "istio"))
    kv = kv_ports_of(made)
    for component, template in pods(made).items():
        found = annotations(template)
        assert template["metadata"]["labels"]["sidecar.istio.io/inject"] == "true"
        assert found[f"{ISTIO}includeInboundPorts"] == str(MESH_PORT)
        assert f"{ISTIO}excludeInboundPorts" not in found, "it counts only where all ports are redirected"
        if component in WORKERS:
            assert found[f"{ISTIO}includeOutboundIPRanges"] == ""
            outward = {int(port) for port in found[f"{ISTIO}includeOutboundPorts"].split(",")}
            assert outward == {MESH_PORT, 6379}
            assert not [port for port in outward for first, last in kv if first <= port <= last]
        else:
            assert not [name for name in found if name.startswith(f"{ISTIO}includeOutbound")]


@pytest.mark.parametrize("mesh", MESHES)
def test_probes_hooks_and_metrics_have_a_port_past_the_mesh(mesh: str) -> None:
    made = rendering(meshed(vllm_service(), mesh))
    for template in pods(made).values():
        spec = template["spec"]
        containers = [*spec.get("initContainers", ()), *spec["containers"]]
        for container in containers:
            handlers = [container.get(name) for name in ("startupProbe", "livenessProbe", "readinessProbe")]
            handlers.append((container.get("lifecycle") or {}).get("preStop"))
            asked = {handler["httpGet"]["port"] for handler in handlers if handler and "httpGet" in handler}
            assert asked <= {ROUTER_PORT}
        router = next(container for container in containers if container["name"] == "router")
        assert f"--listen=[::]:{MESH_PORT}" in router["args"]
        assert f"--health-listen=[::]:{ROUTER_PORT}" in router["args"]
        assert {port["containerPort"] for port in router["ports"]} == {ROUTER_PORT, MESH_PORT}
        if "engine" in [container["name"] for container in containers]:
            env = {item["name"]: item.get("value") for item in router["env"]}
            assert env["WEFT_DRAIN_URL"] == f"http://127.0.0.1:{MESH_PORT}/drain"


@pytest.mark.parametrize("mesh", MESHES)
def test_services_name_the_protocols_and_the_routers_port(mesh: str) -> None:
    for body, name, port in ((vllm_service(), "http", MESH_PORT), (front_service(), "https", TLS_PORT)):
        made = rendering(meshed(body, mesh))
        services = [item for item in desired_objects(made, token=TOKEN) if item["kind"] == "Service"]
        front = next(item["spec"]["ports"] for item in services if item["metadata"]["name"] == "demo")
        assert [(one["name"], one["targetPort"], one["appProtocol"]) for one in front] == [(name, port, name)]
        for item in services:
            if item["metadata"]["name"] != "demo":
                (only,) = item["spec"]["ports"]
                assert (only["port"], only["targetPort"], only["appProtocol"]) == (MESH_PORT, MESH_PORT, "tcp")


@pytest.mark.parametrize("mesh", MESHES)
def test_policies_let_the_proxies_at_their_peers_and_at_their_control_plane(mesh: str) -> None:
    made = rendering(meshed(vllm_service(), mesh))
    namespace, ports = {"istio": ("istio-system", {15012}), "linkerd": ("linkerd", {8080, 8086, 8090})}[mesh]
    more = {4143} if mesh == "linkerd" else set()
    for item in desired_objects(made, token=TOKEN):
        if item["kind"] != "NetworkPolicy":
            continue
        if item["spec"]["policyTypes"] == ["Egress"]:
            peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
            (rule,) = [rule for rule in item["spec"]["egress"] if peer in rule.get("to", ())]
            assert {port["port"] for port in rule["ports"]} == ports
        else:
            open_to = [{port["port"] for port in rule["ports"]} for rule in item["spec"]["ingress"]]
            assert {MESH_PORT, *more} in open_to


def test_workers_on_several_nodes_reach_each_other_past_the_mesh() -> None:
    made = on_nodes(meshed(service(), "linkerd"))
    found = [
        (item["spec"]["nodesPerWorker"], annotations(item["spec"]["template"])[f"{LINKERD}skip-inbound-ports"])
        for item in desired_objects(made, token=TOKEN)
        if item["kind"] == "WorkerGroup"
    ]
    assert sorted(found) == [(1, "5600,8080"), (2, "5600,8080,13345,29500,32768-60999")]


def test_co_located_workers_have_no_ports_of_kv() -> None:
    for template in pods(colocated(meshed(vllm_service(), "linkerd"))).values():
        found = annotations(template)
        assert found[f"{LINKERD}skip-inbound-ports"] == str(ROUTER_PORT)
        assert f"{LINKERD}skip-outbound-ports" not in found


@pytest.mark.parametrize("mesh", MESHES)
def test_a_store_at_another_port_and_a_certificate_are_known(mesh: str) -> None:
    made = replace(
        rendering(meshed(front_service(), mesh)),
        settings=replace(SETTINGS, redis_url="rediss://redis.example.com:6390/0"),
    )
    found = pods(made)
    front, workers = found["coordinator"], [one for name, one in found.items() if name in WORKERS]
    if mesh == "istio":
        assert annotations(front)[f"{ISTIO}includeInboundPorts"] == str(TLS_PORT)
        assert {annotations(one)[f"{ISTIO}includeOutboundPorts"] for one in workers} == {f"6390,{MESH_PORT}"}
    else:
        assert annotations(front)[f"{LINKERD}opaque-ports"] == str(TLS_PORT)


@pytest.mark.parametrize("mesh", MESHES)
def test_no_proxy_is_injected_into_jobs(mesh: str) -> None:
    made = rendering(meshed(service(), mesh))
    target = MeasurementTarget(pool="h20", gpu="nvidia-h20", degree=8)
    measured = profile_job(
        made, mounts_of(made, token=TOKEN), target, MeasureProfile(), name="demo-profile-8-x", reader=""
    )
    for job in (measured, remove_job(made, "k", {"name": "weights", "emptyDir": {}})):
        metadata = job["spec"]["template"]["metadata"]
        if mesh == "istio":
            assert metadata["labels"]["sidecar.istio.io/inject"] == "false"
        else:
            assert metadata["annotations"]["linkerd.io/inject"] == "disabled"


def peer_rules(made: Rendering) -> list[Any]:
    return [item["spec"] for item in desired_objects(made, token=TOKEN) if item["kind"] == "PeerAuthentication"]


@pytest.mark.parametrize(
    ("body", "open_to_clients"), [(picker_service(), {}), (front_service(), {"8443": "PERMISSIVE"})]
)
def test_strict_istio_refuses_who_is_not_in_the_mesh_but_for_clients_with_tls(body: Any, open_to_clients: Any) -> None:
    made = rendering(meshed(body, "istio", mtls="Strict"))
    (rule,) = peer_rules(made)
    assert rule["mtls"] == {"mode": "STRICT"}
    assert {port: one["mode"] for port, one in rule.get("portLevelMtls", {}).items()} == open_to_clients
    for template in pods(made).values():
        assert rule["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert pods(made) == pods(rendering(meshed(body, "istio"))), "no pod restarts for it"
    assert not peer_rules(rendering(meshed(body, "istio")))


@pytest.mark.parametrize("body", [picker_service(), front_service()])
def test_strict_linkerd_refuses_who_is_not_in_the_mesh_but_for_clients_with_tls(body: Any) -> None:
    made = rendering(meshed(body, "linkerd", mtls="Strict"))
    assert not peer_rules(made)
    name = f"{LINKERD}default-inbound-policy"
    for component, template in pods(made).items():
        refused = component != "coordinator" or made.spec.coordinator.tls is None
        assert annotations(template).get(name) == ("cluster-authenticated" if refused else None)
    assert not [one for one in pods(rendering(meshed(body, "linkerd"))).values() if name in annotations(one)]


def test_without_a_mesh_nothing_is_said_of_one() -> None:
    for template in pods(rendering(vllm_service())).values():
        named = [*template["metadata"]["labels"], *annotations(template)]
        assert not [name for name in named if "istio" in name or "linkerd" in name]
