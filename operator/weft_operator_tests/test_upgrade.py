"""Another operator renders the same pods: an upgrade of the operator restarts no worker."""

import importlib.metadata
from dataclasses import replace

import pytest

from weft_operator.diff import content_hash
from weft_operator.manifest import Manifest
from weft_operator.settings import Settings
from weft_operator_tests.samples import SETTINGS, colocated, rendered, rendering, two_pools
from weft_operator_tests.valid import service, vllm_service

OF_THE_OPERATOR = {
    "prometheus_url": "http://other:9090",
    "watch_namespaces": ("one", "two"),
    "planner_deadline": 1.0,
    "resync": 1.0,
    "port": 1,
    "lease": "other/lease",
    "router_upgrade": "AtOnce",
    "lease_seconds": 99.0,
    "identity": "weft-operator-of-another-version",
}
OF_THE_PODS = {"router_image", "mock_image", "redis_url", "instance", "metrics_from"}
"""What pods and policies are made of; who keeps these keeps the pods."""


def templates(settings: Settings, body: str) -> dict[str, str]:
    bases = {"plain": lambda: rendering(service()), "vllm": lambda: rendering(vllm_service())}
    bases |= {"colocated": colocated, "pools": two_pools}
    objects: list[Manifest] = list(rendered(replace(bases[body](), settings=settings)))
    kinds = ("StatefulSet", "Deployment")
    return {
        item["metadata"]["name"]: content_hash(item["spec"]["template"]) for item in objects if item["kind"] in kinds
    }


@pytest.mark.parametrize("body", ["plain", "vllm", "colocated", "pools"])
def test_pod_templates_know_nothing_of_the_operator(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = templates(SETTINGS, body)
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "99.0")
    monkeypatch.setenv("POD_NAME", "weft-operator-of-another-version")
    other = replace(SETTINGS, **OF_THE_OPERATOR)  # type: ignore[arg-type]
    assert len(before) > 1
    assert templates(other, body) == before
    changed = templates(replace(SETTINGS, router_image="registry.example.com/weft-router:2"), body)
    assert all(changed[name] != value for name, value in before.items()), "the comparison sees a change of the pods"


def test_every_setting_is_either_of_the_operator_or_of_the_pods() -> None:
    assert set(OF_THE_OPERATOR) | OF_THE_PODS == set(Settings.__dataclass_fields__)
