"""Services behind a gateway: their route and pool come and go with the spec, and nothing else waits for them."""

from typing import Any

import pytest

from weft_operator.api.objects import Manifest, ObjectKey, ServiceKey
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.commands.manifest_checks import service_messages
from weft_operator.errors import ForbiddenError, NotFoundError, OperatorError, Right
from weft_operator.kube.diff import Action, Delete
from weft_operator.kube.observe import _objects_of_other_projects
from weft_operator.render.objects import desired_objects
from weft_operator_tests.samples import TOKEN, rendering, told
from weft_operator_tests.test_render_network_policies import reaches
from weft_operator_tests.valid import changed, front_service, gateway_service, picker_service, service
from weft_operator_tests.world import World

KINDS = ("HTTPRoute", "InferencePool")
STRICT = {"mesh": {"type": "istio", "mtls": "Strict"}}


def objects(body: Manifest) -> dict[tuple[str, str], Any]:
    """Return what is rendered for a service, by kind and name."""
    return {(item["kind"], item["metadata"]["name"]): item for item in desired_objects(rendering(body), token=TOKEN)}


def test_a_service_without_a_gateway_has_neither_kind() -> None:
    assert not [key for key in objects(service()) if key[0] in KINDS or "picker" in key[1]]


def test_a_route_leads_to_the_coordinator() -> None:
    route = objects(gateway_service())["HTTPRoute", "demo"]["spec"]
    (rule,) = route["rules"]
    assert rule["backendRefs"] == [{"group": "", "kind": "Service", "name": "demo", "port": 80, "weight": 1}]
    assert rule["timeouts"] == {"request": "0s"}
    assert [ref["name"] for ref in route["parentRefs"]] == ["public", "internal"]
    assert route["hostnames"] == ["llm.example.com"]


def test_a_route_to_a_coordinator_with_a_certificate_leads_to_its_port() -> None:
    body = front_service()
    body["spec"]["gateway"] = gateway_service()["spec"]["gateway"]
    (rule,) = objects(body)["HTTPRoute", "demo"]["spec"]["rules"]
    assert rule["backendRefs"][0]["port"] == 443


def test_a_picker_is_deployed_as_a_coordinator_is() -> None:
    found = objects(picker_service())
    pool = found["InferencePool", "demo"]["spec"]
    assert pool["endpointPickerRef"] == {
        "group": "", "kind": "Service", "name": "demo-picker", "port": {"number": 9002}, "failureMode": "FailOpen",
    }  # fmt: skip
    assert pool["targetPorts"] == [{"number": 8080}]
    (rule,) = found["HTTPRoute", "demo"]["spec"]["rules"]
    assert rule["backendRefs"][0]["kind"] == "InferencePool"
    picker, coordinator = found["Deployment", "demo-picker"], found["Deployment", "demo"]
    assert picker["spec"]["replicas"] == coordinator["spec"]["replicas"]
    (container,) = picker["spec"]["template"]["spec"]["containers"]
    assert {"--role=epp", "--listen=[::]:9002", "--health-listen=[::]:8080"} <= set(container["args"])
    assert found["PodDisruptionBudget", "demo-picker"]["spec"]["maxUnavailable"] == 1
    labels = picker["spec"]["template"]["metadata"]["labels"]
    assert pool["selector"]["matchLabels"].items() <= rendering(picker_service()).labels("worker").items()
    assert not pool["selector"]["matchLabels"].items() <= labels.items()


def test_workers_pass_requests_on_where_the_pool_fails_open() -> None:
    assert told(rendering(picker_service())).routing.fail_open_url == "http://demo.default.svc"
    closed = changed(picker_service(), "spec.gateway.failureMode", "FailClose")
    assert told(rendering(closed)).routing.fail_open_url == ""


def test_proxies_of_the_gateway_reach_pickers_and_workers() -> None:
    base = rendering(picker_service())
    for component, port in (("picker", 9002), ("worker", 8080)):
        assert reaches(base, {"app": "proxy"}, component, port, namespace="other")
    assert not reaches(base, {"app": "proxy"}, "worker", 8000, namespace="other")
    limited = changed(
        picker_service(),
        "spec.networkPolicy",
        {"clientsFrom": [{"namespaceSelector": {"matchLabels": {"team": "sre"}}}]},
    )
    base = rendering(limited)
    for component, port in (("picker", 9002), ("worker", 8080), ("coordinator", 8080)):
        assert reaches(base, {}, component, port, namespace="monitoring")
        assert not reaches(base, {}, component, port, namespace="other")
    assert reaches(base, base.labels("picker"), "worker", 8080)
    assert reaches(base, base.labels("worker"), "coordinator", 8080), "workers pass requests on"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (changed(gateway_service(), "spec.gateway.failureMode", "FailOpen"), "set mode to endpointPicker"),
        (
            changed(picker_service(), "spec.coordinator", {"tls": {"secretRef": {"name": "front"}}}),
            "remove spec.coordinator.tls",
        ),
        (
            changed(gateway_service(), "spec.gateway.hostnames", ["https://llm"]),
            "must be a host such as llm.example.com",
        ),
    ],
)
def test_a_gateway_that_cannot_be_is_refused(body: Manifest, words: str) -> None:
    (message,) = service_messages(body)
    assert message.startswith("spec.gateway.")
    assert words in message


async def test_route_and_pool_come_and_go_with_the_spec() -> None:
    world = World(service())
    await world.step()
    world.cluster.settle()

    async def has(body: Manifest | None, *kinds: str) -> None:
        world.cluster.service["spec"].pop("gateway", None)
        world.cluster.change(**({} if body is None else {"gateway": body["spec"]["gateway"]}))
        for _ in range(3):
            await world.step()
            world.cluster.settle()
        assert [kind for kind in KINDS if world.cluster.names(kind)] == list(kinds)
        pickers = ["demo-picker"] if "InferencePool" in kinds else []
        assert [name for name in world.cluster.names("Deployment") if name != "demo"] == pickers

    await has(None)
    await has(gateway_service(), "HTTPRoute")
    await has(picker_service(), "HTTPRoute", "InferencePool")
    await has(gateway_service(), "HTTPRoute")
    await has(None)
    gone = [n for n, a in enumerate(world.cluster.actions) if isinstance(a, Delete) and a.key.kind == "HTTPRoute"]
    plans = [n for n, a in enumerate(world.cluster.actions) if a.key.name == "demo-plan"]
    assert gone[-1] < plans[-1], "the plan's ConfigMap says that there is a route until there is none"


async def test_a_rule_for_a_mesh_comes_and_goes_with_the_spec() -> None:
    world = World(service())
    for network, names in ((None, []), (STRICT, ["demo"]), ({"mesh": {"type": "istio"}}, []), (None, [])):
        world.cluster.service["spec"].pop("network", None)
        world.cluster.change(**({} if network is None else {"network": network}))
        for _ in range(3):
            await world.step()
            world.cluster.settle()
        assert world.cluster.names("PeerAuthentication") == names


async def test_a_cluster_without_the_kinds_serves_all_the_same_and_says_what_to_install() -> None:
    world = World(picker_service())

    def refuse(action: Action) -> OperatorError | None:
        return NotFoundError("404 page not found", status=404) if action.key.kind in KINDS else None

    world.cluster.fail = refuse
    for _ in range(4):
        world.cluster.settle()
        await world.step()
    assert world.cluster.condition("Ready")["status"] == "True"
    said = world.cluster.condition("Progressing")
    assert (said["status"], said["reason"]) == ("False", "KindMissing")
    assert "install the CRDs of the Gateway API Inference Extension" in said["message"]
    assert "HTTPRoute default/demo" in said["message"]
    world.cluster.fail = lambda _action: None
    for _ in range(2):
        await world.step()
    assert world.cluster.condition("Progressing")["reason"] != "KindMissing"


async def test_a_rollout_waits_for_the_pickers_and_the_service_is_not_ready_without_them() -> None:
    world = World(service())
    for _ in range(3):
        await world.step()
        world.cluster.settle()
    world.cluster.change(gateway=picker_service()["spec"]["gateway"])
    await world.step()
    said = world.cluster.condition("Progressing")
    assert (said["reason"], said["message"]) == ("RollingOut", "endpoint picker pods are starting or being replaced")
    assert world.cluster.condition("Ready")["status"] == "True"
    world.cluster.settle()
    await world.step()
    assert world.cluster.condition("Progressing")["reason"] == "UpToDate"
    found = world.cluster.objects.items()
    picker = next(item for key, item in found if (key.kind, key.name) == ("Deployment", "demo-picker"))
    picker["status"]["availableReplicas"] = 0
    picker["status"]["conditions"] = [{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]
    await world.step()
    assert world.cluster.condition("Ready")["reason"] == "EndpointPickerNotReady"
    world.cluster.settle()
    await world.step()
    assert world.cluster.condition("Ready")["reason"] == "Serving"


class Api:
    """The API server of a cluster that has some of the kinds."""

    def __init__(self, errors: dict[str, OperatorError] | None = None) -> None:
        self.errors = errors or {}
        self.asked: list[str] = []

    def get(self, key: ObjectKey) -> Manifest:
        self.asked.append(key.kind)
        if key.kind in self.errors:
            raise self.errors[key.kind]
        return {"apiVersion": key.api_version, "kind": key.kind, "metadata": {"name": key.name}}


def test_only_services_with_a_gateway_are_asked_for() -> None:
    key, api = ServiceKey("default", "demo"), Api()
    assert _objects_of_other_projects(api, key, service()["spec"], []) == []  # type: ignore[arg-type]
    assert api.asked == []
    plan = objects(gateway_service())["ConfigMap", "demo-plan"]
    found = _objects_of_other_projects(api, key, service()["spec"], [plan])  # type: ignore[arg-type]
    assert [item["kind"] for item in found] == list(KINDS), "they are to be deleted"
    meshed = changed(service(), "spec.network", STRICT)
    found = _objects_of_other_projects(api, key, meshed["spec"], [])  # type: ignore[arg-type]
    assert [item["kind"] for item in found] == ["PeerAuthentication"]


def test_what_may_not_be_read_is_taken_for_missing() -> None:
    right = Right("get", "inferencepools", "inference.networking.k8s.io", "default")
    api = Api(
        {
            "HTTPRoute": NotFoundError("404 page not found", status=404),
            "InferencePool": ForbiddenError("403", status=403, right=right),
        }
    )
    spec = picker_service()["spec"]
    assert _objects_of_other_projects(api, ServiceKey("default", "demo"), spec, []) == []  # type: ignore[arg-type]
    assert "operator.gatewayApi=true" in right.lack()


def test_the_defaults_of_a_gateway() -> None:
    spec = DisaggInferenceServiceSpec.model_validate(
        changed(service(), "spec.gateway", {"parentRefs": [{"name": "g"}]})["spec"]
    )
    assert spec.gateway is not None
    assert (spec.gateway.mode, spec.gateway.failure_mode) == ("coordinator", "FailClose")
