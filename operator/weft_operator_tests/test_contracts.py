"""What the operator renders is what the router and the mock engine read."""

import json

import pytest

from weft_mock import cli as mock_cli
from weft_operator.api.objects import Manifest
from weft_operator.render.config_maps import router_config
from weft_operator_tests.samples import colocated, rendered, rendering, told, two_pools
from weft_operator_tests.valid import changed, service, vllm_service
from weft_router import cli as router_cli

MOCK = changed(
    service(), "spec.engine", {"type": "mock", "mock": {"timeScale": 0.1, "chunkTokens": 512, "kvCapacityTokens": 4096}}
)


VERBS = {"router": router_cli.router, "mock-engine": mock_cli.mock_engine}


def pod_specs(body: Manifest) -> list[Manifest]:
    base = rendering(body)
    objects = rendered(base)
    return [item["spec"]["template"]["spec"] for item in objects if item["kind"] in ("StatefulSet", "Deployment")]


@pytest.mark.parametrize("body", [service(), MOCK, vllm_service()], ids=["plain", "mock", "vllm"])
def test_the_router_reads_its_configuration(body: Manifest) -> None:
    base = rendering(body)
    raw = router_config(base)["data"]["router.json"]
    config = told(base)
    assert config.slo.ttft == 2.0
    assert config.routing.session_ttl_seconds == 3600
    assert config.cost_profile().kv_capacity(8) == 800_000
    assert config.plan_revision == base.revision
    assert "replicas" not in json.loads(raw)


def test_the_request_log_is_on_where_it_is_asked_for() -> None:
    for value, target in (("Stdout", "stdout"), ("Off", "off")):
        base = rendering(changed(service(), "spec.routing.requestLog", value))
        assert told(base).request_log.to == target


def test_routers_and_mock_engines_take_their_arguments() -> None:
    seen = set()
    for pod in pod_specs(MOCK):
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            verb, *words = container["args"]
            params = VERBS[verb].make_context(verb, words).params
            seen.add((container["name"], params["role"]))
    assert seen == {
        ("router", "coordinator"),
        ("router", "worker"),
        ("engine", "both"),
    }


def test_the_router_reads_the_profile_of_every_pool_where_they_differ() -> None:
    config = told(two_pools())
    assert {pool: profile.gpu for pool, profile in config.pool_profiles().items()} == {
        "h20": "nvidia-h20",
        "h100": "nvidia-h100",
    }
    assert "profiles" not in json.loads(router_config(rendering())["data"]["router.json"])


def test_a_co_located_plan_is_routed_as_it_was_planned() -> None:
    routing = told(colocated(changed(service(), "spec.routing", {"policy": "ampd", "alpha": 0.7}))).routing
    assert (routing.policy, routing.order) == ("colocated", "moore-hodgson")


def test_weft_is_told_which_itl_the_slo_is_about() -> None:
    body = changed(changed(service(), "spec.routing.policy", "weft"), "spec.slo.itlStatistic", "max")
    assert told(rendering(body)).routing.params == {"itl_statistic": 2.0}


def test_a_change_of_scale_changes_no_pod() -> None:
    from weft_operator_tests.samples import group

    small = rendering(service(), group("prefill", 4, 1), group("decode", 8, 1))
    large = rendering(service(), group("prefill", 4, 2), group("decode", 8, 1))
    for base in (small, large):
        assert base.revision == small.revision
    templates = [
        {item["metadata"]["name"]: item["spec"] for item in rendered(base) if item["kind"] == "StatefulSet"}
        for base in (small, large)
    ]
    assert templates[0]["demo-w4-0"] == templates[1]["demo-w4-0"]
    assert templates[0]["demo-w8-0"] == templates[1]["demo-w8-0"]
