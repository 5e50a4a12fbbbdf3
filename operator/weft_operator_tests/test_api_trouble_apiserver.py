"""A real API server in trouble: the operator goes on living, asks little, says so, and ends where it should.

Seconds stand here for the minutes of real trouble; ``WEFT_TROUBLE_SECONDS=90`` makes them last as long.
"""

import json
import os
import time
from collections.abc import Callable, Iterator

import pytest

from weft_e2e.api_proxy import Answer, Cut, Fault, ProxiedRequest, Silence, Stale
from weft_operator.api.objects import Manifest
from weft_operator_tests.api import USERS, RealApi, crowded, small_service, writes
from weft_operator_tests.cluster import condition, wait_for
from weft_operator_tests.replicas import Replica

TROUBLE_S = float(os.environ.get("WEFT_TROUBLE_SECONDS", "4"))

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300 + 4 * TROUBLE_S, func_only=True)]

IMAGE = "localhost/weft-router:absent"


@pytest.fixture(scope="module")
def replica(api: RealApi) -> Iterator[Replica]:
    """Give an operator that has carried out a service."""
    namespace = api.namespace()
    running = api.replica("a", namespace).start()
    api.kube.apply(small_service(namespace))
    wait_for("coordinator", lambda: deployment(api, running))
    yield running
    api.heal()


@pytest.fixture(autouse=True)
def clear(api: RealApi, replica: Replica) -> Iterator[None]:
    """Begin and end without faults, with the operator that was there before: it must outlive them all."""
    pid = replica.pid
    api.proxy.record.clear()
    yield
    api.proxy.fault = lambda _asked: None
    api.proxy.event = lambda _asked, _event: None
    assert replica.ready()
    assert replica.pid == pid
    assert crowded(api.proxy.record) == []


def deployment(api: RealApi, replica: Replica) -> Manifest | None:
    return api.read(f"apis/apps/v1/namespaces/{replica.namespace}/deployments/demo")


def spoil(api: RealApi, replica: Replica) -> None:
    """Change an object of the service by hand, so that there is something to write."""
    router = {"name": "router", "image": f"example.com/mine:{time.monotonic_ns()}"}
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "demo"},
        "spec": {"template": {"spec": {"containers": [router]}}},
    }
    api.send("PATCH", f"apis/apps/v1/namespaces/{replica.namespace}/deployments/demo?fieldManager=me&force=true", body)


def mended(api: RealApi, replica: Replica) -> bool:
    found = deployment(api, replica)
    return found is not None and found["spec"]["template"]["spec"]["containers"][0]["image"] == IMAGE


def faulty(api: RealApi, fault: Callable[[ProxiedRequest], Fault | None]) -> list[ProxiedRequest]:
    """Let a fault act from now on; return the list that those it met are added to."""
    met: list[ProxiedRequest] = []

    def act(asked: ProxiedRequest) -> Fault | None:
        found = fault(asked) if asked.token == USERS["a"].token else None
        if found is not None:
            met.append(asked)
        return found

    api.proxy.fault = act
    return met


@pytest.mark.parametrize(
    "fault",
    [
        Answer.refusal(429, "TooManyRequests", Retry_After="2"),
        Answer.refusal(503, "ServiceUnavailable"),
        Answer(502, {}, b"<html>bad gateway</html>"),
        Answer(200, {"Content-Type": "application/json"}, b'{"half": '),
        Cut(),
        Silence(),
    ],
    ids=["429", "503", "502", "half-an-answer", "cut", "silence"],
)
def test_an_api_server_in_trouble_is_asked_little_and_then_followed(
    api: RealApi, replica: Replica, fault: Fault
) -> None:
    met = faulty(api, lambda _asked: fault)
    spoil(api, replica)
    begun = time.monotonic()
    wait_for("the fault to be met", lambda: met, timeout=60)
    wait_for("the trouble to last", lambda: time.monotonic() > begun + TROUBLE_S, timeout=TROUBLE_S + 60)
    if not isinstance(fault, Answer) or fault.status >= 429:
        told = wait_for("the metric of it", lambda: replica.metric("weft_operator_api_failing_seconds"), timeout=60)
        assert told < TROUBLE_S + 60
    lasted = time.monotonic() - begun
    # A pass is a dozen reads, watches are some more; what counts is that nobody asks in a tight loop.
    assert len(met) < 30 + 10 * lasted
    api.proxy.fault = lambda _asked: None
    wait_for("repair afterwards", lambda: mended(api, replica), timeout=120)
    wait_for("the end of what the metric says", lambda: replica.metric("weft_operator_api_failing_seconds") == 0)


def test_after_429_nothing_is_asked_for_as_long_as_the_api_server_says(api: RealApi, replica: Replica) -> None:
    refusal = Answer.refusal(429, "TooManyRequests", Retry_After="10")
    met = faulty(api, lambda asked: refusal if asked.method != "WATCH" else None)
    spoil(api, replica)
    wait_for("refusals", lambda: met, timeout=60)
    first = met[0].at
    wait_for("three of them", lambda: time.monotonic() > first + 21, timeout=90)
    # Requests that were on their way already come within moments of the first; the next ones 10 s later.
    early = [asked.at - first for asked in met if 5 < asked.at - first < 9 and asked.path != "/api/v1/namespaces"]
    assert early == []
    api.proxy.fault = lambda _asked: None
    wait_for("repair afterwards", lambda: mended(api, replica), timeout=120)


def test_a_kind_that_may_not_be_listed_is_reported_until_it_may(api: RealApi, replica: Replica) -> None:
    def progressing() -> tuple[str, str]:
        path = f"apis/weft.dev/v1alpha1/namespaces/{replica.namespace}/disagginferenceservices/demo"
        found = condition(api.read(path) or {}, "Progressing")
        return found.get("reason", ""), found.get("message", "")

    refusal = Answer.refusal(403, "Forbidden")
    met = faulty(api, lambda asked: refusal if asked.method == "GET" and "/networkpolicies" in asked.path else None)
    spoil(api, replica)
    wait_for("the word of it", lambda: progressing()[0] == "RightMissing", timeout=120)
    assert f"may not list networkpolicies.networking.k8s.io in namespace {replica.namespace}" in progressing()[1]
    assert replica.metric('weft_operator_missing_rights{namespace="') >= 1
    assert met
    api.proxy.fault = lambda _asked: None
    wait_for("repair afterwards", lambda: mended(api, replica), timeout=120)
    wait_for("the end of the word", lambda: progressing()[0] != "RightMissing", timeout=120)


def test_a_kind_that_may_not_be_watched_is_reported_and_services_are_made_all_the_same(api: RealApi) -> None:
    namespace = api.namespace()
    refusal = Answer.refusal(403, "Forbidden")

    def fault(asked: ProxiedRequest) -> Fault | None:
        refused = asked.token == USERS["b"].token and asked.method == "WATCH" and asked.path.endswith("/pods")
        return refusal if refused else None

    api.proxy.fault = fault
    other = api.replica("b", namespace).start(ready=False)
    api.kube.apply(small_service(namespace))
    wait_for("its coordinator", lambda: deployment(api, other), timeout=120)
    wait_for("the metric of it", lambda: other.metric("weft_operator_missing_rights{") >= 1, timeout=120)
    events = f"api/v1/namespaces/{namespace}/events"

    def told() -> list[str]:
        found = (api.read(events) or {}).get("items") or ()
        return [item["message"] for item in found if item["reason"] == "RightMissing"]

    wait_for("the word of it", told, timeout=120)
    assert told()[0].startswith(f"the operator may not watch pods in namespace {namespace}; ")
    other.kill()
    api.kube.run("delete", "namespace", namespace, "--wait=false")


def test_a_storm_of_conflicts_is_met_once_a_second(api: RealApi, replica: Replica) -> None:
    conflict = Answer.refusal(409, "Conflict")
    met = faulty(api, lambda asked: conflict if asked.method == "PATCH" else None)
    begun = time.monotonic()
    while time.monotonic() < begun + TROUBLE_S:
        spoil(api, replica)  # each is an event that wakes a pass
    wait_for("conflicts", lambda: len(met) > 1, timeout=60)
    api.proxy.fault = lambda _asked: None
    wait_for("repair afterwards", lambda: mended(api, replica), timeout=120)
    assert crowded(met) == []


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}).encode(),
        json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 500, "reason": "InternalError"}}).encode(),
        json.dumps({"type": "SURPRISE", "object": {"metadata": {}}}).encode(),
        b'{"type": "ADDED", "obj',
    ],
    ids=["410", "500", "unknown", "garbage"],
)
def test_watches_that_break_restart(api: RealApi, replica: Replica, line: bytes) -> None:
    wait_for("watches", lambda: api.proxy.watches >= 5, timeout=60)
    api.proxy.send_to_watches(line)
    spoil(api, replica)
    wait_for("repair", lambda: mended(api, replica), timeout=120)
    wait_for("readiness", lambda: replica.ready(), timeout=60)
    wait_for("watches", lambda: api.proxy.watches >= 5, timeout=60)


def test_a_service_whose_events_all_got_lost_is_found(api: RealApi, replica: Replica) -> None:
    api.proxy.event = lambda _asked, _event: []
    api.kube.apply(small_service(replica.namespace, "unheard"))
    path = f"apis/apps/v1/namespaces/{replica.namespace}/deployments/unheard"
    wait_for("its coordinator", lambda: api.read(path), timeout=120)
    api.send("DELETE", f"apis/weft.dev/v1alpha1/namespaces/{replica.namespace}/disagginferenceservices/unheard")
    wait_for("its end", lambda: api.read(path) is None, timeout=120)


def test_old_answers_neither_delete_nor_double_anything(api: RealApi, replica: Replica) -> None:
    def uids() -> dict[str, str]:
        kinds = ("apis/apps/v1/statefulsets", "apis/apps/v1/deployments", "apis/weft.dev/v1alpha1/workergroups")
        items = [(kind, item["metadata"]) for kind in kinds for item in api.items(kind, replica.namespace)]
        return {f"{kind}/{metadata['name']}": metadata["uid"] for kind, metadata in items}

    wait_for("repair", lambda: mended(api, replica), timeout=120)
    before = uids()
    # Every list and read is what it was at first: before there was anything of the service.
    met = faulty(api, lambda asked: Stale() if asked.method == "GET" and "namespaces" in asked.path else None)
    spoil(api, replica)
    wait_for("old answers", lambda: len(met) > 30, timeout=120)
    api.proxy.fault = lambda _asked: None
    wait_for("repair afterwards", lambda: mended(api, replica), timeout=120)
    # What an old answer let be made for a service that is gone has no owner, and is collected.
    wait_for("the same objects as before", lambda: uids() == before, timeout=120)
    assert [asked.path for asked in writes(api.proxy.record) if asked.method == "DELETE"] == []
