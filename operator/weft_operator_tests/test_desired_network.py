"""Who may reach the pods of a service: evaluated as a network plug-in would, on rendered policies."""

from typing import Any

import pytest

from weft_operator.desired import desired_objects
from weft_operator.desired.rendering import Rendering
from weft_operator.manifest import WORKER_LABEL, Manifest
from weft_operator_tests.samples import TOKEN, colocated, on_nodes, rendered, rendering
from weft_operator_tests.valid import (
    changed,
    front_service,
    service,
    sglang_service,
    tensorrt_llm_service,
    vllm_service,
)

NAMESPACES = {"default": {}, "monitoring": {"team": "sre"}, "other": {}}
"""Labels of the namespaces; every service of the samples is in default."""


def matches(selector: Manifest, labels: dict[str, str]) -> bool:
    """Tell whether a label selector chooses something."""
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(need["key"]) in need["values"] for need in selector.get("matchExpressions", ())
    )


def admits(peer: Manifest, namespace: str, labels: dict[str, str]) -> bool:
    """Tell whether a peer of a policy in namespace default chooses a pod."""
    if "ipBlock" in peer:
        return False
    if "namespaceSelector" in peer:
        chosen = matches(peer["namespaceSelector"], NAMESPACES[namespace])
    else:
        chosen = namespace == "default"
    return chosen and matches(peer.get("podSelector", {}), labels)


def reaches(
    base: Rendering,
    source: dict[str, str],
    component: str,
    port: int,
    *,
    namespace: str = "default",
    worker: str = "",
) -> bool:
    """Tell whether a pod may open a connection to a port of a component's pods, or of one worker's."""
    target = {**base.labels(component), **({WORKER_LABEL: worker} if worker else {})}
    policies = [item["spec"] for item in rendered(base) if item["kind"] == "NetworkPolicy"]
    covering = [spec for spec in policies if matches(spec["podSelector"], target)]
    if not covering:
        return True
    for rule in (rule for spec in covering for rule in spec["ingress"]):
        ports = rule.get("ports", [{"port": 1, "endPort": 65535}])
        opened = any(item["port"] <= port <= item.get("endPort", item["port"]) for item in ports)
        if opened and ("from" not in rule or any(admits(peer, namespace, source) for peer in rule["from"])):
            return True
    return False


STRANGER = {"app": "anything"}
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}


@pytest.mark.parametrize(
    ("body", "channel"), [(service(), 5600), (vllm_service(), 5600), (sglang_service(), 8998)], ids=str
)
def test_kv_moves_between_roles_only(body: Manifest, channel: int) -> None:
    base = rendering(body)
    prefill, decode, front = (base.labels(part) for part in ("prefill", "decode", "coordinator"))
    assert reaches(base, decode, "prefill", channel)
    assert not reaches(base, prefill, "prefill", channel)
    for source in (front, STRANGER, PROMETHEUS, {**prefill, "weft.dev/service": "another"}):
        assert not reaches(base, source, "prefill", channel), source
        assert not reaches(base, source, "decode", channel), source


def test_clients_may_come_from_ranges_of_both_families() -> None:
    ranges = [{"ipBlock": {"cidr": cidr}} for cidr in ("10.0.0.0/8", "fd00::/8")]
    made = desired_objects(rendering(changed(service(), "spec.networkPolicy.clientsFrom", ranges)), token=TOKEN)
    named = {item["metadata"]["name"]: item for item in made if item["kind"] == "NetworkPolicy"}
    assert ranges in [rule.get("from") for rule in named["demo-coordinator"]["spec"]["ingress"]], sorted(named)


@pytest.mark.parametrize("port", [29500, 40_000, 8000])
def test_the_nodes_of_one_worker_reach_each_other_at_every_port_and_nobody_else_does(port: int) -> None:
    base = on_nodes()
    node = {**base.labels("decode"), WORKER_LABEL: "demo-d8-0"}
    assert reaches(base, node, "decode", port, worker="demo-d8-0")
    others = (
        {**node, WORKER_LABEL: "demo-d8-1"},
        {**node, "weft.dev/service": "another"},
        {**base.labels("prefill"), WORKER_LABEL: "demo-p4-0"},
        base.labels("coordinator"),
        STRANGER,
        PROMETHEUS,
    )
    for source in others:
        assert not reaches(base, source, "decode", port, worker="demo-d8-0"), source
    assert not reaches(base, node, "decode", port, namespace="other", worker="demo-d8-0")
    assert reaches(base, base.labels("coordinator"), "decode", 8080, worker="demo-d8-0"), "the role's own rules stay"


@pytest.mark.parametrize("body", [vllm_service(), sglang_service(), tensorrt_llm_service()], ids=str)
def test_transfer_libraries_meet_on_ports_of_the_kernels_choice(body: Manifest) -> None:
    base = rendering(body)
    for role, other in (("prefill", "decode"), ("decode", "prefill")):
        assert reaches(base, base.labels(other), role, 40_000)
        assert not reaches(base, base.labels(role), role, 40_000)
        assert not reaches(base, STRANGER, role, 40_000)


@pytest.mark.parametrize("body", [service(), vllm_service(), sglang_service(), tensorrt_llm_service()], ids=str)
def test_nobody_reaches_an_engine(body: Manifest) -> None:
    base = rendering(body)
    for source in (*(base.labels(part) for part in ("prefill", "decode", "coordinator")), STRANGER, PROMETHEUS):
        for role in ("prefill", "decode"):
            assert not reaches(base, source, role, 8000), source


def test_a_stranger_reaches_the_coordinator_and_nothing_else() -> None:
    base = rendering()
    for namespace in NAMESPACES:
        assert reaches(base, STRANGER, "coordinator", 8080, namespace=namespace)
        for role in ("prefill", "decode"):
            for port in (5600, 8000, 8080, 40_000):
                assert not reaches(base, STRANGER, role, port, namespace=namespace)


def test_sidecars_answer_their_own_service_and_prometheus() -> None:
    base = rendering()
    for role in ("prefill", "decode"):
        for part in ("prefill", "decode", "coordinator"):
            assert reaches(base, base.labels(part), role, 8080)
        assert reaches(base, PROMETHEUS, role, 8080, namespace="monitoring")
        another = {**base.labels("decode"), "weft.dev/service": "another"}
        assert not reaches(base, another, role, 8080)
        assert not reaches(base, base.labels("decode"), role, 8080, namespace="other")


def test_the_front_door_with_a_certificate_has_one_port_for_clients() -> None:
    base = rendering(front_service())
    assert reaches(base, STRANGER, "coordinator", 8443)
    assert not reaches(base, STRANGER, "coordinator", 8080)
    assert reaches(base, PROMETHEUS, "coordinator", 8080)


WEB = {"podSelector": {"matchLabels": {"app": "web"}}}


@pytest.mark.parametrize(
    ("field", "value", "component", "others"),
    [("clientsFrom", [WEB], "coordinator", False), ("workersFrom", [WEB], "decode", False)],
)
def test_a_service_may_name_who_comes_in(field: str, value: Any, component: str, others: bool) -> None:
    base = rendering(changed(service(), f"spec.networkPolicy.{field}", value))
    assert reaches(base, {"app": "web"}, component, 8080)
    assert reaches(base, STRANGER, component, 8080) is others
    assert reaches(base, PROMETHEUS, component, 8080), "metrics stay readable"
    assert not reaches(base, {"app": "web"}, component, 8000)


def test_no_client_at_all_is_not_everybody() -> None:
    base = rendering(changed(service(), "spec.networkPolicy.clientsFrom", []))
    assert not reaches(base, STRANGER, "coordinator", 8080)
    assert reaches(base, PROMETHEUS, "coordinator", 8080)


def test_co_located_workers_open_no_port_for_kv() -> None:
    base = colocated(vllm_service())
    for port in (5600, 40_000):
        assert not reaches(base, base.labels("prefill"), "decode", port)


def test_policies_can_be_switched_off() -> None:
    base = rendering(changed(service(), "spec.networkPolicy.enabled", False))
    objects = desired_objects(base, token=TOKEN)
    assert "NetworkPolicy" not in {item["kind"] for item in objects}
