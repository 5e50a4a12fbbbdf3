"""What the run under Argo CD goes by: figures that the operator reads as it reads Prometheus', and writes that show."""

import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from weft_e2e.gitops.api import is_true, writes_of_spec
from weft_e2e.gitops.cli import SESSIONS, WINDOW_S, service
from weft_e2e.gitops.content import new_content
from weft_e2e.gitops.prometheus_stub import SimulatedLoad, telling
from weft_operator.api.service import DisaggInferenceService
from weft_operator.metrics.credentials import Credentials
from weft_operator.metrics.prometheus import ask
from weft_operator.metrics.queries import queries, windows_of
from weft_operator.metrics.query_results import QueryResults, read
from weft_operator.metrics.query_target import QueriedService

WINDOWS = windows_of(WINDOW_S)


def told(rate: float) -> SimulatedLoad:
    return SimulatedLoad(
        SESSIONS, WINDOWS, lambda _namespace, name: [f"{name}-coordinator", f"{name}-d-0"], {"s00": rate}
    )


@pytest.mark.component
def test_the_operator_sees_the_load_that_is_told() -> None:
    pods = {"s00-coordinator": 0.0, "s00-d-0": 0.0}
    subject = QueriedService(windows=WINDOWS, stale_after_s=10, pods=pods, percentile=95, unit="round", target=0.9)
    with telling(told(2.4)) as url:
        clock, results = ask(url, Credentials(), queries("serving", "s00", WINDOWS))
    seen = read(QueryResults(clock, results), subject, at=datetime.now(UTC))
    assert seen.availability.seen, seen.availability
    assert seen.workload is not None
    assert seen.workload.session_rate == pytest.approx(2.4, rel=0.05)
    assert seen.workload.rounds is not None
    assert seen.workload.rounds.mean == pytest.approx(SESSIONS.rounds)
    assert seen.workload.first_prompt is not None
    assert seen.workload.first_prompt.mean == pytest.approx(SESSIONS.first_prompt)
    assert seen.slo is not None
    assert seen.slo.attainment == 1.0


@pytest.mark.component
def test_each_figure_is_told_once_and_only_where_it_is_asked_for() -> None:
    asked = queries("serving", "s00", WINDOWS)
    with telling(told(1.0)) as url:
        texts = []
        for query in asked:
            with urllib.request.urlopen(f"{url}/api/v1/query?query={quote(query)}", timeout=10) as reply:  # noqa: S310
                texts.append(reply.read().decode())
    assert sum('"index_sum"' in text for text in texts) == 1


def test_the_service_is_one_that_the_operator_takes() -> None:
    DisaggInferenceService.model_validate(service("s00"))


def test_a_write_of_the_operator_to_what_the_repository_holds_is_found() -> None:
    def live(manager: str, **fields: object) -> dict[str, object]:
        return {"metadata": {"generation": 1, "managedFields": [{"manager": manager, "fieldsV1": fields}]}}

    assert writes_of_spec(live("weft-operator", **{"f:status": {}, "f:metadata": {"f:finalizers": {}}})) == []
    assert writes_of_spec(live("argocd-controller", **{"f:spec": {}})) == []
    assert writes_of_spec(live("weft-operator", **{"f:spec": {}})) == ["f:spec"]
    assert writes_of_spec(live("weft-operator", **{"f:metadata": {"f:labels": {}}})) == ["f:labels"]


def test_a_condition_counts_for_the_spec_it_was_said_of() -> None:
    status = {"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True"}]}
    assert is_true({"metadata": {"generation": 1}, "status": status}, "Ready")
    assert not is_true({"metadata": {"generation": 2}, "status": status}, "Ready")
    assert not is_true({"metadata": {"generation": 1}, "status": status}, "Reconciling")


def test_what_is_committed_is_the_head(tmp_path: Path) -> None:
    content = new_content(tmp_path / "repository")
    content.chart()
    content.service(service("s00"))
    content.commit("First")
    first = content.head()
    content.service({**service("s00"), "spec": {}})
    content.commit("Second")
    assert content.head() != first
    assert yaml.safe_load(content.manifest("s00").read_text())["spec"] == {}
    assert (tmp_path / "repository" / "charts" / "weft" / "Chart.yaml").exists()
