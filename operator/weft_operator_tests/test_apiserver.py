"""Requests to the API server, and its answers as errors that say what to do next."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration

from weft_operator.api.capacity import Pool
from weft_operator.api.objects import Manifest, ObjectKey, ServiceKey
from weft_operator.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    StalledError,
    TransientError,
    WaitingError,
)
from weft_operator.kube import client, observe
from weft_operator.kube.apply import carry_out, post_event, write_status
from weft_operator.kube.client import KubeClient
from weft_operator.kube.diff import Apply, Delete
from weft_operator.kube.events import Event
from weft_operator.kube.node_inventory import NodeInventory
from weft_operator.workers.node_capacity import NodeCapacity
from weft_operator_tests.samples import KEY

pytestmark = pytest.mark.component

CONFIG = ObjectKey("v1", "ConfigMap", "default", "a")
ROOT = "/api/v1/namespaces/default"
SERVICE = "/apis/weft.dev/v1alpha1/namespaces/default/disagginferenceservices/demo"
KINDS = (
    "weft.dev/v1alpha1/workergroups",
    "apps/v1/statefulsets",
    "apps/v1/deployments",
    "apps/v1/controllerrevisions",
    "networking.k8s.io/v1/networkpolicies",
)


class Scripted:
    """An HTTP server that answers from a table of (method, path) and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], tuple[int, Any, dict[str, str]]] = {}
        self.asked: list[tuple[str, str, Any, str]] = []
        self.connections = 0
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                script.connections += 1
                super().setup()

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                script.asked.append((self.command, self.path, body, self.headers.get("Content-Type", "")))
                path = self.path.partition("?")[0]
                missing: tuple[int, Any, dict[str, str]] = (404, {"message": "not found"}, {})
                status, reply, headers = script.answers.get((self.command, path), missing)
                raw = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815 - names of the base class

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        settings = Configuration()
        settings.host = f"http://127.0.0.1:{self._server.server_port}"
        self._client = ApiClient(configuration=settings)
        self.api = KubeClient(self._client)

    def on(self, method: str, path: str, reply: Any, *, status: int = 200, **headers: str) -> None:
        self.answers[method, path] = (status, reply, {k.replace("_", "-"): v for k, v in headers.items()})

    def close(self) -> None:
        self._client.rest_client.pool_manager.clear()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


@pytest.fixture
def server() -> Iterator[Scripted]:
    scripted = Scripted()
    yield scripted
    scripted.close()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidError),
        (401, ForbiddenError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (410, TransientError),
        (422, InvalidError),
        (429, TransientError),
        (500, TransientError),
        (503, TransientError),
    ],
)
def test_answers_become_errors_of_our_own(server: Scripted, status: int, kind: type[ApiError]) -> None:
    server.on("GET", f"{ROOT}/configmaps/a", {"message": "why not"}, status=status, Retry_After="7")
    with pytest.raises(ApiError, match="why not") as caught:
        server.api.get(CONFIG)
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.retry_after) == (status, 7.0)
    assert server.api.stats.requests == {("GET", "configmaps", status): 1}


def test_a_watch_that_is_refused_names_the_right_to_watch(server: Scripted) -> None:
    server.on("GET", f"{ROOT}/pods", b"")
    server.api.try_watch("v1", "Pod", namespace="default")
    assert "watch=true" in server.asked[0][1]
    server.on("GET", f"{ROOT}/pods", {"message": 'cannot watch resource "pods"'}, status=403)
    with pytest.raises(ForbiddenError) as caught:
        server.api.try_watch("v1", "Pod", namespace="default")
    assert str(caught.value.right) == "watch pods in namespace default"
    assert {str(right) for right in server.api.stats.missing_rights} == {"watch pods in namespace default"}


def test_an_answer_that_is_not_json_is_an_error_too(server: Scripted) -> None:
    server.on("GET", f"{ROOT}/configmaps/a", b"<html>bad gateway</html>", status=502)
    with pytest.raises(TransientError, match="502"):
        server.api.get(CONFIG)


def test_no_answer_is_transient(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "READ_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = Configuration()
        settings.host = f"http://127.0.0.1:{silent.getsockname()[1]}"
        connection = ApiClient(configuration=settings)
        with pytest.raises(TransientError, match="no answer from the API server"):
            KubeClient(connection).get(CONFIG)
        connection.rest_client.pool_manager.clear()


def test_apply_is_server_side_with_our_field_manager(server: Scripted) -> None:
    server.on("PATCH", f"{ROOT}/configmaps/a", {})
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}}
    server.api.apply(body)
    method, path, sent, content = server.asked[0]
    assert (method, content) == ("PATCH", "application/apply-patch+yaml")
    assert path == f"{ROOT}/configmaps/a?fieldManager=weft-operator&force=true"
    assert sent == body


def test_deletes_are_by_uid_and_repeatable(server: Scripted) -> None:
    action = Delete(CONFIG, uid="u-1", reason="")
    carry_out(server.api, action, owner_uid="o")  # 404: gone already
    server.on("DELETE", f"{ROOT}/configmaps/a", {"message": "uid"}, status=409)
    carry_out(server.api, action, owner_uid="o")  # another object of this name
    assert [asked[2]["preconditions"] for asked in server.asked] == [{"uid": "u-1"}] * 2


def owned(uid: str, kind: str = "DisaggInferenceService") -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "a",
            "namespace": "default",
            "uid": "x",
            "labels": {"weft.dev/service": "demo"},
            "ownerReferences": [
                {"controller": True, "uid": uid, "kind": kind, "apiVersion": "weft.dev/v1alpha1", "name": "demo"}
            ],
        },
    }


def test_only_our_own_objects_are_taken_over(server: Scripted) -> None:
    fresh = Apply(owned("o"), reason="missing", fresh=True)
    server.on("GET", SERVICE, {"metadata": {"uid": "o"}})
    server.on("PATCH", f"{ROOT}/configmaps/a", {})
    carry_out(server.api, fresh, owner_uid="o")
    server.on("GET", f"{ROOT}/configmaps/a", owned("o"))
    carry_out(server.api, fresh, owner_uid="o")
    for foreign in (owned("other"), {"metadata": {"name": "a"}}):
        server.on("GET", f"{ROOT}/configmaps/a", foreign)
        with pytest.raises(StalledError, match="ConfigMap default/a exists and was not created for this service"):
            carry_out(server.api, fresh, owner_uid="o")
    assert sum(asked[0] == "PATCH" for asked in server.asked) == 2


@pytest.mark.parametrize(
    "owner", [None, {"metadata": {"uid": "another"}}, {"metadata": {"uid": "o", "deletionTimestamp": "2026-01-01"}}]
)
def test_nothing_is_made_for_a_service_that_was_deleted_since_the_pass_began(
    server: Scripted, owner: Manifest | None
) -> None:
    if owner is not None:
        server.on("GET", SERVICE, owner)
    server.on("PATCH", f"{ROOT}/configmaps/a", {})
    with pytest.raises(WaitingError, match="its DisaggInferenceService was deleted"):
        carry_out(server.api, Apply(owned("o"), reason="missing", fresh=True), owner_uid="o")
    assert [asked[:2] for asked in server.asked] == [("GET", f"{ROOT}/configmaps/a"), ("GET", SERVICE)], (
        "the owner is looked for after what is missing: it may have gone in between"
    )


def test_an_object_that_was_deleted_since_it_was_seen_is_not_recreated(server: Scripted) -> None:
    changed = Apply(owned("o"), reason="changed", fresh=False, uid="u-1")
    server.on("PATCH", f"{ROOT}/configmaps/a", {})
    carry_out(server.api, changed, owner_uid="o")
    assert server.asked[0][2]["metadata"]["uid"] == "u-1"
    for status, why in ((409, "uid mismatch: no existing object was found"), (422, "metadata.uid: Invalid value")):
        server.on("PATCH", f"{ROOT}/configmaps/a", {"message": why}, status=status)
        with pytest.raises(WaitingError, match="ConfigMap default/a was changed or deleted") as caught:
            carry_out(server.api, changed, owner_uid="o")
        assert caught.value.retry_after > 0
    server.on("PATCH", f"{ROOT}/configmaps/a", {"message": "spec.replicas: Invalid value"}, status=422)
    with pytest.raises(InvalidError):
        carry_out(server.api, changed, owner_uid="o")


def test_the_status_of_a_service_that_went_is_not_missed(server: Scripted) -> None:
    write_status(server.api, KEY, {"conditions": []}, version="7")
    assert server.asked[0][2]["metadata"]["resourceVersion"] == "7"
    assert server.asked[0][1].startswith(
        "/apis/weft.dev/v1alpha1/namespaces/default/disagginferenceservices/demo/status?"
    )


def test_a_status_is_not_written_onto_a_service_that_was_recreated(server: Scripted) -> None:
    path = "/apis/weft.dev/v1alpha1/namespaces/default/disagginferenceservices/demo/status"
    server.on("PATCH", path, {"message": "the object has been modified"}, status=409)
    with pytest.raises(WaitingError, match="default/demo changed during the pass") as caught:
        write_status(server.api, KEY, {"conditions": []}, version="7")
    assert caught.value.retry_after > 0


def test_an_event_that_was_posted_is_not_posted_again(server: Scripted) -> None:
    event = Event(type="Normal", reason="Serving", message="all is well", origin="1")
    server.on("POST", f"{ROOT}/events", {"message": "exists"}, status=409)
    post_event(server.api, KEY, "uid", event, now="2026-01-01T00:00:00Z")
    (asked,) = server.asked
    assert asked[2]["metadata"]["name"] == event.name("demo", "uid")
    assert asked[2]["involvedObject"]["uid"] == "uid"


def test_a_service_is_observed_with_all_that_is_its_own(server: Scripted) -> None:
    service = {"metadata": {"name": "demo", "namespace": "default", "uid": "o"}, "spec": {}}
    server.on("GET", "/apis/weft.dev/v1alpha1/namespaces/default/disagginferenceservices/demo", service)
    for path in (*KINDS, "policy/v1/poddisruptionbudgets"):
        group, version, plural = path.split("/")
        server.on("GET", f"/apis/{group}/{version}/namespaces/default/{plural}", {"items": []})
    for plural in ("services", "serviceaccounts", "pods"):
        server.on("GET", f"{ROOT}/{plural}", {"items": []})
    former, foreign = owned("before"), owned("o", kind="Deployment")
    server.on("GET", f"{ROOT}/configmaps", {"items": [owned("o"), former, foreign]})
    found = observe.observe(server.api, KEY)
    assert found is not None
    assert found.owned == (owned("o"),)
    assert [key.name for key in found.former] == ["a"]
    assert all("labelSelector=weft.dev%2Fservice%3Ddemo" in asked[1] for asked in server.asked if "?" in asked[1])
    secrets = [asked[1] for asked in server.asked if "secrets" in asked[1]]
    assert secrets == [f"{ROOT}/secrets/demo-token"], "Secrets are read by name"


def lone_service(server: Scripted) -> Manifest:
    """Serve a service without any object of its own; return it, to be changed."""
    service: Manifest = {"metadata": {"name": "demo", "namespace": "default", "uid": "o"}}
    server.on("GET", "/apis/weft.dev/v1alpha1/namespaces/default/disagginferenceservices/demo", service)
    for path in (*KINDS, "policy/v1/poddisruptionbudgets"):
        group, version, plural = path.split("/")
        server.on("GET", f"/apis/{group}/{version}/namespaces/default/{plural}", {"items": []})
    for plural in ("services", "serviceaccounts", "pods", "configmaps"):
        server.on("GET", f"{ROOT}/{plural}", {"items": []})
    return service


def test_what_fills_a_cache_is_read_where_there_is_one_or_may_be(server: Scripted) -> None:
    service = lone_service(server)
    volumes = [{"name": "model", "persistentVolumeClaim": {"claimName": "before"}}]
    job = {**owned("o"), "kind": "Job", "spec": {"template": {"spec": {"volumes": volumes}}}}
    job["metadata"]["labels"] = {"app.kubernetes.io/component": "weights"}
    server.on("GET", "/apis/batch/v1/namespaces/default/jobs", {"items": [job, owned("o")]})
    for name in ("demo-weights", "before"):
        server.on("GET", f"{ROOT}/persistentvolumeclaims/{name}", {**owned("o"), "kind": "PersistentVolumeClaim"})

    def seen(spec: Manifest, conditions: list[Manifest]) -> tuple[list[str], int]:
        service["spec"], service["status"] = spec, {"conditions": conditions}
        found = observe.observe(server.api, KEY)
        assert found is not None
        return sorted(found.claims), len(found.of_kind("Job"))

    cached = {"model": {"source": {"s3": {"cache": {"claim": {"existingClaim": "mine"}}}}}}
    assert seen({}, []) == ([], 0)
    assert not [asked for asked in server.asked if "jobs" in asked[1] or "persistentvolumeclaims" in asked[1]]
    assert seen(cached, []) == (["before", "demo-weights"], 1)
    assert seen({}, [{"type": "ModelReady", "status": "True"}]) == (["before", "demo-weights"], 1)
    asked = {path.rpartition("/")[2] for _, path, *_ in server.asked if "persistentvolumeclaims" in path}
    assert asked == {"before", "demo-weights", "mine"}, "each by its name"


def test_the_claim_of_a_tier_is_read_where_one_is_named(server: Scripted) -> None:
    service = lone_service(server)

    def seen(disk: Manifest) -> object:
        service["spec"] = {"kvCache": {"cpu": {"size": "1Gi"}, "disk": disk}}
        found = observe.observe(server.api, KEY)
        assert found is not None
        return found.tier_claims

    assert seen({"size": "1Gi"}) == {}
    assert not [asked for asked in server.asked if "persistentvolumeclaims" in asked[1]]
    assert seen({"size": "1Gi", "claim": "kv"}) == {"kv": None}, "it does not exist"
    claim = {"metadata": {"name": "kv"}, "status": {"phase": "Bound"}}
    server.on("GET", f"{ROOT}/persistentvolumeclaims/kv", claim)
    assert seen({"size": "1Gi", "claim": "kv"}) == {"kv": claim}
    server.on("GET", f"{ROOT}/persistentvolumeclaims/kv", {"message": "no"}, status=403)
    assert seen({"size": "1Gi", "claim": "kv"}) == {}, "nothing is known of it"


@pytest.mark.parametrize(
    ("data", "found"),
    [({"all": "c2stMQ=="}, True), ({"all": ""}, False), ({"all": "ICA="}, False), ({"other": "c2stMQ=="}, False)],
)
def test_a_secret_counts_only_when_it_holds_something(server: Scripted, data: dict[str, str], found: bool) -> None:
    ref = {"name": "keys", "key": "all"}
    service = lone_service(server)
    secret = {"metadata": {"name": "keys"}, "type": "weft.dev/credentials", "data": data}
    server.on("GET", f"{ROOT}/secrets/keys", secret)

    def seen(spec: Manifest) -> tuple[bool, bool]:
        service["spec"] = spec
        observed = observe.observe(server.api, KEY)
        assert observed is not None
        return observed.api_key_found, observed.model_token_found

    assert seen({"coordinator": {"auth": {"apiKeySecretRef": ref}}}) == (found, True)
    assert seen({"model": {"source": {"huggingFace": {"tokenSecretRef": ref}}}}) == (True, found)


def test_many_objects_are_listed_in_parts(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [{"items": [1, 2], "metadata": {"continue": "here"}}, {"items": [3], "metadata": {}}]
    asked = []

    def request(*_what: str, query: dict[str, str], **_more: object) -> object:
        asked.append(dict(query))
        return parts[len(asked) - 1]

    monkeypatch.setattr(server.api, "_request", request)
    found: list[object] = []
    for page in server.api.pages("v1", "Pod", fields="a=b", page_size=2):
        found += page
        assert len(found) == len(asked) + 1, "one part at a time"
    assert found == [1, 2, 3]
    assert asked == [{"limit": "2", "fieldSelector": "a=b"}, {"limit": "2", "fieldSelector": "a=b", "continue": "here"}]


def test_capacity_is_read_from_nodes_and_all_pods(server: Scripted) -> None:
    def node(name: str, gpus: str) -> Manifest:
        return {"metadata": {"name": name}, "status": {"allocatable": {"nvidia.com/gpu": gpus}}}

    def pod(node: str) -> Manifest:
        container = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
        return {"metadata": {"namespace": "other"}, "spec": {"nodeName": node, "containers": [container]}}

    pools = [Pool(name="a", gpu_type="nvidia-h20")]
    server.on("GET", "/api/v1/nodes", {"items": [node("x", "8"), node("y", "4")]})
    server.on("GET", "/api/v1/pods", {"items": [pod("y")]})
    now = 0.0
    machines = NodeInventory(server.api, clock=lambda: now)
    assert machines.capacity(pools, KEY) == NodeCapacity(total=12, free={"a": (8, 2)})
    asked = len(server.asked)
    now += 1.0
    assert machines.capacity(pools, ServiceKey("llm", "other")) == NodeCapacity(total=12, free={"a": (8, 2)})
    assert len(server.asked) == asked, "services that plan together share a listing"
    assert any("fieldSelector=status.phase%21%3DSucceeded" in asked[1] for asked in server.asked)
    server.on("GET", "/api/v1/pods", {"message": "no"}, status=403)
    now += 3.0
    blind = machines.capacity(pools, KEY)
    assert blind is not None
    assert blind.free == {"a": (8, 4)}
    assert "may not be listed" in blind.notes[0]
    server.on("GET", "/api/v1/nodes", {"message": "no"}, status=403)
    now += 3.0
    assert machines.capacity(pools, KEY) is None


def test_the_memory_of_nodes_is_listed_once_a_minute_and_unknown_without_the_right(server: Scripted) -> None:
    def node(name: str, memory: str) -> Manifest:
        return {"metadata": {"name": name}, "status": {"allocatable": {"memory": memory}}}

    pools = [Pool(name="a", gpu_type="nvidia-h20"), Pool(name="b", gpu_type="nvidia-h20", node_selector={"x": "y"})]
    server.on("GET", "/api/v1/nodes", {"items": [node("x", "64Gi"), node("y", "1Gi")]})
    now = 0.0
    machines = NodeInventory(server.api, clock=lambda: now)
    assert machines.memory(pools) == {"a": 64 * 2**30}
    now += 59.0
    assert machines.memory(pools) == {"a": 64 * 2**30}
    assert [asked[1] for asked in server.asked] == ["/api/v1/nodes"], "no pod is listed for it"
    server.on("GET", "/api/v1/nodes", {"message": "no"}, status=403)
    now += 2.0
    assert machines.memory(pools) == {}
