"""Rights and networks: nothing more than is used."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from weft_chart_tests.rendering import REGISTRY, Manifest, Render
from weft_chart_tests.test_chart_variants import EXTERNAL_PROMETHEUS, EXTERNAL_REDIS, every_variant
from weft_operator.render.egress import anywhere

WATCHED = 'operator.watchNamespaces:=["team-a","team-b"]'
SERVICE_PODS = {"matchExpressions": [{"key": "weft.dev/service", "operator": "Exists"}]}


def rights(role: Manifest) -> set[tuple[str, str, str]]:
    """Return (group, resource, verb) of a role."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@every_variant
def test_roles_have_no_wildcard_and_every_role_is_bound_once(render: Render, values: tuple[str, ...]) -> None:
    rendered = render(*values)
    roles = rendered.of_kind("ClusterRole") + rendered.of_kind("Role")
    bindings = rendered.of_kind("ClusterRoleBinding") + rendered.of_kind("RoleBinding")
    for role in roles:
        assert not any("*" in part for right in rights(role) for part in right)

    def place(item: Manifest, kind: str, name: str) -> tuple[str, str, str]:
        return (kind, item["metadata"].get("namespace", ""), name)

    bound = sorted(place(item, item["roleRef"]["kind"], item["roleRef"]["name"]) for item in bindings)
    # The operator itself binds what it may do in labelled namespaces.
    roles = [role for role in roles if role["metadata"]["name"] != "weft-system-weft-operator-namespace"]
    assert bound == sorted(place(role, role["kind"], role["metadata"]["name"]) for role in roles)
    for binding in bindings:
        (subject,) = binding["subjects"]
        assert rendered.get("ServiceAccount", subject["name"], namespace=subject["namespace"])


def test_the_operator_may_do_this_and_nothing_else(render: Render) -> None:
    granted = rights(render().get("ClusterRole", "weft-system-weft-operator"))
    expected: dict[tuple[str, str], str] = {
        ("weft.dev", "disagginferenceservices"): "get list watch",
        ("weft.dev", "disagginferenceservices/status"): "patch",
        ("weft.dev", "costprofiles"): "get list watch create patch",
        ("weft.dev", "workergroups"): "get list watch create patch delete",
        ("weft.dev", "workergroups/status"): "patch",
        ("apps", "statefulsets"): "get list watch create patch delete",
        ("apps", "controllerrevisions"): "get list create patch delete",
        ("batch", "jobs"): "get list create patch delete",
        ("apps", "deployments"): "get list watch create patch delete",
        ("", "pods"): "list watch patch delete",
        ("", "persistentvolumeclaims"): "get create patch delete",
        ("", "services"): "get list create patch delete",
        ("", "serviceaccounts"): "get list create patch",
        ("", "configmaps"): "get list create patch delete",
        ("", "secrets"): "get create patch",
        ("", "events"): "create",
        ("coordination.k8s.io", "leases"): "get update create",
        ("", "nodes"): "list",
        ("policy", "poddisruptionbudgets"): "get list create patch delete",
        ("networking.k8s.io", "networkpolicies"): "get list create patch delete",
    }
    assert granted == {(*target, verb) for target, verbs in expected.items() for verb in verbs.split()}


def test_watched_namespaces_take_the_rights_elsewhere_away(render: Render) -> None:
    rendered = render(WATCHED)
    everywhere = rights(render().get("ClusterRole", "weft-system-weft-operator"))
    assert rights(rendered.get("ClusterRole", "weft-system-weft-operator")) == {("", "nodes", "list")}
    for namespace in ("team-a", "team-b"):
        role = rendered.get("Role", "weft-system-weft-operator", namespace=namespace)
        assert rights(role) == everywhere - {("", "nodes", "list")}
    assert [item["metadata"]["name"] for item in rendered.of_kind("ClusterRole")] == ["weft-system-weft-operator"]


GANGS = {"volcano": "scheduling.volcano.sh", "kai": "scheduling.run.ai", "coscheduling": "scheduling.x-k8s.io"}


def test_rights_to_kinds_of_other_projects_are_given_where_they_are_asked_for(render: Render) -> None:
    before = rights(render().get("ClusterRole", "weft-system-weft-operator"))
    verbs = ("get", "list", "create", "patch", "delete")
    for names in (("volcano",), ("coscheduling", "kai")):
        value = f"operator.gangSchedulers:={json.dumps(names)}"
        after = rights(render(value).get("ClusterRole", "weft-system-weft-operator"))
        assert after - before == {(GANGS[name], "podgroups", verb) for name in names for verb in verbs}
    watched = render(WATCHED, "operator.computeDomains=true").get(
        "Role", "weft-system-weft-operator", namespace="team-a"
    )
    assert rights(watched) - before == {("resource.nvidia.com", "computedomains", verb) for verb in verbs}
    routes = rights(render("operator.gatewayApi=true").get("ClusterRole", "weft-system-weft-operator")) - before
    assert routes == {
        (f"{group}.networking.k8s.io", kind, verb)
        for group, kind in (("gateway", "httproutes"), ("inference", "inferencepools"))
        for verb in ("get", "create", "patch", "delete")
    }
    peers = rights(render("operator.peerAuthentications=true").get("ClusterRole", "weft-system-weft-operator")) - before
    assert peers == {
        ("security.istio.io", "peerauthentications", verb) for verb in ("get", "create", "patch", "delete")
    }


def test_the_operator_has_its_own_lease_and_no_other(render: Render) -> None:
    for values in ((), (WATCHED,)):
        role = render(*values).get("Role", "weft-operator-lease", namespace="weft-system")
        named, anew = role["rules"]
        assert named["resourceNames"] == ["weft-operator"]
        assert rights({"rules": [named]}) == {("coordination.k8s.io", "leases", verb) for verb in ("get", "update")}
        assert rights({"rules": [anew]}) == {("coordination.k8s.io", "leases", "create")}


def test_prometheus_reads_pods_and_nothing_else(render: Render) -> None:
    reading = {("", "pods", verb) for verb in ("get", "list", "watch")}
    assert rights(render().get("ClusterRole", "weft-system-weft-prometheus")) == reading
    for namespace in ("team-a", "team-b", "weft-system"):
        role = render(WATCHED).get("Role", "weft-system-weft-prometheus", namespace=namespace)
        assert rights(role) == reading


def policy(render: Render, name: str, *values: str) -> dict[str, Any]:
    spec: dict[str, Any] = render(*values).get("NetworkPolicy", name)["spec"]
    return spec


def ports(rule: Manifest) -> list[int]:
    return sorted({port["port"] for port in rule["ports"]})


def test_every_pod_of_the_chart_has_a_closed_network(render: Render) -> None:
    rendered = render()
    policies = [item["spec"] for item in rendered.of_kind("NetworkPolicy")]
    for item in rendered.every("Deployment"):
        labels = item["spec"]["template"]["metadata"]["labels"].items()
        covering = [spec for spec in policies if spec["podSelector"]["matchLabels"].items() <= labels]
        assert len(covering) == 1, item["metadata"]["name"]
        assert covering[0]["policyTypes"] == ["Ingress", "Egress"]


def test_redis_answers_pods_of_services_and_dials_nobody(render: Render) -> None:
    spec = policy(render, "weft-redis")
    assert spec["egress"] == []
    (rule,) = spec["ingress"]
    assert ports(rule) == [6379]
    labels = {item["key"]: item.get("values") for item in rule["from"][0]["podSelector"]["matchExpressions"]}
    assert labels == {
        "weft.dev/service": None,
        "app.kubernetes.io/managed-by": ["weft"],
        "app.kubernetes.io/component": ["coordinator", "picker", "prefill", "decode", "worker", "weights"],
    }
    assert rule["from"][0]["namespaceSelector"] == {}
    watched = policy(render, "weft-redis", WATCHED)["ingress"][0]["from"][0]["namespaceSelector"]
    assert watched["matchExpressions"] == [
        {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]}
    ]
    assert rule["from"][1]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "operator"
    assert len(rule["from"]) == 3


def test_prometheus_dials_metrics_ports_of_services_only(render: Render) -> None:
    spec = policy(render, "weft-prometheus")
    assert [ports(rule) for rule in spec["egress"]] == [[53], [443, 6443], [8080], [8081]]
    assert spec["egress"][2]["to"] == [{"namespaceSelector": {}, "podSelector": SERVICE_PODS}]
    assert ports(spec["ingress"][0]) == [9090]


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://prometheus.example.com:9091", 9091),
        ("http://prometheus.example.com", 80),
        ("https://prometheus.example.com/path", 443),
        ("http://prometheus.example.com:8/path:9", 8),
    ],
)
def test_operator_dials_dns_the_api_server_and_prometheus(render: Render, url: str, port: int) -> None:
    inside = policy(render, "weft-operator")
    assert [ports(rule) for rule in inside["egress"]] == [[53], [443, 6443], [6379], [9090]]
    assert all("to" in rule for rule in inside["egress"][2:])
    outside = policy(render, "weft-operator", EXTERNAL_PROMETHEUS[0], f"prometheus.url={url}")
    assert ports(outside["egress"][3]) == [port]
    other_ports = policy(render, "weft-operator", "networkPolicy.apiServerPorts:=[16443]")
    assert ports(other_ports["egress"][1]) == [16443]


def test_servers_elsewhere_open_no_metadata_service_to_the_operator(render: Render) -> None:
    values = (*EXTERNAL_REDIS, *EXTERNAL_PROMETHEUS, "networkPolicy.prometheusPorts={80}")
    elsewhere = policy(render, "weft-operator", *values)["egress"][2:]
    assert elsewhere
    for rule in elsewhere:
        assert rule["to"] == anywhere(ports(rule))["to"], "as for the pods of services"


def test_the_charts_test_pod_may_reach_what_it_tests(render: Render) -> None:
    labels = render().get("Pod", "weft-test")["metadata"]["labels"]
    for name in ("weft-operator", "weft-redis", "weft-prometheus"):
        peers = policy(render, name)["ingress"][0]["from"]
        admitted = [
            peer
            for peer in peers
            if "namespaceSelector" not in peer
            and peer["podSelector"].get("matchLabels", {}).items() <= labels.items()
            and all(
                labels.get(need["key"]) in need["values"] for need in peer["podSelector"].get("matchExpressions", ())
            )
        ]
        assert len(admitted) == 1, name


def test_policies_can_be_turned_off_and_follow_what_is_embedded(render: Render) -> None:
    assert render("networkPolicy.enabled=false").of_kind("NetworkPolicy") == []
    names = [
        item["metadata"]["name"] for item in render(*EXTERNAL_REDIS, *EXTERNAL_PROMETHEUS).of_kind("NetworkPolicy")
    ]
    assert names == ["weft-operator"]


LABELLED = "operator.labelledNamespaces=true"


def test_in_labelled_namespaces_alone_the_operator_has_its_rights(render: Render, refusal: Callable[..., str]) -> None:
    name = "weft-system-weft-operator-namespace"
    everywhere = render(LABELLED).get("ClusterRole", "weft-system-weft-operator")
    assert rights(everywhere) == {
        ("", "nodes", "list"),
        ("", "namespaces", "list"),
        ("rbac.authorization.k8s.io", "rolebindings", "list"),
        ("rbac.authorization.k8s.io", "rolebindings", "delete"),
        ("rbac.authorization.k8s.io", "rolebindings", "create"),
        ("rbac.authorization.k8s.io", "clusterroles", "bind"),
    }
    named = {
        (resource, verb): rule.get("resourceNames")
        for rule in everywhere["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {key: value for key, value in named.items() if value} == {
        ("rolebindings", "list"): [name],
        ("rolebindings", "delete"): [name],
        ("clusterroles", "bind"): [name],
    }
    inside = render(LABELLED).get("ClusterRole", name)
    assert rights(inside) == rights(render().get("ClusterRole", "weft-system-weft-operator")) - {("", "nodes", "list")}
    bound = [item["roleRef"]["name"] for item in render(LABELLED).of_kind("ClusterRoleBinding")]
    assert name not in bound, "the operator binds it itself, where the label is"
    policy_ = render(LABELLED).get("ValidatingAdmissionPolicy", name)["spec"]
    assert policy_["failurePolicy"] == "Fail"
    assert policy_["matchConditions"][0]["expression"].endswith("'system:serviceaccount:weft-system:weft-operator'")
    binding = render(LABELLED).get("ValidatingAdmissionPolicyBinding", name)["spec"]
    assert binding == {"policyName": name, "validationActions": ["Deny"]}
    redis = policy(render, "weft-redis", LABELLED)["ingress"][0]["from"][0]["namespaceSelector"]
    assert redis == {"matchLabels": {"weft.dev/managed": "true"}}
    assert "are both set" in refusal(REGISTRY, LABELLED, WATCHED)
    assert render().of_kind("ValidatingAdmissionPolicy") == []
