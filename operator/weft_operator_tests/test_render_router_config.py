"""What a service says of its front door reaches the router as it was meant, and restarts no engine."""

import base64
import json
from dataclasses import replace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
import yaml

from weft_core.plan import PlannedPolicy
from weft_operator.api.objects import Manifest, ObjectKey, ServiceKey
from weft_operator.errors import NotFoundError
from weft_operator.kube.client import KubeClient
from weft_operator.kube.observe import observe
from weft_operator.render.config_maps import front_config
from weft_operator.render.coordinator import coordinators
from weft_operator.status.conditions import url_of
from weft_operator_tests.observations import VALID
from weft_operator_tests.samples import colocated, rendered, rendering, told
from weft_operator_tests.valid import REMOVED, changed, front_service, service, spec
from weft_router.config import RouterConfig
from weft_router.config.live import needs_restart

JWKS = {"name": "keys", "key": "provider.json"}


def of_front(body: Manifest) -> RouterConfig:
    """Return the configuration that coordinators read."""
    return told(rendering(body), front=True)


def objects(body: Manifest) -> dict[tuple[str, str], Manifest]:
    base = rendering(body)
    items = rendered(base)
    return {(item["kind"], item["metadata"]["name"]): item for item in items}


@pytest.mark.parametrize(
    ("rate_high", "pods"),
    [(0.9, 2), (60.0, 3), (1000.0, 4), (0.0, 2)],
    ids=["few", "as the plan needs", "most", "none at any rate"],
)
def test_coordinators_are_as_many_as_the_plan_needs(rate_high: float, pods: int) -> None:
    scaling = {"replicas": 2, "scaling": {"max": 4, "roundsPerSecond": 100}}
    base = rendering(changed(service(), "spec.coordinator", scaling))
    plan = replace(base.record.plan, validity=replace(VALID, rate_high=rate_high, rounds=5.0))
    carried = replace(base, record=replace(base.record, plan=plan))
    assert coordinators(carried) == pods
    deployment = next(item for item in rendered(carried) if item["kind"] == "Deployment")
    assert deployment["spec"]["replicas"] == pods
    given_up = replace(carried, rules=replace(plan, validity=replace(VALID, rate_high=0.1)))
    assert coordinators(given_up) == 2, "the plan before is active"


def test_without_scaling_or_without_a_known_load_there_are_the_spec_s_coordinators() -> None:
    plan = rendering().record.plan
    fixed = rendering(changed(service(), "spec.coordinator.replicas", 3))
    busy = replace(plan, validity=replace(VALID, rate_high=1000.0))
    assert coordinators(replace(fixed, record=replace(fixed.record, plan=busy))) == 3
    scaled = rendering(changed(service(), "spec.coordinator", {"replicas": 3, "scaling": {"max": 9}}))
    assert scaled.record.plan.validity is None
    assert coordinators(scaled) == 3


def test_coordinators_read_all_that_concerns_clients() -> None:
    config = of_front(front_service())
    assert config.auth.jwt is not None
    assert (config.auth.jwt.issuer, config.auth.jwt.audience) == ("https://login.example.com/", ("weft",))
    assert (config.auth.jwt.tenant_claim, config.auth.jwt.class_claim) == ("org", "tier")
    assert config.auth.jwt.limits_claim == "limits"
    assert (config.auth.jwt.jwks_url, config.auth.jwt.leeway_seconds) == ("https://login.example.com/keys.json", 30.0)
    assert config.tls is not None
    assert (config.tls.cert_file, config.tls.min_version) == ("/etc/weft-tls/tls.crt", "1.3")
    assert (config.limits.max_connections, config.limits.rates.concurrent) == (5000, 200)
    assert config.requests.allowed_fields == ("chat_template", "tools.mcp")
    assert (config.requests.media_hosts, config.requests.media_over_http) == (("media.example.com", "*.cdn.net"), False)
    assert (config.limits.quarantine_seconds, told(rendering(front_service())).limits.quarantine_seconds) == (300, 300)
    qos = config.qos
    assert (qos.default_class, qos.max_waiting, qos.pressure.kv_use) == ("interactive", 512, 0.9)
    acme, nightly = qos.tenants["acme"], qos.tenants["auth0|nightly"]
    assert (acme.weight, acme.rates.requests_per_second, acme.rates.tokens_per_minute) == (3.0, 50.0, 600_000.0)
    assert (acme.rates.burst_seconds, nightly.default_class, nightly.classes) == (20.0, "batch", ("batch",))
    batch = qos.classes["batch"]
    assert (batch.early_rejection, batch.tolerance, batch.output_cap) == (True, 2.0, True)
    assert (batch.max_output_tokens, batch.local_only) == (2048, "pressure")
    assert (qos.classes["interactive"].priority, qos.classes["interactive"].queue_limit) == (2, 64)
    assert (config.telemetry.otlp_endpoint, config.telemetry.sample_ratio) == (
        "http://collector.monitoring:4318",
        0.05,
    )
    assert (config.access_log.to, config.access_log.sample_ratio) == ("stderr", 0.1)


def test_sidecars_read_what_concerns_rounds_and_nothing_of_clients() -> None:
    config = told(rendering(front_service()))
    assert config.requests == type(config.requests)()
    assert (config.auth.jwt, config.tls, config.limits.rates.concurrent) == (None, None, None)
    for one in (config, of_front(front_service())):
        rules = one.routing
        assert (rules.hedge.mode, rules.slices.least, rules.first_token_from_prefill) == ("auto", 1024, "auto")
        assert (rules.resume, rules.on_prefill_failure) == ("exact", "other")
        assert rules.prediction_correction == "off"
        classes = one.session_classes()
        assert sorted(classes) == ["batch", "chat", "default", "interactive"]
        assert (classes["batch"].routing.policy, classes["batch"].routing.binding) == ("threshold", "least-requests")
        assert classes["batch"].routing.params == {"queue_limit": 4.0}
        assert (classes["chat"].slo.ttft, classes["chat"].slo.itl) == (1.0, 0.03)
        assert (classes["interactive"].qos.priority, classes["interactive"].slo.ttft) == (2, 2.0)


def test_every_router_knows_what_a_body_and_all_of_them_may_take() -> None:
    limits = {"maxBodyNodes": 5000, "maxBytesInFlight": 1 << 30}
    changed_service = changed(front_service(), "spec.coordinator.limits", limits)
    for config in (told(rendering(changed_service)), of_front(changed_service)):
        assert (config.limits.max_body_nodes, config.limits.max_bytes_in_flight) == (5000, 1 << 30)
    assert told(rendering(service())).limits.max_bytes_in_flight is None


def test_a_service_without_any_of_it_has_one_configuration_for_all() -> None:
    assert front_config(rendering(service())) is None
    names = [name for kind, name in objects(service()) if kind == "ConfigMap"]
    assert [name for name in names if not name.startswith("demo-router-")] == ["demo-live", "demo-plan"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.coordinator.tls", {"secretRef": {"name": "other-tls"}}),
        ("spec.coordinator.auth.jwt.issuer", "https://other.example.com/"),
        ("spec.coordinator.auth", REMOVED),
        ("spec.coordinator.limits.rates", {"requestsPerSecond": 1}),
        ("spec.coordinator.limits.maxConnections", 7),
    ],
)
def test_a_change_for_clients_alone_restarts_no_engine(path: str, value: Any) -> None:
    before, after = objects(front_service()), objects(changed(front_service(), path, value))
    for key, item in before.items():
        if key[0] == "StatefulSet":
            assert after[key] == item
    assert before["Deployment", "demo"]["spec"]["template"] != after["Deployment", "demo"]["spec"]["template"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.slo.ttft", "9s"),
        ("spec.slo.classes.0.ttft", "900ms"),
        ("spec.routing.policy", "remote-jsq"),
        ("spec.routing.mode", "ia"),
        ("spec.routing.params", {"width": 0.2}),
        ("spec.routing.binding", "round-robin"),
        ("spec.routing.minCacheHitRatio", 0.75),
        ("spec.routing.order", "edf"),
        ("spec.routing.hedge", REMOVED),
        ("spec.routing.onPrefillFailure", "Error"),
        ("spec.routing.predictionCorrection", "Auto"),
        ("spec.routing.classes.0.priority", 7),
        ("spec.routing.classes.1.params", {"queue_limit": 9}),
        ("spec.routing.classes.1.earlyRejection", False),
        ("spec.routing.classes.1.localOnly", "Always"),
        ("spec.routing.qos.tenants", [{"name": "acme", "weight": 9}]),
        ("spec.routing.qos.maxWaiting", 7),
    ],
)
def test_a_change_of_policy_slo_or_class_restarts_nothing_and_running_routers_take_it_over(
    path: str, value: Any
) -> None:
    body = changed(front_service(), path, value)
    before, after = objects(front_service()), objects(body)
    different = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert different == {("ConfigMap", "demo-live"), ("ConfigMap", "demo-plan")}
    for front in (False, True):
        old, new = told(rendering(front_service()), front=front), told(rendering(body), front=front)
        assert old != new
        assert needs_restart(old, new) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [("prefillConcurrency", 2), ("statsWindow", "30s"), ("sessionTTL", "2h"), ("slices", REMOVED), ("resume", "Off")],
)
def test_what_queues_are_built_with_restarts_workers(path: str, value: Any) -> None:
    body = changed(front_service(), f"spec.routing.{path}", value)
    before, after = objects(front_service()), objects(body)
    assert before["StatefulSet", "demo-w4-0"] != after["StatefulSet", "demo-w4-0"]
    assert needs_restart(told(rendering(front_service())), told(rendering(body)))


def test_a_certificate_has_the_main_port_and_health_stays_plain() -> None:
    found = objects(front_service())
    pod = found["Deployment", "demo"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "--listen=[::]:8443" in container["args"]
    assert "--health-listen=[::]:8080" in container["args"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {"http": 8080, "https": 8443}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 8080}
    assert found["Service", "demo"]["spec"]["ports"] == [
        {"name": "https", "port": 443, "targetPort": 8443, "protocol": "TCP"}
    ]
    volumes = {item["name"]: item for item in pod["volumes"]}
    assert volumes["tls"]["secret"]["secretName"] == "front-tls"
    assert volumes["tls"]["secret"]["defaultMode"] == 0o444
    assert volumes["api-keys"]["secret"]["items"] == [{"key": "keys", "path": "keys"}]
    mounts = {item["name"]: item for item in container["volumeMounts"]}
    assert mounts["tls"] == {"name": "tls", "mountPath": "/etc/weft-tls", "readOnly": True}
    for (kind, _), item in found.items():
        if kind == "StatefulSet":
            text = yaml.safe_dump(item)
            assert "tls" not in text, "sidecars see neither certificate nor keys"
            assert "api-keys" not in text
    assert url_of(ServiceKey("team", "demo"), spec(front_service())) == "https://demo.team.svc"
    assert url_of(ServiceKey("team", "demo"), spec(service())) == "http://demo.team.svc"


def test_keys_of_a_provider_may_come_from_a_config_map() -> None:
    jwt = {
        "issuer": "https://i.example.com",
        "audiences": ["a", "b"],
        "jwksConfigMapRef": JWKS,
        "algorithms": ["ES256"],
    }
    body = changed(service(), "spec.coordinator.auth", {"jwt": jwt})
    config = of_front(body).auth.jwt
    assert config is not None
    assert (config.jwks_file, config.jwks_url, config.algorithms) == ("/etc/weft-jwks/jwks.json", "", ("ES256",))
    pod = objects(body)["Deployment", "demo"]["spec"]["template"]["spec"]
    volume = next(item for item in pod["volumes"] if item["name"] == "jwks")
    assert volume["configMap"] == {"name": "keys", "items": [{"key": "provider.json", "path": "jwks.json"}]}
    assert {"name": "jwks", "mountPath": "/etc/weft-jwks", "readOnly": True} in pod["containers"][0]["volumeMounts"]


@pytest.mark.parametrize("shared", [False, True], ids=["own user", "operator's user"])
def test_a_redis_url_is_in_the_secret_alone_and_a_new_one_restarts_pods_in_turn(shared: bool) -> None:
    def made(url: str) -> dict[tuple[str, str], Manifest]:
        base = replace(rendering(service()), shares_redis_user=shared)
        base = replace(base, settings=replace(base.settings, redis_url=url))
        items = rendered(base)
        return {(item["kind"], item["metadata"]["name"]): item for item in items}

    first, second = (made(f"rediss://weft:canary-{word}@{word}.example.com:6379/0") for word in ("one", "two"))
    others = yaml.safe_dump([item for key, item in first.items() if key[0] != "Secret"])
    (name,) = first["Secret", "demo-token"]["data"].keys() - {"token"}
    held = base64.b64decode(first["Secret", "demo-token"]["data"][name]).decode()
    assert (held == "rediss://weft:canary-one@one.example.com:6379/0") is shared
    assert ("canary" in held) is shared
    assert urlsplit(held).hostname == "one.example.com"
    for word in ("canary", "WEFT_REDIS_URL\n", str(urlsplit(held).password)):
        assert word not in others
    for kind, owner in (("StatefulSet", "demo-w4-0"), ("Deployment", "demo")):
        assert f"/etc/weft-token/{name}" in yaml.safe_dump(first[kind, owner])
        template, other = (made_[kind, owner]["spec"]["template"] for made_ in (first, second))
        assert template["spec"] != other["spec"]
        hashes = [item["metadata"]["annotations"]["weft.dev/token-hash"] for item in (template, other)]
        assert hashes[0] == hashes[1], "the token is the same, so not all restart at once"
    memory = made("memory://")
    assert memory["Secret", "demo-token"]["data"].keys() == {"token"}


def test_routers_run_the_mode_and_the_slices_that_the_plan_was_simulated_with() -> None:
    base = rendering()
    policy = PlannedPolicy("weft", "whole-or-chunked", "moore-hodgson", chunked=True, chunk_share=0.7)
    planned = replace(base, record=replace(base.record, plan=replace(base.record.plan, policy=policy)))
    assert (told(planned).routing.mode, told(planned).routing.slice_share) == ("whole-or-chunked", 0.7)
    assert (told(base).routing.mode, told(base).routing.slice_share) == ("imd", 0.9)


def test_co_located_workers_delay_prefills_by_the_slo_s_statistic_and_the_steps_of_their_engines() -> None:
    body = changed(
        changed(service(), "spec.slo.itlStatistic", "p95"), "spec.engine.decode", {"maxNumBatchedTokens": 2048}
    )
    both = told(colocated(body))
    assert (both.routing.params, both.routing.step_tokens) == ({"itl_statistic": 1.0}, 2048)
    alone = told(colocated(changed(body, "spec.slo.itlStatistic", "mean")))
    assert alone.routing.params == {}
    assert told(rendering(body)).routing.step_tokens is None, "only these read it, and it would restart others"


def test_classes_of_a_co_located_plan_prefill_where_they_are() -> None:
    base = colocated(changed(front_service(), "spec.planning.layouts", ["colocated"]))
    batch = told(base).session_classes()["batch"]
    assert (batch.routing.policy, batch.routing.binding) == ("colocated", "least-requests")


class Stored:
    """An API server that holds a service, a Secret and a ConfigMap."""

    def __init__(self, body: Manifest, *others: Manifest) -> None:
        body["metadata"]["uid"] = "u"
        self._objects = {(item["kind"], item["metadata"]["name"]): item for item in (body, *others)}

    def get(self, key: ObjectKey) -> Manifest:
        if (key.kind, key.name) not in self._objects:
            raise NotFoundError(f"{key.kind} {key.name}")
        return self._objects[key.kind, key.name]

    def list(self, *_: object, **__: object) -> list[Manifest]:
        return []


def seen(body: Manifest, *others: Manifest) -> tuple[bool, bool]:
    """Return whether certificate and keys were found."""
    observed = observe(cast(KubeClient, Stored(body, *others)), ServiceKey("default", "demo"))
    assert observed is not None
    return observed.certificate_found, observed.jwks_found


def secret(**data: str) -> Manifest:
    encoded = {name.replace("_", "."): base64.b64encode(value.encode()).decode() for name, value in data.items()}
    return {"kind": "Secret", "metadata": {"name": "front-tls"}, "data": encoded}


def test_what_the_spec_refers_to_is_looked_for() -> None:
    body = front_service()
    del body["spec"]["coordinator"]["auth"]["jwt"]["jwksUri"]
    body["spec"]["coordinator"]["auth"]["jwt"]["jwksConfigMapRef"] = JWKS
    keys = {"kind": "ConfigMap", "metadata": {"name": "keys"}, "data": {"provider.json": json.dumps({"keys": []})}}
    assert seen(service()) == (True, True), "no reference is no lack"
    assert seen(body) == (False, False)
    assert seen(body, secret(tls_crt="c", tls_key="k"), keys) == (True, True)
    assert seen(body, secret(tls_crt="c"), {**keys, "data": {"other": "x"}}) == (False, False)
    assert seen(body, secret(tls_crt="c", tls_key=" "), {**keys, "data": {"provider.json": " "}}) == (False, False)
    assert seen(body, {**secret(), "data": {"tls.crt": "!", "tls.key": "!"}}, {**keys, "data": None}) == (False, False)


@pytest.mark.parametrize(
    ("engine", "places"),
    [
        ({}, None),
        ({"maxNumSeqs": 256, "maxNumBatchedTokens": 8192}, 256),
        ({"maxNumSeqs": 256, "decode": {"maxNumSeqs": 48}}, 48),
        ({"prefill": {"maxNumSeqs": 4}}, None),
        ({"decode": {"maxNumBatchedTokens": 64}}, 64),
    ],
)
def test_routers_know_the_places_of_decode_engines(engine: dict[str, Any], places: int | None) -> None:
    body = service()
    body = changed(body, "spec.engine", {**body["spec"]["engine"], **engine})
    assert told(rendering(body)).routing.places == places
