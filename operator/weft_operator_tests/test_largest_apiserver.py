"""The largest services on a real API server: admitted within CEL's budget and in seconds, as is what they lead to."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.client import ApiClient, Configuration

from weft_e2e.cluster.bare import ADMIN, Bare, bare_cluster
from weft_operator.api.objects import Manifest, ServiceKey
from weft_operator.api.spec_size import MAX_SPEC_BYTES
from weft_operator.kube.apply import write_status
from weft_operator.kube.client import KubeClient
from weft_operator.render.plan_summary import MAX_MESSAGE
from weft_operator.status.reasons.catalogue import CONDITIONS
from weft_operator_tests.cluster import Kube
from weft_operator_tests.largest import SHAPES, largest_service, shortened
from weft_operator_tests.programs import program
from weft_operator_tests.samples import rendered, rendering

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(180, func_only=True)]

CRDS = Path(__file__).parents[2] / "crds"
CLIENT_SIDE_BYTES = 262_144
"""What annotations of an object may have together; ``kubectl apply`` keeps the whole manifest in one."""
PATIENCE_S = 30.0
"""For an answer of the API server, which has itself 60 s for it; it takes two on an idle machine."""
DIS = "disagginferenceservices"
OTHERS = ("ComputeDomain", "HTTPRoute", "InferencePool", "PeerAuthentication", "PodGroup")
"""Kinds that this API server does not have."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    """Give an API server with the definitions and no nodes."""
    program("kubernetes")
    with bare_cluster(tmp_path_factory.mktemp("largest")) as running:
        kube = Kube(running.kubeconfig())
        kube.run("apply", "--server-side", "-f", str(CRDS))
        kube.await_definitions(CRDS)
        yield running


@pytest.fixture
def kube(bare: Bare) -> Iterator[Kube]:
    found = Kube(bare.kubeconfig())
    yield found
    found.run("delete", DIS, "--all")


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_the_largest_service_is_admitted_and_changed_within_seconds(bare: Bare, kube: Kube, shape: str) -> None:
    body = largest_service(shape)
    name = body["metadata"]["name"]
    began = time.monotonic()
    kube.run("apply", "--server-side", "-f", "-", stdin=json.dumps(body))
    admitted = time.monotonic()
    body["spec"]["slo"]["attainment"] = 0.5
    kube.run("apply", "--server-side", "-f", "-", stdin=json.dumps(body))
    changed = time.monotonic()
    assert max(admitted - began, changed - admitted) < PATIENCE_S
    # The operator has to say beside it that it is too large.
    api = client(bare)
    key = ServiceKey("default", name)
    stored = json.loads(kube.run("get", DIS, name, "-o", "json"))
    write_status(api, key, full_status(), version=stored["metadata"]["resourceVersion"])
    told = json.loads(kube.run("get", DIS, name, "-o", "json"))["status"]["conditions"]
    assert len(told) == len(CONDITIONS)


def test_what_is_made_of_the_largest_spec_that_may_be_is_admitted(kube: Kube) -> None:
    """The ConfigMaps of the plan and the router, the groups with their pod templates, and the workers' StatefulSets."""
    body = shortened(largest_service("histogram"), MAX_SPEC_BYTES)
    objects = [item for item in rendered(rendering(body)) if item["kind"] not in OTHERS]
    kinds = {item["kind"] for item in objects}
    assert {"ConfigMap", "ControllerRevision", "Deployment", "StatefulSet", "WorkerGroup"} <= kinds | {
        "ControllerRevision"
    }
    listed = {"apiVersion": "v1", "kind": "List", "items": objects}
    taken = kube.run("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=json.dumps(listed))
    assert len(taken.splitlines()) == len(objects)


def test_client_side_apply_takes_what_fits_into_its_annotation_and_server_side_apply_more(kube: Kube) -> None:
    body = shortened(largest_service("quantiles"), MAX_SPEC_BYTES)
    done = kube.attempt("apply", "-f", "-", stdin=json.dumps(body))
    assert done.returncode != 0
    assert "metadata.annotations: Too long" in done.stderr
    kube.run("apply", "--server-side", "-f", "-", stdin=json.dumps(body))
    kube.run("delete", DIS, "--all")
    smaller = shortened(body, CLIENT_SIDE_BYTES - 2_000)
    kube.run("apply", "-f", "-", stdin=json.dumps(smaller))
    smaller["spec"]["slo"]["attainment"] = 0.5
    kube.run("apply", "-f", "-", stdin=json.dumps(smaller))


def full_status() -> Manifest:
    """Return a status with every condition and the longest of messages."""
    return {
        "observedGeneration": 2,
        "conditions": [
            {
                "type": kind,
                "status": "False",
                "reason": "InvalidSpec",
                "message": "a" * MAX_MESSAGE,
                "observedGeneration": 2,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
            for kind in CONDITIONS
        ],
    }


def client(bare: Bare) -> KubeClient:
    settings = Configuration()
    settings.host, settings.ssl_ca_cert = bare.url, str(bare.authority)
    settings.api_key = {"authorization": f"Bearer {ADMIN}"}
    return KubeClient(ApiClient(configuration=settings))
