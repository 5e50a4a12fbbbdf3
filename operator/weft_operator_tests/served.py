"""An API server over a real socket with one running service: for tests of the verbs."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click
import pytest
from click.testing import CliRunner, Result

from weft_operator.api.objects import Manifest
from weft_operator.commands import cluster
from weft_operator.render.inputs import Rendering
from weft_operator.render.plan_baseline import PlanBaseline
from weft_operator.render.revisions import revision_object
from weft_operator_tests.observations import FLAT, plan_for, record_of
from weft_operator_tests.samples import KEY, SETTINGS, UID
from weft_operator_tests.test_apiserver import Scripted
from weft_operator_tests.test_commands import service as shown_service

ROOT = "/api/v1/namespaces/default"
WEFT = "/apis/weft.dev/v1alpha1/namespaces/default"
APPS = "/apis/apps/v1/namespaces/default"

PAGE = """\
# HELP weft_router_inflight Requests being served now
weft_router_inflight{{role="decode"}} 3.0
weft_router_queue_length 2.0
weft_router_sessions 41.0
weft_router_rounds_total{{phase="first",class="default"}} {first}
weft_router_rounds_total{{phase="later",class="default"}} {later}
weft_router_decode_tokens_sum{{class="default"}} {tokens}
weft_router_ttft_seconds_sum{{phase="first"}} {ttft}
weft_router_ttft_seconds_count{{phase="first"}} {count}
"""


def revisions() -> list[Manifest]:
    """Return two plan revisions, as the operator writes them."""
    found: list[Manifest] = []
    for workers, rate, cause in ((2, 0.6, ""), (5, 1.8, "1.8 sessions/s arrive and the plan holds the SLO up to 1")):
        baseline = PlanBaseline(cause=cause, changed_at=datetime(2026, 1, 1, 12, workers, tzinfo=UTC))
        kept = replace(record_of(plan_for(workers, rate=rate, instead_of=2)), baseline=baseline, profile=FLAT)
        found.append(revision_object(Rendering(KEY, UID, kept, SETTINGS), found))
    return found


def pod(name: str, role: str, *, worker: str = "", **metadata: Any) -> Manifest:
    """Return a ready pod."""
    labels = {"weft.dev/service": "demo", "app.kubernetes.io/component": role}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "labels": labels | ({"weft.dev/worker": worker} if worker else {}),
            **metadata,
        },
        "spec": {
            "nodeName": "node-1",
            **({"initContainers": [{"name": "router"}], "containers": [{"name": "engine"}]} if worker else {}),
            **({} if worker else {"containers": [{"name": "router"}]}),
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def group(role: str, *workers: dict[str, Any]) -> Manifest:
    """Return a WorkerGroup with the status of its workers."""
    return {
        "metadata": {"name": f"demo-{role}-1-abc", "namespace": "default"},
        "spec": {"service": "demo", "role": role, "degree": 1, "pool": "h20", "replicas": len(workers)},
        "status": {"workers": list(workers)},
    }


class Served(Scripted):
    """One service with a prefill and two decode workers; keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.service = copy.deepcopy(shown_service())
        self.service["metadata"] |= {"namespace": "default", "generation": 3}
        self.pods = [
            pod("demo-abc", "coordinator"),
            pod("demo-p1-0-0", "prefill", worker="demo-p1-0"),
            pod("demo-d1-0-0", "decode", worker="demo-d1-0"),
            pod("demo-d1-1-0", "decode", worker="demo-d1-1"),
        ]
        told = {"ready": True, "node": "node-1"}
        self.groups = [
            group("prefill", {"name": "demo-p1-0", **told}),
            group(
                "decode",
                {"name": "demo-d1-0", **told, "sessions": 40, "liveRounds": 3, "kvTokens": 90_000, "idleSeconds": 0},
                {"name": "demo-d1-1", **told, "sessions": 2, "liveRounds": 0, "kvTokens": 700, "idleSeconds": 60},
            ),
        ]
        self.plans = revisions()
        self.publish()

    def publish(self) -> None:
        """Answer with what the lists hold now."""
        self.on("GET", f"{WEFT}/disagginferenceservices/demo", self.service)
        self.on("GET", f"{WEFT}/disagginferenceservices", {"items": [self.service]})
        self.on("GET", f"{WEFT}/workergroups", {"items": self.groups})
        self.on("GET", f"{APPS}/controllerrevisions", {"items": self.plans})
        self.on("GET", f"{ROOT}/pods", {"items": self.pods})
        self.on("PATCH", f"{WEFT}/disagginferenceservices/demo", {})
        for item in self.pods:
            name = item["metadata"]["name"]
            self.on("PATCH", f"{ROOT}/pods/{name}", {})

    def patched(self) -> list[tuple[str, Any]]:
        """Return the paths and bodies of all patches."""
        return [(urlsplit(path).path, body) for method, path, body, _ in self.asked if method == "PATCH"]

    def queries(self, ending: str) -> list[dict[str, Sequence[str]]]:
        """Return the queries of all requests whose path ends so."""
        split = [urlsplit(asked[1]) for asked in self.asked]
        return [dict(parse_qs(item.query)) for item in split if item.path.endswith(ending)]


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Serve, and let every verb reach this server."""
    server = Served()
    monkeypatch.setattr(cluster, "connect_to_cluster", lambda: server.api)
    monkeypatch.setattr(cluster, "connect", lambda **_: server.api)
    monkeypatch.setattr(cluster, "namespace_of", lambda given: given or "default")
    try:
        yield server
    finally:
        server.close()


def call(verb: click.Command, *words: str, stdin: str = "") -> Result:
    """Call a verb as the program does."""
    return CliRunner().invoke(verb, list(words), input=stdin, standalone_mode=False)


def refusal(result: Result) -> str:
    """Return the message of an error that a person is told."""
    assert isinstance(result.exception, click.ClickException), result.exception
    return result.exception.message
