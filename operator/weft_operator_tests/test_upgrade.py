"""Another operator renders the same pods: an upgrade of the operator restarts no worker."""

import importlib.metadata
import json
from dataclasses import replace
from typing import Any

import pytest

from weft_operator.api.objects import Manifest
from weft_operator.api.pod_template_permissions import Permission
from weft_operator.kube.diff import content_hash
from weft_operator.kube.stored_service import parse_service
from weft_operator.render.config_maps import read_record
from weft_operator.settings import PrometheusAccess, Settings
from weft_operator.workers.groups import parse_group
from weft_operator_tests.samples import SETTINGS, colocated, rendered, rendering, two_pools
from weft_operator_tests.valid import pools_service, service, spec, vllm_service

OF_THE_OPERATOR = {
    "operator_image": "registry.example.com/weft-operator:2",
    "prometheus_url": "http://other:9090",
    "prometheus_access": PrometheusAccess(headers=(("X-Scope-OrgID", "other"),)),
    "watch_namespaces": ("one", "two"),
    "namespace_role": "other-role",
    "service_account": "other/account",
    "planner_deadline": 1.0,
    "resync": 1.0,
    "port": 1,
    "lease": "other/lease",
    "router_upgrade": "AtOnce",
    "lease_seconds": 99.0,
    "identity": "weft-operator-of-another-version",
    "pod_templates_allow": (Permission("hostPath"),),
}
OF_THE_PODS = {
    "router_image",
    "mock_image",
    "redis_url",
    "instance",
    "metrics_from",
    "openshift",
    "redis_peers",
    "redis_users",
}
"""What pods and policies are made of; who keeps these keeps the pods."""


NAMES_OF_USERS = {"nodeSelector", "requests", "limits", "params"}
"""Objects of which every key is somebody's own word."""


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


def strewn(value: Any) -> Any:
    """Return a copy with a field in each of its objects that this version does not know."""
    if isinstance(value, dict):
        known = {key: item if key in NAMES_OF_USERS else strewn(item) for key, item in value.items()}
        return {**known, "ofTheNextRelease": {"enabled": True}}
    return [strewn(item) for item in value] if isinstance(value, list) else value


def test_what_a_newer_release_stored_is_read_without_what_is_new_in_it() -> None:
    """Its definitions are there before its operator, and may have defaults."""
    body = pools_service()
    assert parse_service({**body, "spec": strewn(body["spec"])}).spec == spec(body)
    groups = [item for item in rendered(two_pools()) if item["kind"] == "WorkerGroup"]
    for item in groups:
        newer = {**item, "spec": {**item["spec"], "ofTheNextRelease": True}}
        assert parse_group(newer) == parse_group(item)
    assert groups


def test_the_plan_that_a_newer_release_kept_stays_in_force_when_it_is_taken_back() -> None:
    (kept,) = (item for item in rendered(rendering(service())) if item["metadata"]["name"] == "demo-plan")
    known = read_record(kept)
    assert known is not None
    newer = {name: json.dumps(strewn(json.loads(kept["data"][name]))) for name in ("spec.json", "plan.json")}
    assert read_record({**kept, "data": {**kept["data"], **newer}}) == known
