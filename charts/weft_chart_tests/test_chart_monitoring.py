"""Alerts and dashboard: they reach whoever evaluates them, and ask for metrics and labels that the routers have."""

import json
import re
from typing import Any

import pytest
import yaml

from weft_chart_tests.rendering import CHART, Render
from weft_chart_tests.rule_lint import TESTS
from weft_router.telemetry.metrics import Metrics

FILES = CHART / "files" / "monitoring"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FILES / "router-alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
DASHBOARD: dict[str, Any] = json.loads((FILES / "router-dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [rule["expr"] for rule in RULES] + [target["expr"] for panel in PANELS for target in panel["targets"]]
SCRAPED = {"namespace", "service", "pod", "component", "worker", "degree", "pool", "revision", "node"}
"""Labels that the scrape configuration adds."""
ENGINES: dict[str, set[str]] = {
    "vllm:prompt_tokens_total": set(),
    "vllm:prompt_tokens_cached_by_source_total": {"source"},
    "vllm:kv_offload_load_bytes_total": set(),
    "vllm:kv_offload_store_bytes_total": set(),
    "vllm:kv_offload_tiering_read_bytes_total": {"tier"},
    "vllm:kv_offload_tiering_write_bytes_total": {"tier"},
    "sglang:prompt_tokens_total": set(),
    "sglang:cached_tokens_total": {"cache_source"},
}
"""Engines' own metrics and their labels; mock engines have vLLM's (weft_mock_tests/test_mock_tiers.py), and so has vLLM
(weft_e2e_tests/test_engine_tiers_installed.py)."""


def labels_of_samples() -> dict[str, set[str]]:
    known: dict[str, set[str]] = {}
    for metric in Metrics().catalogue:
        labels = set(metric.label_names) | SCRAPED
        if metric.kind == "histogram":
            known |= {f"{metric.name}_{part}": labels for part in ("sum", "count")}
            known[f"{metric.name}_bucket"] = labels | {"le"}
        else:
            known[metric.name + ("_total" if metric.kind == "counter" else "")] = labels
    known |= dict.fromkeys(re.findall(r"process_[a-z_]+", " ".join(EXPRESSIONS)), SCRAPED)
    known |= {name: set() for name in RECORDED}
    known |= {name: labels | SCRAPED for name, labels in ENGINES.items()}
    return known


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_expression_asks_for_labels_that_its_metrics_have(expression: str) -> None:
    known = labels_of_samples()
    names = set(re.findall(r"\b(?:weft_(?:router_|slo:)|process_|vllm:|sglang:)[a-z0-9_:]+", expression))
    assert names
    assert names <= set(known)
    for part in expression.split(" / "):
        grouped = {label for by in re.findall(r"by \(([^)]*)\)", part) for label in by.replace(" ", "").split(",")}
        for name, selector in re.findall(r"\b((?:weft_router_|process_|vllm:|sglang:)[a-z_]+)\{([^}]*)\}", part):
            assert set(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", selector)) <= known[name], name
            assert grouped <= known[name], name
    assert expression.count("(") == expression.count(")")
    assert all("_bucket" in name for name in names) or "histogram_quantile" not in expression


def test_every_metric_of_the_routers_is_on_the_dashboard() -> None:
    shown = " ".join(target["expr"] for panel in PANELS for target in panel["targets"])
    missing = {metric.name for metric in Metrics().catalogue if metric.name not in shown}
    assert missing == set()


def test_alerts_say_what_is_wrong_and_what_to_look_at() -> None:
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS) >= 10
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert "$labels.service" in rule["annotations"]["summary"]
        assert rule["annotations"]["description"].endswith(".")
        grouped = set(re.findall(r"\$labels\.([a-z]+)", rule["annotations"]["summary"]))
        read = [rule["expr"], *(one["expr"] for one in RULES if one.get("record", "nothing") in rule["expr"])]
        assert grouped <= set(re.findall(r"[a-z]+", " ".join(re.findall(r"by \(([^)]*)\)", " ".join(read)))))


def test_every_alert_is_raised_in_a_test_of_promtool() -> None:
    """`make lint-alerts` runs these."""
    cases = [
        case for file in TESTS for test in yaml.safe_load(file.read_text())["tests"] for case in test["alert_rule_test"]
    ]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == {rule["alert"] for rule in ALERTS}


def test_panels_have_a_place_of_their_own_and_say_what_they_show() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert all(panel["description"].endswith(".") for panel in PANELS)


def test_the_embedded_prometheus_evaluates_the_alerts(render: Render) -> None:
    config = render().get("ConfigMap", "weft-prometheus")["data"]
    (path,) = yaml.safe_load(config["prometheus.yml"])["rule_files"]
    assert yaml.safe_load(config[path.rpartition("/")[2]]) == {"groups": [{"name": "weft-router", "rules": RULES}]}
    (mount,) = [
        mount
        for mount in render().pod_specs()["weft-prometheus"]["containers"][0]["volumeMounts"]
        if mount["name"] == "config"
    ]
    assert path.startswith(mount["mountPath"] + "/")


def test_others_get_them_when_they_ask(render: Render) -> None:
    rules = render("prometheusRule.enabled=true", "prometheusRule.labels.release=mine").get(
        "PrometheusRule", "weft-router"
    )
    assert rules["spec"]["groups"][0]["rules"] == RULES
    assert rules["metadata"]["labels"]["release"] == "mine"
    dashboards = render("dashboards.enabled=true").get("ConfigMap", "weft-dashboards")
    assert json.loads(dashboards["data"]["weft-router.json"]) == DASHBOARD
    assert dashboards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert not render().of_kind("PrometheusRule")
