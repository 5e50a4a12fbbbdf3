"""Who scrapes: PodMonitors where the cluster knows them, and the peers that the operator lets through."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from weft_chart_tests.rendering import CHART, NAMESPACE, REGISTRY, Helm, Render, arguments
from weft_chart_tests.test_chart_variants import EXTERNAL_PROMETHEUS

EMBEDDED = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
    "podSelector": {
        "matchLabels": {
            "app.kubernetes.io/name": "weft",
            "app.kubernetes.io/instance": "weft",
            "app.kubernetes.io/component": "prometheus",
        }
    },
}


@pytest.mark.parametrize(
    ("value", "known", "expected"),
    [("auto", True, 2), ("auto", False, 0), ("true", False, 2), ("false", True, 0)],
)
def test_pod_monitors_are_made_where_the_cluster_knows_them(helm: Helm, value: str, known: bool, expected: int) -> None:
    words = ["template", "weft", str(CHART), "--namespace", NAMESPACE, *arguments([REGISTRY])]
    words += ["--set", f"podMonitor.enabled={value}"]
    words += ["--api-versions", "monitoring.coreos.com/v1/PodMonitor"] if known else []
    done = helm(*words)
    assert done.returncode == 0, done.stderr
    kinds = [item["kind"] for item in yaml.safe_load_all(done.stdout) if item]
    assert kinds.count("PodMonitor") == expected


def peers(render: Render, *values: str) -> Any:
    (container,) = render(*values).get("Deployment", "weft-operator")["spec"]["template"]["spec"]["containers"]
    found = [item["value"] for item in container["env"] if item["name"] == "WEFT_METRICS_FROM"]
    return json.loads(found[0]) if found else None


def test_the_embedded_prometheus_may_scrape_services(render: Render) -> None:
    assert peers(render) == [EMBEDDED]
    scraper = render().get("Deployment", "weft-prometheus")["spec"]["template"]["metadata"]["labels"]
    assert EMBEDDED["podSelector"]["matchLabels"].items() <= scraper.items()


def test_others_may_scrape_where_the_values_say_so(render: Render) -> None:
    other = {"podSelector": {"matchLabels": {"app": "agent"}}, "namespaceSelector": {}}
    value = f"networkPolicy.metricsFrom:={json.dumps([other])}"
    assert peers(render, value) == [EMBEDDED, other]
    assert peers(render, *EXTERNAL_PROMETHEUS, value) == [other]
    assert peers(render, *EXTERNAL_PROMETHEUS) is None, "the operator's own default is right"


def test_a_peer_of_no_known_form_is_refused(refusal: Callable[..., str]) -> None:
    assert "metricsFrom" in refusal(REGISTRY, 'networkPolicy.metricsFrom:=[{"pods":{}}]')
