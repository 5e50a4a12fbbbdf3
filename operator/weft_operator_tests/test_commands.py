"""The verbs for people: what they show of a status, and what approving sends."""

import io
import json
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result
from kubernetes.config import kube_config
from rich.console import Console

from weft_operator.api.objects import Manifest, ObjectKey
from weft_operator.api.service import GROUP, KIND, VERSION
from weft_operator.commands import cluster, page
from weft_operator.commands.approve import approve
from weft_operator.commands.status import status
from weft_operator.errors import ApiError, ConflictError, ForbiddenError, NotFoundError
from weft_operator.kube.client import KubeClient

GOLDEN = """\
demo in agents, meta-llama/Llama-3.1-70B-Instruct
http://demo.agents.svc

Conditions
  condition         is     reason            message
  Planned           True   AwaitingApproval  P4x3 D8x1 is proposed
  Ready             True   Serving           all workers of P4x2 D8x1 are ready
  Progressing       False  UpToDate          plan a1 is rolled out
  MetricsAvailable  True   Fresh             12 of 12 series are fresh
  SLOMet            False  Missed            71 % of sessions

What helps
  AwaitingApproval: `weft approve NAME` shows its diff and writes its hash into the annotation
  weft.dev/approve.
  Missed: See `status.observed.slo`: which class, and whether TTFT or ITL; give more GPUs, or a wider SLO.

Plan
  P4x2 D8x1, revision a1, made from spec.workload
  role     degree  pool  ready
  prefill  4       h100  2 of 2
  decode   8       h100  1 of 1
  predicted: TTFT 2.27 s, ITL 23.9 ms, SLO met by 99.3%, up to 1.4 sessions/s

Observed
  over 5m at 2026-11-22T12:00:00Z: 1.9 sessions/s (570 seen), 6.1 rounds/s, 0.2/s refused
  3.21 rounds a session, first prompts of 1204 tokens, later ones of 800, answers of 280, pauses of 250 ms
  P95 TTFT of first rounds 7.1 s of 500, of later rounds 3.2 s of 900, ITL 31 ms of 9000, SLO met by 71.0% of
  sessions

Proposed
  P4x3 D8x1: arrivals are 1.9 times those of the plan
    prefill 4 in h100: 2 -> 3
  approve it: weft approve demo -n agents
"""


def service(**planning: object) -> Manifest:
    def condition(kind: str, is_so: str, reason: str, message: str) -> dict[str, str]:
        return {"type": kind, "status": is_so, "reason": reason, "message": message}

    means = {"rounds": 3.2123, "firstPrompt": 1204.4, "increment": 800, "decode": 280, "gap": 0.25}
    shape = {name: {"mean": mean, "p50": mean, "p95": mean, "count": 500} for name, mean in means.items()}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": "demo", "namespace": "agents", "generation": 3, "resourceVersion": "77"},
        "spec": {
            "model": {"name": "meta-llama/Llama-3.1-70B-Instruct"},
            "planning": {"mode": "Manual", **planning},
        },
        "status": {
            "observedGeneration": 3,
            "url": "http://demo.agents.svc",
            "conditions": [
                condition("Planned", "True", "AwaitingApproval", "P4x3 D8x1 is proposed"),
                condition("Ready", "True", "Serving", "all workers of P4x2 D8x1 are ready"),
                condition("Progressing", "False", "UpToDate", "plan a1 is rolled out"),
                condition("MetricsAvailable", "True", "Fresh", "12 of 12 series are fresh"),
                condition("SLOMet", "False", "Missed", "71 % of sessions"),
            ],
            "planSummary": "P4x2 D8x1",
            "plan": {
                "revision": "a1",
                "madeFrom": "spec.workload",
                "predicted": {
                    "ttftP95": 2.27, "itlP95": 0.0239, "sloMet": True,
                    "attainment": {"value": 0.993, "low": 0.98, "high": 1.0},
                    "goodput": {"value": 1.4, "low": 1.3, "high": 1.5},
                },
            },
            "groups": [
                {"role": "prefill", "degree": 4, "pool": "h100", "desired": 2, "ready": 2},
                {"role": "decode", "degree": 8, "pool": "h100", "desired": 1, "ready": 1},
            ],
            "observed": {
                "metricsReason": "Fresh", "window": "5m", "at": "2026-11-22T12:00:00Z",
                "workload": {"sessionRate": 1.9, "roundRate": 6.1, "refusedRate": 0.2, "sessions": 570, **shape},
                "slo": {
                    "percentile": 95, "unit": "session", "attainment": 0.71,
                    "ttftFirst": {"value": 7.1, "count": 500}, "ttftLater": {"value": 3.2, "count": 900},
                    "itl": {"value": 0.031, "count": 9000},
                },
            },
            "proposedPlan": {
                "hash": "9f2c", "revision": "b2", "summary": "P4x3 D8x1",
                "reason": "arrivals are 1.9 times those of the plan", "diff": ["prefill 4 in h100: 2 -> 3"],
            },
        },
    }  # fmt: skip


class Api:
    """An API server with some services; remembers what is sent to it."""

    def __init__(self, *services: Manifest, error: ApiError | None = None) -> None:
        self.services = services
        self.error = error
        self.sent: list[tuple[ObjectKey, dict[str, str], str]] = []

    def get(self, key: ObjectKey) -> Manifest:
        for item in self.services:
            if (item["metadata"]["namespace"], item["metadata"]["name"]) == (key.namespace, key.name):
                return item
        raise NotFoundError("not found", status=404)

    def list(self, _version: str, _kind: str, *, namespace: str = "") -> list[Manifest]:
        return [item for item in self.services if namespace in ("", item["metadata"]["namespace"])]

    def annotate(self, key: ObjectKey, annotations: dict[str, str], *, version: str) -> None:
        if self.error is not None:
            raise self.error
        self.sent.append((key, annotations, version))


def call(monkeypatch: pytest.MonkeyPatch, api: Api, verb: click.Command, *words: str, stdin: str = "") -> Result:
    monkeypatch.setattr(cluster, "connect_to_cluster", lambda: api)
    monkeypatch.setattr(cluster, "namespace_of", lambda given: given or "agents")
    return CliRunner().invoke(verb, list(words), input=stdin, standalone_mode=False)


def text(shown: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=110, color_system=None).print(shown)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def test_a_service_fits_one_screen() -> None:
    assert text(page.service_page(service())) == GOLDEN


def test_what_nobody_has_looked_at_says_so() -> None:
    item = service()
    del item["status"]
    assert "No operator has reconciled it yet" in text(page.service_page(item))


def test_a_newer_spec_and_missing_metrics_are_reported() -> None:
    item = service()
    item["metadata"]["generation"] = 4
    item["status"]["observed"] = {"metricsReason": "PrometheusUnreachable", "window": "5m"}
    shown = text(page.service_page(item))
    assert "has not reconciled the newest spec" in shown
    assert "nothing: PrometheusUnreachable" in shown


def test_services_in_trouble_come_first() -> None:
    good, bad = service(), service()
    bad["metadata"]["name"] = "zeta"
    bad["status"]["conditions"][1].update(status="False", reason="NoDecodeWorker")
    lines = text(page.services_table([good, bad], namespaces=True)).splitlines()
    assert lines[1].split()[:3] == ["agents", "zeta", "False"]
    assert lines[2].split()[:3] == ["agents", "demo", "True"]


def test_status_ends_with_3_when_a_service_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    item = service()
    assert call(monkeypatch, Api(item), status, "demo").return_value == 0
    item["status"]["conditions"][1]["status"] = "False"
    assert call(monkeypatch, Api(item), status, "demo").return_value == 3
    assert call(monkeypatch, Api(item), status, "-A").return_value == 3


def test_status_prints_what_programs_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(call(monkeypatch, Api(service()), status, "demo", "-o", "json").output) == service()
    assert yaml.safe_load(call(monkeypatch, Api(service()), status, "-o", "yaml").output) == [service()]


def test_a_service_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    result = call(monkeypatch, Api(), status, "nobody")
    assert isinstance(result.exception, click.ClickException)
    assert "no service 'nobody' in namespace 'agents'" in result.exception.message
    assert "there is no service in namespace" in call(monkeypatch, Api(), status).output


def test_approving_names_the_hash_and_the_version_that_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api(service())
    result = call(monkeypatch, api, approve, "demo", stdin="y\n")
    assert result.return_value == 0
    assert "prefill 4 in h100: 2 -> 3" in result.output
    key = ObjectKey(f"{GROUP}/{VERSION}", KIND, "agents", "demo")
    assert api.sent == [(key, {"weft.dev/approve": "9f2c"}, "77")]
    body = json.loads(call(monkeypatch, api, approve, "demo", "--yes", "-o", "json").stdout)
    assert (body["service"], body["approved"]) == ("demo", "9f2c")


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        ({}, ("--hash", "old"), "the proposal is 9f2c now, not old"),
        ({"mode": "Advisory"}, ("--yes",), "spec.planning.mode Advisory"),
    ],
)
def test_what_cannot_be_approved_is_refused(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, str], words: tuple[str, ...], said: str
) -> None:
    api = Api(service(**change))
    result = call(monkeypatch, api, approve, "demo", *words)
    assert isinstance(result.exception, click.ClickException)
    assert said in result.exception.message
    assert not api.sent


def test_nothing_is_sent_without_a_yes_or_a_proposal(monkeypatch: pytest.MonkeyPatch) -> None:
    item = service()
    api = Api(item)
    assert call(monkeypatch, api, approve, "demo", stdin="n\n").return_value == 1
    del item["status"]["proposedPlan"]
    result = call(monkeypatch, api, approve, "demo", "--yes")
    assert isinstance(result.exception, click.ClickException)
    assert "nothing to approve" in result.exception.message
    assert not api.sent


def test_a_service_that_changed_meanwhile_is_not_approved(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api(service(), error=ConflictError("conflict", status=409))
    result = call(monkeypatch, api, approve, "demo", "--yes")
    assert isinstance(result.exception, click.ClickException)
    assert "look at it and approve again" in result.exception.message


def test_without_a_cluster_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(**_: object) -> None:
        raise ForbiddenError("no access to a cluster: set KUBECONFIG")

    monkeypatch.setattr(cluster, "connect", nothing)
    result = CliRunner().invoke(status, ["demo"])
    assert result.exit_code == 1
    assert "KUBECONFIG" in result.output


def test_a_named_context_says_which_cluster_and_which_namespace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    contexts = [
        {"name": name, "context": {"cluster": name, "user": "me", **({"namespace": space} if space else {})}}
        for name, space in (("here", "mine"), ("there", "theirs"), ("bare", ""))
    ]
    clusters = [{"name": item["name"], "cluster": {"server": f"https://{item['name']}:6443"}} for item in contexts]
    users = [{"name": "me", "user": {"token": "t"}}]
    body = {"contexts": contexts, "clusters": clusters, "users": users, "current-context": "here"}
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(body))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    asked: list[tuple[str, str]] = []

    def get(self: KubeClient, key: ObjectKey) -> Any:
        asked.append((self.configuration.host, key.namespace))
        raise NotFoundError("no", status=404)

    monkeypatch.setattr(KubeClient, "get", get)
    for words in ((), ("--context", "there"), ("--context", "bare"), ("-n", "own", "--context", "there")):
        assert CliRunner().invoke(status, ["demo", *words]).exit_code == 1
    assert asked == [
        ("https://here:6443", "mine"),
        ("https://there:6443", "theirs"),
        ("https://bare:6443", "default"),
        ("https://there:6443", "own"),
    ]
    unknown = CliRunner().invoke(status, ["demo", "--context", "nowhere"])
    assert unknown.exit_code == 1
    assert "nowhere" in unknown.output
