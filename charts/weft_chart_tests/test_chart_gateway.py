"""The gateway: off unless asked for, with rights to read services alone, and a configuration that it understands."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from weft_chart_tests.rendering import REGISTRY, Manifest, Render
from weft_chart_tests.test_chart_security import policy, ports, rights
from weft_chart_tests.test_chart_values import prometheus_config
from weft_router.config.gateway import GatewayConfig, read_gateway

ON = "gateway.enabled=true"
KEYS = ("gateway.auth.apiKeySecretRef.name=keys", "gateway.hop.keySecretRef.name=hop")
JWT = (
    "gateway.auth.jwt.issuer=https://login.example.com/",
    "gateway.auth.jwt.audiences={weft}",
    "gateway.auth.jwt.jwksUri=https://login.example.com:8443/keys",
    KEYS[1],
)


def config(render: Render, *values: str) -> GatewayConfig:
    """Return what the gateway reads, by its own parser."""
    text = render(ON, *values).get("ConfigMap", "weft-gateway")["data"]["gateway.json"]
    return read_gateway(text.encode(), source="gateway.json")


def pod(render: Render, *values: str) -> Manifest:
    found: Manifest = render(ON, *values).get("Deployment", "weft-gateway")["spec"]["template"]["spec"]
    return found


def test_there_is_none_unless_it_is_asked_for(render: Render) -> None:
    assert not [item for item in render().objects if "gateway" in item["metadata"]["name"]]


def test_it_serves_where_the_operator_works_or_where_the_values_say(render: Render) -> None:
    read = {("weft.dev", "disagginferenceservices", verb) for verb in ("list", "watch")}
    watched = 'operator.watchNamespaces:=["team-a","team-b"]'
    assert config(render).kubernetes.namespaces == ()
    assert rights(render(ON).get("ClusterRole", "weft-system-weft-gateway")) == read
    assert config(render, watched).kubernetes.namespaces == ("team-a", "team-b")
    for values, namespaces in (((watched,), ("team-a", "team-b")), (("gateway.namespaces={team-c}",), ("team-c",))):
        rendered = render(ON, *values)
        assert not [item for item in rendered.of_kind("ClusterRole") if "gateway" in item["metadata"]["name"]]
        for namespace in namespaces:
            assert rights(rendered.get("Role", "weft-system-weft-gateway", namespace=namespace)) == read
    chosen = config(render, "gateway.namespaces={team-c}", "gateway.selector=team=search").kubernetes
    assert (chosen.namespaces, chosen.selector) == (("team-c",), "team=search")


def test_without_keys_it_has_no_files_and_with_them_it_names_its_clients_to_services(render: Render) -> None:
    assert [volume["name"] for volume in pod(render)["volumes"]] == ["config", "tmp"]
    plain = config(render)
    assert plain.hop is None
    found = config(render, *KEYS)
    assert found.hop is not None
    assert (found.auth.api_keys_file, found.hop.key_file) == ("/etc/weft-api-keys/keys", "/etc/weft-hop-key/key.pem")
    mounted = {mount["name"]: mount["mountPath"] for mount in pod(render, *KEYS)["containers"][0]["volumeMounts"]}
    assert mounted["api-keys"] == "/etc/weft-api-keys"
    assert mounted["hop-key"] == "/etc/weft-hop-key"
    tokens = config(render, *JWT).auth.jwt
    assert tokens is not None
    assert (tokens.audience, tokens.jwks_url) == (("weft",), "https://login.example.com:8443/keys")


def test_a_certificate_leaves_the_plain_port_to_probes_and_metrics(render: Render) -> None:
    values = ("gateway.tls.secretName=cert", "gateway.upstreamCa.configMap=ca")
    found = config(render, *values)
    assert found.tls is not None
    assert found.upstream_ca_file == "/etc/weft-upstream-ca/ca.crt"
    args = pod(render, *values)["containers"][0]["args"]
    assert {"--listen=[::]:8443", "--health-listen=[::]:8080"} <= set(args)
    (port,) = render(ON, *values).get("Service", "weft-gateway")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (443, "https")
    clients, scrapers = policy(render, "weft-gateway", ON, *values)["ingress"]
    assert (ports(clients), ports(scrapers)) == ([8443], [8080])
    assert "from" not in clients
    assert scrapers["from"]


def test_further_fields_reach_it(render: Render) -> None:
    found = config(
        render, "gateway.config.limits.maxBodyBytes=2048", "gateway.allowedOrigins={https://chat.example.com}"
    )
    assert found.limits.max_body_bytes == 2048
    assert found.cors is not None
    assert found.cors.allowed_origins == ("https://chat.example.com",)


def test_its_network_is_closed_but_for_clients_coordinators_and_the_api_server(render: Render) -> None:
    spec = policy(render, "weft-gateway", ON)
    assert [ports(rule) for rule in spec["ingress"]] == [[8080]]
    assert [ports(rule) for rule in spec["egress"]] == [[53], [443, 6443], [8080, 8081, 8443]]
    (peer,) = spec["egress"][2]["to"]
    assert peer["namespaceSelector"] == {}
    labels = {item["key"]: item.get("values") for item in peer["podSelector"]["matchExpressions"]}
    assert labels == {"weft.dev/service": None, "app.kubernetes.io/component": ["coordinator"]}
    assert ports(policy(render, "weft-gateway", ON, *JWT)["egress"][3]) == [8443]
    own: dict[str, Any] = {"podSelector": {"matchLabels": {"app": "ingress"}}}
    bound = policy(render, "weft-gateway", ON, f"gateway.clientsFrom:={json.dumps([own])}")["ingress"]
    assert bound[0]["from"] == [own]
    assert len(bound) == 2, "whoever scrapes it is let in beside them"
    one = policy(render, "weft-gateway", ON, "gateway.namespaces={team-c}")["egress"][2]["to"][0]
    assert one["namespaceSelector"]["matchExpressions"][0]["values"] == ["team-c"]


@pytest.mark.parametrize(
    ("mesh", "named", "control_plane", "more"),
    [
        ("istio", {"sidecar.istio.io/inject": "true"}, [15012], []),
        ("linkerd", {"linkerd.io/inject": "enabled"}, [8080, 8086, 8090], [4143]),
    ],
)
def test_it_joins_a_mesh(
    render: Render, mesh: str, named: dict[str, str], control_plane: list[int], more: list[int]
) -> None:
    values = (ON, f"gateway.mesh={mesh}")
    found = render(*values).get("Deployment", "weft-gateway")["spec"]["template"]["metadata"]
    assert named.items() <= {**found["labels"], **found["annotations"]}.items()
    spec = policy(render, "weft-gateway", *values)
    assert [ports(rule) for rule in spec["ingress"]] == [[*more, 8080]]
    coordinators = [*more, 8080, 8081, 8443]
    assert [ports(rule) for rule in spec["egress"]] == [[53], [443, 6443], control_plane, coordinators]


def test_one_pod_stays_and_a_changed_configuration_starts_new_ones(render: Render) -> None:
    assert render(ON).get("PodDisruptionBudget", "weft-gateway")["spec"]["minAvailable"] == 1
    names = [item["metadata"]["name"] for item in render(ON, "gateway.replicas=1").of_kind("PodDisruptionBudget")]
    assert "weft-gateway" not in names

    def checksum(*values: str) -> str:
        template = render(ON, *values).get("Deployment", "weft-gateway")["spec"]["template"]
        return str(template["metadata"]["annotations"]["weft.dev/config-checksum"])

    assert checksum() != checksum("gateway.selector=team=search")
    assert checksum() == checksum("gateway.replicas=3")


def test_it_is_scraped(render: Render) -> None:
    jobs = {job["job_name"] for job in prometheus_config(render, ON)["scrape_configs"]}
    assert "weft-gateway" in jobs
    assert [ports(rule) for rule in policy(render, "weft-prometheus", ON)["egress"]][-1] == [8080]
    monitor = render(ON, "podMonitor.enabled=true").get("PodMonitor", "weft-gateway")
    labels = render(ON).get("Deployment", "weft-gateway")["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert "weft.dev/service" not in labels, "it is no pod of a service"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (KEYS[:1], "gateway.auth needs gateway.hop.keySecretRef"),
        (KEYS[1:], "gateway.hop.keySecretRef is set without gateway.auth"),
        (
            (*JWT, "gateway.auth.jwt.jwksConfigMapRef.name=keys"),
            "give exactly one of jwksUri and jwksConfigMapRef.name",
        ),
        ((JWT[0], JWT[2], JWT[3]), "gateway.auth.jwt.audiences: name at least one audience"),
        (("gateway.replicas=0",), "at '/gateway/replicas'"),
        (("gateway.mesh=consul",), "at '/gateway/mesh'"),
        (("gateway.namespace=team-a",), "additional properties 'namespace' not allowed"),
        (("gateway.config.auth.apiKeysFile=x",), "additional properties 'auth' not allowed"),
        (("gateway.auth.jwt.jwksUri=http://login.example.com/keys",), "at '/gateway/auth/jwt/jwksUri'"),
    ],
)
def test_bad_values_are_refused_by_name(refusal: Callable[..., str], values: tuple[str, ...], message: str) -> None:
    assert message in " ".join(refusal(REGISTRY, ON, *values).split())


def test_the_notes_and_the_test_pod_know_it(render: Render) -> None:
    text = yaml.safe_dump(render(ON).get("Pod", "weft-test")["spec"]["containers"][0]["args"])
    assert "weft-gateway/readyz" in text
