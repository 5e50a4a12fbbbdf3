"""Gateways as pods of a real cluster: one address for many services, and endpoint pickers that a real Envoy asks."""

import asyncio
import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from weft_e2e import kube
from weft_e2e.checks import check_condition, check_ready, check_session_served
from weft_e2e.checks.sessions import expected_reply
from weft_e2e.cluster import Cluster
from weft_e2e.cluster.forward import cluster_ip
from weft_e2e.demo.settings import RELEASE, SYSTEM_NAMESPACE
from weft_e2e.kube import Object
from weft_e2e.metrics import growth, parse
from weft_e2e.replay.client import Target
from weft_e2e.scenarios.gateways import change_release, gateway_kinds, release_restored
from weft_e2e.scenarios.installed import Installed
from weft_e2e.scenarios.manifests import changed, small_service
from weft_e2e.scenarios.resting import AFTER_S, ask, models, resting_service
from weft_e2e.service import HTTP_PORT, ROUTER_PORT, Service
from weft_e2e.waiting import until
from weft_e2e_tests.test_service_cluster import READY_S, applied, apply
from weft_router_tests.envoy import Envoy, Route

# A guard against a test that hangs: every wait has a deadline of its own, and they add up to less.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900, func_only=True)]

GATEWAY = f"{RELEASE}-gateway"
PICKER_PORT = 9002
ALWAYS, RESTING = "always-there", "sometimes-there"
"""The names by which clients ask for the models of two services."""
WORDS, TOKENS = "Tell me what you did while nobody asked.", 8
COMPILED = "\nweft_router_compiled 1.0\n"
ROUNDS = "weft_router_rounds_total"


@dataclass(frozen=True, slots=True)
class Behind:
    """Two services behind a gateway, of which one has been asked once and then no more."""

    url: str
    """The gateway's address."""
    always: Service
    resting: Service

    def target(self, model: str) -> Target:
        return Target(url=self.url, model=model, run=f"{secrets.token_hex(2)}-")


@pytest.fixture(scope="module")
def local(weft: Installed) -> Iterator[Cluster]:
    """Give a cluster whose release has a gateway and may make routes; it is as it was afterwards."""
    if weft.local is None:
        pytest.skip("the release of a cluster of your own is left as it is")
    with gateway_kinds(weft.kube), release_restored(weft.kube):
        values = ("--set", "gateway.enabled=true", "--set", "operator.gatewayApi=true")
        change_release(weft.kube, "--reuse-values", *values)
        yield weft.local


@pytest.fixture(scope="module")
def behind(weft: Installed, local: Cluster) -> Iterator[Behind]:
    """Give services behind the gateway. The module's other tests are the time that one of them has to get idle."""
    namespace = f"e2e-gateway-{secrets.token_hex(2)}"
    weft.kube.kubectl("create", "namespace", namespace)
    manifests = (
        changed(renamed(small_service("always"), ALWAYS), "spec.model.aliases", ["gpt-4"]),
        renamed(resting_service(), RESTING),
    )
    try:
        always, resting = (apply(weft, namespace, manifest) for manifest in manifests)
        for service in (always, resting):
            check_ready(service, timeout_s=READY_S)
        with local.host_forward(SYSTEM_NAMESPACE, GATEWAY, HTTP_PORT) as url:
            found = Behind(url, always, resting)
            first = ask(found.target(RESTING), WORDS, tokens=TOKENS)
            assert first.status == 200, first
            yield found
    finally:
        weft.kube.kubectl("delete", "namespace", namespace, "--wait=false")


def renamed(manifest: Object, served: str) -> Object:
    """Return a manifest whose model has another name for clients."""
    return changed(manifest, "spec.model.servedName", served)


def test_one_address_lists_the_models_of_all_services_and_serves_them(weft: Installed, behind: Behind) -> None:
    """It was there before the services, and finds them by watching."""
    pods = system_pages(weft, "gateway")
    assert len(pods) == 2
    assert all(COMPILED in page for page in pods.values())
    assert set(models(behind.target(ALWAYS))) >= {ALWAYS, "gpt-4", RESTING}

    before = behind.always.metrics_pages()
    for name in (ALWAYS, "gpt-4"):
        asyncio.run(check_session_served(behind.target(name), deadline_s=60))
    grown = growth(before, behind.always.metrics_pages())
    assert grown.total(ROUNDS, phase="later") == 6, "each round came to the service of its name, and as one session"

    unknown = ask(behind.target("nobody"), WORDS)
    assert unknown.status == 404
    assert ALWAYS in unknown.text, "the message lists what there is"


@pytest.mark.usefixtures("behind")
def test_an_envoy_in_the_cluster_asks_the_picker_and_goes_to_its_worker(
    weft: Installed, local: Cluster, namespace: str, tmp_path: Path
) -> None:
    """Route and pool are admitted by the definitions of their projects."""
    gateway = {"parentRefs": [{"name": "inference", "namespace": SYSTEM_NAMESPACE}], "mode": "endpointPicker"}
    service = applied(weft, namespace, changed(small_service(decode=(2, 2)), "spec.gateway", gateway))
    assert [kube.pod_ready(pod) for pod in service.pods("picker")] == [True]
    for kind in ("httproutes.gateway.networking.k8s.io", "inferencepools.inference.networking.k8s.io"):
        assert kube.get(weft.kube, kind, service.name, namespace=namespace) is not None, kind

    pages = service.metrics_pages()
    (picker,) = (name for name in pages if name.startswith(f"{service.name}-picker-"))
    assert COMPILED in pages[picker]
    with envoy(local, service, tmp_path) as url:
        target = Target(url=url, model=service.object()["spec"]["model"]["name"])
        transcript = asyncio.run(check_session_served(target, deadline_s=60))
    (worker,) = {record.worker for record in transcript.records}
    names = [pod["metadata"]["name"] for pod in service.pods("decode")]
    assert f"{worker}-0" in names, "a session stays where its KV is"
    after = service.metrics_pages()
    assert growth(pages, after).total(ROUNDS) == len(transcript.records)
    bound = {name: sessions(after[name]) for name in (picker, *coordinators(service))}
    assert bound == {name: float(name == picker) for name in bound}, "the picker has bound the session"

    without_picker(weft, service)
    check_ready(service, timeout_s=READY_S)
    until(lambda: not service.pods("picker"), what="the end of the picker pods", timeout_s=60)
    for kind in ("httproutes.gateway.networking.k8s.io", "inferencepools.inference.networking.k8s.io"):
        assert kube.get(weft.kube, kind, service.name, namespace=namespace) is None, kind


def test_a_service_at_zero_is_woken_by_a_request_to_the_gateway(behind: Behind) -> None:
    resting = behind.resting
    check_condition(resting, "Ready", "True", {"ScaledToZero"}, timeout_s=2 * AFTER_S + 60)
    until(lambda: not resting.worker_uids(), what="no worker pods", timeout_s=60)
    assert RESTING in models(behind.target(RESTING)), "it is listed all the same"
    reply = ask(behind.target(RESTING), WORDS, tokens=TOKENS)
    assert reply.status == 200, reply
    assert reply.text == expected_reply([{"role": "user", "content": WORDS}], TOKENS)
    check_ready(resting, timeout_s=READY_S)


@contextmanager
def envoy(local: Cluster, service: Service, folder: Path) -> Iterator[str]:
    """Run an Envoy in the network of the cluster that asks the pickers of a service; yield its URL."""
    picker = f"{cluster_ip(local.kubeconfig, service.namespace, f'{service.name}-picker')}:{PICKER_PORT}"
    made = Envoy(folder, [Route(service.name, picker)], run_by=local.in_network())
    made.spawn()
    try:
        with local.forward_to("127.0.0.1", made.port) as url:
            until(lambda: lists_models(url), what="an answer through Envoy", timeout_s=60, last=lambda: made.said)
            yield url
    finally:
        made.close()


def lists_models(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as reply:  # noqa: S310 - loopback
            return bool(json.load(reply)["data"])
    except (OSError, urllib.error.URLError):
        return False


def without_picker(weft: Installed, service: Service) -> None:
    """Take the gateway out of a service's spec."""
    patch = json.dumps([{"op": "remove", "path": "/spec/gateway"}])
    weft.kube.kubectl("patch", "dis", service.name, "-n", service.namespace, "--type=json", "-p", patch)


def coordinators(service: Service) -> list[str]:
    return [pod["metadata"]["name"] for pod in service.pods("coordinator")]


def sessions(page: str) -> float:
    """Return how many sessions a process remembers, by its metrics page."""
    return sum(value for (name, _), value in parse(page).samples.items() if name == "weft_router_sessions")


def system_pages(weft: Installed, component: str) -> dict[str, str]:
    """Return the metrics pages of the pods of a part of Weft itself."""
    selector = f"app.kubernetes.io/component={component}"
    pods = kube.items(weft.kube, "pods", namespace=SYSTEM_NAMESPACE, selector=selector)
    names = [pod["metadata"]["name"] for pod in pods]
    paths = {name: f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods/{name}:{ROUTER_PORT}/proxy/metrics" for name in names}
    return {name: kube.read(weft.kube, "get", "--raw", path, timeout=20) for name, path in paths.items()}
