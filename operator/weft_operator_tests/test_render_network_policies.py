"""Who may reach the pods of a service: evaluated as a network plug-in would, on rendered policies."""

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from weft_operator.api.objects import WORKER_LABEL, Manifest
from weft_operator.render.inputs import Rendering
from weft_operator.render.objects import desired_objects
from weft_operator_tests.samples import TOKEN, colocated, on_nodes, rendered, rendering
from weft_operator_tests.valid import (
    changed,
    front_service,
    neuron_service,
    service,
    sglang_service,
    tensorrt_llm_service,
    vllm_service,
)

NAMESPACES = {"default": {}, "monitoring": {"team": "sre"}, "other": {}}
"""Labels of the namespaces; every service of the samples is in default."""


def matches(selector: Manifest, labels: dict[str, str]) -> bool:
    """Return whether a label selector chooses something."""
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(need["key"]) in need["values"] for need in selector.get("matchExpressions", ())
    )


def admits(peer: Manifest, namespace: str, labels: dict[str, str]) -> bool:
    """Return whether a peer of a policy in namespace default chooses a pod."""
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
    """Return whether a pod may open a connection to a port of a component's pods, or of one worker's."""
    target = {**base.labels(component), **({WORKER_LABEL: worker} if worker else {})}
    policies = [item["spec"] for item in rendered(base) if item["kind"] == "NetworkPolicy"]
    covering = [spec for spec in policies if "Ingress" in spec["policyTypes"] and matches(spec["podSelector"], target)]
    if not covering:
        return True
    for rule in (rule for spec in covering for rule in spec.get("ingress", ())):
        ports = rule.get("ports", [{"port": 1, "endPort": 65535}])
        opened = any(item["port"] <= port <= item.get("endPort", item["port"]) for item in ports)
        if opened and ("from" not in rule or any(admits(peer, namespace, source) for peer in rule["from"])):
            return True
    return False


STRANGER = {"app": "anything"}
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}


@pytest.mark.parametrize(
    ("body", "channel"),
    [(sglang_service(), 8998), (neuron_service(), 8001)],
    ids=str,
)
def test_kv_moves_between_fixed_roles_only(body: Manifest, channel: int) -> None:
    base = rendering(body)
    prefill, decode, front = (base.labels(part) for part in ("prefill", "decode", "coordinator"))
    assert reaches(base, decode, "prefill", channel)
    assert not reaches(base, prefill, "prefill", channel)
    for source in (front, STRANGER, PROMETHEUS, {**prefill, "weft.dev/service": "another"}):
        assert not reaches(base, source, "prefill", channel), source
        assert not reaches(base, source, "decode", channel), source


@pytest.mark.parametrize("body", [service(), vllm_service()], ids=str)
def test_kv_moves_between_workers_only_where_roles_can_change(body: Manifest) -> None:
    base = rendering(body)
    worker, front = base.labels("worker"), base.labels("coordinator")
    assert reaches(base, worker, "worker", 5600)
    for before in ("prefill", "decode"):
        assert reaches(base, base.labels(before), "worker", 5600), "workers that are being replaced"
        assert reaches(base, worker, before, 5600)
    for source in (front, STRANGER, PROMETHEUS, {**worker, "weft.dev/service": "another"}):
        assert not reaches(base, source, "worker", 5600), source


def test_with_kv_events_a_session_may_take_its_kv_from_one_decode_worker_to_another() -> None:
    fixed = changed(vllm_service(), "spec.engine.decode", {"maxNumSeqs": 64})
    for body, open_ in ((fixed, False), (changed(fixed, "spec.engine.kvEvents", "Enabled"), True)):
        base = rendering(body)
        prefill, decode = base.labels("prefill"), base.labels("decode")
        assert reaches(base, decode, "decode", 5600) == open_
        assert reaches(base, prefill, "decode", 5600)
        assert not reaches(base, prefill, "prefill", 5600)


def test_clients_may_come_from_ranges_of_both_families() -> None:
    ranges = [{"ipBlock": {"cidr": cidr}} for cidr in ("10.0.0.0/8", "fd00::/8")]
    made = desired_objects(rendering(changed(service(), "spec.networkPolicy.clientsFrom", ranges)), token=TOKEN)
    named = {item["metadata"]["name"]: item for item in made if item["kind"] == "NetworkPolicy"}
    assert ranges in [rule.get("from") for rule in named["demo-coordinator"]["spec"]["ingress"]], sorted(named)


@pytest.mark.parametrize("port", [29500, 40_000, 8000])
def test_the_nodes_of_one_worker_reach_each_other_at_every_port_and_nobody_else_does(port: int) -> None:
    base = on_nodes()
    node = {**base.labels("worker"), WORKER_LABEL: "demo-w8-0"}
    assert reaches(base, node, "worker", port, worker="demo-w8-0")
    others = (
        {**node, WORKER_LABEL: "demo-w8-1"},
        {**node, "weft.dev/service": "another"},
        {**base.labels("worker"), WORKER_LABEL: "demo-w4-0"},
        base.labels("coordinator"),
        STRANGER,
        PROMETHEUS,
    )
    for source in others:
        assert not reaches(base, source, "worker", port, worker="demo-w8-0"), source
    assert not reaches(base, node, "worker", port, namespace="other", worker="demo-w8-0")
    assert reaches(base, base.labels("coordinator"), "worker", 8080, worker="demo-w8-0"), "the role's own rules stay"


@pytest.mark.parametrize("body", [sglang_service(), tensorrt_llm_service(), neuron_service()], ids=str)
def test_transfer_libraries_meet_on_ports_of_the_kernels_choice(body: Manifest) -> None:
    base = rendering(body)
    for role, other in (("prefill", "decode"), ("decode", "prefill")):
        assert reaches(base, base.labels(other), role, 40_000)
        assert not reaches(base, base.labels(role), role, 40_000)
        assert not reaches(base, STRANGER, role, 40_000)


@pytest.mark.parametrize(
    "body", [service(), vllm_service(), sglang_service(), tensorrt_llm_service(), neuron_service()], ids=str
)
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


def test_no_policy_has_rules_for_both_directions() -> None:
    """kube-router takes rules of egress for those of ingress between two pods of one such policy."""
    base = on_nodes(vllm_service())
    made = {item["metadata"]["name"]: item["spec"] for item in rendered(base) if item["kind"] == "NetworkPolicy"}
    for name, spec in made.items():
        assert spec["policyTypes"] == (["Egress"] if name.endswith("-egress") else ["Ingress"]), name
    for component in ("coordinator", "worker"):
        assert made[f"demo-{component}"]["podSelector"] == made[f"demo-{component}-egress"]["podSelector"]


def egress_of(base: Rendering, component: str) -> list[Manifest] | None:
    """Return the rules for what a component's pods may connect to; None where they may connect to everything."""
    specs = [item["spec"] for item in rendered(base) if item["kind"] == "NetworkPolicy"]
    found = [spec for spec in specs if matches(spec["podSelector"], base.labels(component))]
    if not any("Egress" in spec["policyTypes"] for spec in found):
        return None
    return [rule for spec in found for rule in spec.get("egress", ())]


def dials(
    base: Rendering, component: str, target: dict[str, str] | str, port: int, *, namespace: str = "default"
) -> bool:
    """Return whether a component's pods may open a TCP connection to a pod with some labels, or to an address."""
    rules = egress_of(base, component)
    if rules is None:
        return True
    for rule in rules:
        ports = rule.get("ports", [{"protocol": "TCP", "port": 1, "endPort": 65535}])
        if not any(
            item["protocol"] == "TCP" and item["port"] <= port <= item.get("endPort", item["port"]) for item in ports
        ):
            continue
        for peer in rule.get("to", [None]):
            if peer is None:
                return True
            if isinstance(target, str):
                if "ipBlock" in peer and _within(target, peer["ipBlock"]):
                    return True
            elif admits(peer, namespace, target):
                return True
    return False


def _within(address: str, block: Manifest) -> bool:
    def holds(cidr: str) -> bool:
        return ip_address(address) in ip_network(cidr)  # of another family is False

    return holds(block["cidr"]) and not any(holds(cidr) for cidr in block.get("except", ()))


PUBLIC = ("93.184.216.34", "2606:2800:220:1::1")
INSIDE = (
    *("169.254.169.254", "10.1.2.3", "172.20.1.1", "192.168.7.7", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    *("127.0.0.1", "fd00:ec2::254", "fe80::1", "::1", "64:ff9b::a9fe:a9fe", "64:ff9b::a01:203"),
)
METADATA = (
    *("169.254.169.254", "169.254.170.2", "168.63.129.16", "192.0.0.192", "100.100.100.200", "127.0.0.1"),
    *("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fe80::a9fe:a9fe", "::1"),
    *("64:ff9b::a9fe:a9fe", "64:ff9b::a83f:8110", "64:ff9b::6464:64c8", "64:ff9b::7f00:1"),
)
EVERY = ("prefill", "decode", "coordinator")
REDIS = {"app.kubernetes.io/component": "redis"}
HUB: Manifest = {"huggingFace": {}}
CLAIM = {"huggingFace": {"cache": {"claim": {"size": "1Ti", "accessMode": "ReadWriteMany"}}}}


@pytest.mark.parametrize("body", [service(), vllm_service(), sglang_service(), tensorrt_llm_service()], ids=str)
@pytest.mark.parametrize("component", EVERY)
def test_no_pod_reaches_the_metadata_service_the_private_network_or_other_pods(body: Manifest, component: str) -> None:
    base = rendering(body)
    for address in INSIDE:
        for port in (22, 80, 443, 6443, 8080):
            assert not dials(base, component, address, port), (address, port)
    for target in (STRANGER, PROMETHEUS, {**base.labels("decode"), "weft.dev/service": "another"}):
        for port in (80, 443, 8000, 8080):
            assert not dials(base, component, target, port)
            assert not dials(base, component, target, port, namespace="other")


CACHE = {"cache": {"claim": {"size": "1Ti"}}}
PROXY = {"spec.engine.env": [{"name": "HTTPS_PROXY", "value": "http://proxy:80"}]}
URLS: list[tuple[str, Manifest]] = [
    ("decode", {"spec.telemetry": {"otlpEndpoint": "http://collector:80"}}),
    ("coordinator", {"spec.telemetry": {"otlpEndpoint": "http://collector:80"}}),
    ("decode", PROXY),
    ("weights", {**PROXY, "spec.model.source": CLAIM}),
    ("weights", {"spec.model.source": {"s3": {"bucket": "models", "endpoint": "http://minio:80", **CACHE}}}),
    (
        "decode",
        {"spec.model.source": {"huggingFace": {"endpoint": "http://hub:80", "cache": {"node": {"path": "/w"}}}}},
    ),
    ("profile", {**PROXY, "spec.profile": {"measure": {}, "analytic": {}}}),
    ("coordinator", {"spec.coordinator.auth.jwt.jwksUri": "https://keys:80"}),
    ("decode", {"redis": "redis://redis.example.com:80"}),
]


@pytest.mark.parametrize(("component", "fields"), URLS)
def test_no_url_opens_the_metadata_service(component: str, fields: Manifest) -> None:
    body = front_service() if component == "coordinator" else vllm_service()
    for field, value in fields.items():
        body = body if field == "redis" else changed(body, field, value)
    base = rendering(body)
    if "redis" in fields:
        base = replace(base, settings=replace(base.settings, redis_url=fields["redis"]))
    for address in (*PUBLIC, "10.1.2.3", "192.168.7.7", "fd12::1", "64:ff9b::5db8:d822"):
        assert dials(base, component, address, 80), address
    assert dials(base, component, STRANGER, 80, namespace="other"), "what a URL names may be a pod"
    for address in METADATA:
        assert not dials(base, component, address, 80), address


def test_the_hub_is_reached_by_nat64() -> None:
    assert dials(rendering(vllm_service()), "decode", "64:ff9b::5db8:d822", 443)


@pytest.mark.parametrize("component", ["decode", "coordinator"])
def test_ranges_that_are_left_out_lie_within_theirs(component: str) -> None:
    """An API server refuses them otherwise."""
    rules = egress_of(rendering(vllm_service()), component)
    blocks = [peer["ipBlock"] for rule in rules or () for peer in rule.get("to", ()) if "ipBlock" in peer]
    assert blocks
    for block in blocks:
        whole = ip_network(block["cidr"])
        for part in map(ip_network, block["except"]):
            assert part.version == whole.version
            assert part.prefixlen > whole.prefixlen


@pytest.mark.parametrize("component", EVERY)
def test_pods_reach_their_own_service_redis_and_dns(component: str) -> None:
    base = on_nodes(vllm_service())
    for other in EVERY:
        for port in (5600, 8080, 29500, 40_000):
            assert dials(base, component, base.labels(other), port)
        assert not dials(base, component, base.labels(other), 8080, namespace="other")
    rules = egress_of(base, component)
    assert rules is not None
    assert {"ports": [{"protocol": name, "port": 53} for name in ("UDP", "TCP")]} in rules
    assert dials(base, component, "10.1.2.3", 6379), "where Redis is, is not known here"
    peer = {"namespaceSelector": {"matchLabels": {"team": "sre"}}, "podSelector": {"matchLabels": REDIS}}
    known = replace(base, settings=replace(base.settings, redis_peers=(peer,)))
    assert dials(known, component, REDIS, 6379, namespace="monitoring")
    assert not dials(known, component, REDIS, 6380, namespace="monitoring")
    assert not dials(known, component, STRANGER, 6379, namespace="monitoring")
    assert not dials(known, component, "10.1.2.3", 6379)


@pytest.mark.parametrize(
    ("source", "engines", "job"),
    [
        (None, True, None),
        (HUB, True, None),
        ({"huggingFace": {"cache": {"node": {"path": "/var/weights"}}}}, True, None),
        (CLAIM, False, True),
        ({"pvc": {"claimName": "weights"}}, False, None),
        ({"oci": {"reference": "registry.example.com/model:1"}}, False, None),
    ],
    ids=["name", "hub", "node", "claim", "pvc", "oci"],
)
def test_only_who_loads_weights_reaches_the_hub(source: Any, engines: bool, job: bool | None) -> None:
    body = vllm_service() if source is None else changed(vllm_service(), "spec.model.source", source)
    base = rendering(body)
    for address in PUBLIC:
        assert dials(base, "prefill", address, 443) is dials(base, "decode", address, 443) is engines
        assert not dials(base, "decode", address, 80)
        assert not dials(base, "coordinator", address, 443)
        assert dials(base, "weights", address, 443) is (job is not False), "without a Job nothing is said of it"
    made = {item["metadata"]["name"]: item["spec"] for item in rendered(base) if item["kind"] == "NetworkPolicy"}
    assert ("demo-weights" in made) is (job is not None)
    if job is not None:
        assert "ingress" not in made["demo-weights"]
        assert not dials(base, "weights", "169.254.169.254", 443)
        assert dials(base, "weights", "10.0.0.9", 6379), "Redis, for its progress"


def test_a_store_of_ones_own_is_reached_at_its_port() -> None:
    cache = {"claim": {"size": "1Ti"}}
    s3 = {"bucket": "models", "endpoint": "http://minio.storage:9000", "cache": cache}
    base = rendering(changed(vllm_service(), "spec.model.source", {"s3": s3}))
    assert dials(base, "weights", "10.0.0.9", 9000)
    assert not dials(base, "weights", PUBLIC[0], 443)


def test_proxies_of_the_engine_are_reached_by_who_loads_weights() -> None:
    env = [
        {"name": "HTTPS_PROXY", "value": "http://proxy.internal:3128"},
        {"name": "http_proxy", "value": "proxy.internal:3129"},
        {"name": "ALL_PROXY", "value": "socks5://proxy.internal"},
        {"name": "NO_PROXY", "value": "proxy.internal:3130"},
        {"name": "HTTP_PROXY", "value": "http://proxy.internal:many"},
    ]
    base = rendering(changed(vllm_service(), "spec.engine.env", env))
    for port, reached in ((3128, True), (3129, True), (1080, True), (3130, False), (443, False)):
        assert dials(base, "decode", "10.1.2.3", port) is reached
        assert not dials(base, "coordinator", "10.1.2.3", port)
    cached = rendering(changed(changed(vllm_service(), "spec.engine.env", env), "spec.model.source", CLAIM))
    assert dials(cached, "weights", "10.1.2.3", 3128)
    assert not dials(cached, "decode", "10.1.2.3", 3128)


def test_traces_and_keys_of_tokens_open_their_ports() -> None:
    body = changed(front_service(), "spec.telemetry", {"otlpEndpoint": "http://collector.monitoring:4318"})
    base = rendering(body)
    for component in EVERY:
        assert dials(base, component, STRANGER, 4318, namespace="other")
    assert dials(base, "coordinator", STRANGER, 443, namespace="other"), "spec.coordinator.auth.jwt.jwksUri"
    assert not dials(base, "decode", STRANGER, 443, namespace="other")


@pytest.mark.parametrize("url", ["http://collector:431b", "http://collector:99999", "http://[::::]"])
def test_a_port_that_is_none_stops_no_rendering(url: str) -> None:
    base = rendering(changed(front_service(), "spec.telemetry", {"otlpEndpoint": url}))
    assert dials(base, "decode", STRANGER, 80, namespace="other")


def test_a_service_may_name_whom_its_pods_connect_to() -> None:
    named = [
        {"to": [WEB], "ports": [{"port": 3128}]},
        {"to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}], "ports": [{"port": 9000, "endPort": 9010}]},
    ]
    base = rendering(changed(service(), "spec.networkPolicy.egress", named))
    for component in EVERY:
        assert dials(base, component, {"app": "web"}, 3128)
        assert not dials(base, component, {"app": "web"}, 3129)
        assert dials(base, component, "10.9.1.1", 9005)
        assert not dials(base, component, "10.8.1.1", 9005)


def test_egress_can_be_left_open_while_nobody_comes_in() -> None:
    base = rendering(changed(service(), "spec.networkPolicy.restrictEgress", False))
    for component in EVERY:
        assert egress_of(base, component) is None
    assert not reaches(base, STRANGER, "decode", 8080)


def test_measured_engines_reach_each_other_and_the_weights_alone() -> None:
    base = rendering(changed(vllm_service(), "spec.profile", {"measure": {}, "analytic": {}}))
    assert dials(base, "profile", base.labels("profile"), 5600)
    assert dials(base, "profile", PUBLIC[0], 443)
    for target in (base.labels("decode"), STRANGER):
        assert not dials(base, "profile", target, 8080)
    assert not dials(base, "profile", "169.254.169.254", 443)


def test_openshifts_dns_listens_elsewhere() -> None:
    base = rendering()
    rules = egress_of(replace(base, settings=replace(base.settings, openshift=True)), "decode")
    assert rules is not None
    assert {port["port"] for port in rules[0]["ports"]} == {53, 5353}
