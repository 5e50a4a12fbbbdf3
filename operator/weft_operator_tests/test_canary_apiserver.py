"""Canaries on a real API server, with metrics as a Prometheus would tell them: no person has a hand in it.

The planner predicts an ITL of 25 ms for every plan. Where the profile was too fast by three, workers take 75 ms.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from time import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from weft_operator.api.objects import DEGREE_LABEL, Manifest, condition_of, labels_of, name_of, pod_role
from weft_operator.metrics.queries import windows_of
from weft_operator_tests.api import RealApi, small_service
from weft_operator_tests.cluster import wait_for
from weft_operator_tests.fake_prometheus import Prometheus, Router
from weft_operator_tests.samples import plan

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(600, func_only=True)]

ITL_S = 0.05
BOUNDS = (0.01, 0.025, 0.03, 0.05, 0.1, float("inf"))
ROUNDS = 200
PATIENCE_S = 150.0
CANARY = {"percent": 10, "window": "15s", "maxWindow": "10m", "minSamples": 50}


class Routers:
    """What routers in the pods of a service count; ``slower`` is by how much workers of a degree miss the profile."""

    def __init__(self, api: RealApi, namespace: str) -> None:
        self.api, self.namespace = api, namespace
        self.slower: Mapping[str, float] = {}
        self.blind = False

    def rows(self) -> list[dict[str, Any]]:
        """Return all series that an instant query finds now."""
        pods = self.api.items("api/v1/pods", self.namespace)
        now = time()
        routers = [Router(name_of(pod), now - 5000, 1.0) for pod in pods]
        (found,) = Prometheus(routers, now, windows_of(60)).answers().results
        assert isinstance(found, list)
        for pod in pods:
            if pod_role(pod) == "decode":
                found += self._trial(name_of(pod), self.slower.get(labels_of(pod)[DEGREE_LABEL], 1.0))
        return [row | {"value": [now, row["value"][1]]} for row in found]

    def _trial(self, pod: str, slower: float) -> list[dict[str, Any]]:
        itl_s = plan().predicted.itl_p95_s * slower
        outcome = "good" if itl_s <= ITL_S else "bad"
        counts = {bound: 100.0 * ROUNDS * (itl_s <= bound) for bound in BOUNDS}
        return [
            _row("pod_rounds", ROUNDS, pod=pod, outcome=outcome),
            *(_row("pod_itl", count, pod=pod, le=str(bound).replace("inf", "+Inf")) for bound, count in counts.items()),
        ]

    def answer(self, query: str) -> Any:
        """Return what Prometheus' API gives for a query of the operator."""
        if query == "time()":
            return [time(), str(time())]
        return [row for row in self.rows() if f'"figure", "{row["metric"]["figure"]}"' in query]


def _row(figure: str, value: float, **labels: str) -> dict[str, Any]:
    return {"metric": {"figure": figure, **labels}, "value": [0, str(value)]}


@contextmanager
def prometheus(routers: Routers) -> Iterator[str]:
    """Serve what the routers count; give the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            (query,) = parse_qs(urlsplit(self.path).query).get("query", [""])
            result = routers.answer(query)
            kind = "scalar" if query == "time()" else "vector"
            body = json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode()
            self.send_response(503 if routers.blind else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


class Service:
    """The service of the test, as it is asked for and as it is."""

    def __init__(self, api: RealApi, namespace: str) -> None:
        self.api, self.namespace = api, namespace
        self.body = small_service(namespace)
        self.body["spec"]["slo"]["itl"] = "50ms"
        self.body["spec"]["rollout"]["canary"] = CANARY
        watched = {"prometheus": {"window": "1m", "staleAfter": "30s"}, "interval": "1s", "cooldown": "24h"}
        self.body["spec"]["planning"] = {**self.body["spec"].get("planning", {}), **watched}

    def ask(self, degree: int) -> None:
        """Let the spec allow another degree beside 2, so that there is another plan: decode workers of that degree."""
        self.body["spec"]["capacity"]["pools"][0]["degrees"] = sorted({2, degree})
        self.api.kube.apply(self.body)

    @property
    def now(self) -> Manifest:
        path = f"apis/weft.dev/v1alpha1/namespaces/{self.namespace}/disagginferenceservices/demo"
        return self.api.read(path) or {}

    def says(self, kind: str) -> tuple[str, str]:
        """Return reason and message of a condition."""
        found = condition_of(self.now, kind) or {}
        return str(found.get("reason", "")), str(found.get("message", ""))

    def events(self) -> set[str]:
        """Return the reasons of all events."""
        return {str(event["reason"]) for event in self.api.items("api/v1/events", self.namespace)}

    def is_on(self, degree: int) -> bool:
        """Return whether all is carried out and every decode worker, ready or leaving, is of one degree."""
        status = self.now.get("status") or {}
        pods = self.api.items("api/v1/pods", self.namespace)
        degrees = {labels_of(pod)[DEGREE_LABEL] for pod in pods if pod_role(pod) == "decode"}
        return (
            degrees == {str(degree)}
            and status.get("planSummary") == f"P2x1 D{degree}x1"
            and self.says("Progressing")[0] == "UpToDate"
            and self.says("Ready")[0] == "Serving"
        )

    def has_canary(self, degree: int) -> bool:
        """Return whether a plan is tried, its workers beside the old ones, and routers know."""
        live = self.api.read(f"api/v1/namespaces/{self.namespace}/configmaps/demo-live") or {"data": {}}
        told = json.loads(live["data"].get("live.json", "{}")).get("routing", {}).get("canary") or {}
        tried = {group["degree"] for group in told.get("groups", ())}
        return self.says("Progressing")[0] == "CanaryRunning" and tried == {degree} and told.get("percent") == 10


def _until(service: Service, what: str, probe: Callable[[], bool]) -> None:
    """Wait for something; where it does not come about, tell what the service says of itself."""
    try:
        wait_for(what, probe, timeout=PATIENCE_S)
    except AssertionError as error:
        status = service.now.get("status") or {}
        said = [f"{item['type']} {item['reason']}: {item['message']}" for item in status.get("conditions", ())]
        raise AssertionError("\n".join([str(error), str(status.get("canary")), *said])) from error


def test_a_plan_made_with_a_profile_three_times_too_fast_is_undone_and_a_good_one_stays(api: RealApi) -> None:
    namespace = api.namespace()
    routers = Routers(api, namespace)
    routers.slower = {"4": 3.0}
    try:
        with prometheus(routers) as url:
            service = Service(api, namespace)
            operator = api.replica("a", namespace, WEFT_PROMETHEUS_URL=url).start()
            service.ask(2)
            _until(service, "the first plan", lambda: service.is_on(2))

            routers.blind = True  # so that it is not analyzed before the canary was observed
            service.ask(4)
            _until(service, "the canary of the bad plan", lambda: service.has_canary(4))
            operator.kill()
            api.replica("a", namespace, WEFT_PROMETHEUS_URL=url).start()
            routers.blind = False
            _until(service, "the bad plan to be undone", lambda: service.is_on(2))
            told = "P2x1 D4x1 failed its canary: 0.0% of its 200 rounds met the SLO, and 100.0%"
            _until(service, "the reason", lambda: service.says("Planned")[0] == "RolledBack")
            _until(service, "what was seen", lambda: told in service.says("Planned")[1])

            service.ask(8)
            _until(service, "a good plan to be promoted", lambda: service.is_on(8))
            assert service.says("Planned")[0] != "RolledBack"
            _until(service, "events", lambda: {"CanaryRunning", "CanaryFailed"} <= service.events())
    finally:
        api.heal()
