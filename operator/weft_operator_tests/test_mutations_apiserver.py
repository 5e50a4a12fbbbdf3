"""A6 and A7 on a real API server: an operator process carries out generated changes of services, and undoes them."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from weft_operator.api.objects import HASH_ANNOTATION, Manifest
from weft_operator.commands.manifest_checks import service_messages
from weft_operator_tests.api import RealApi, small_service
from weft_operator_tests.cluster import condition, wait_for
from weft_operator_tests.mutations import Mutation, mutations
from weft_operator_tests.replicas import RESYNC_S
from weft_operator_tests.valid import REMOVED, changed

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300, func_only=True)]

SERVICES = 4
CHANGES = 4
CONVERGE_S = 120.0
CHILDREN = (
    "api/v1/configmaps",
    "api/v1/services",
    "apis/apps/v1/deployments",
    "apis/apps/v1/statefulsets",
    "apis/networking.k8s.io/v1/networkpolicies",
    "apis/policy/v1/poddisruptionbudgets",
    "apis/weft.dev/v1alpha1/workergroups",
)
SERVER_SIDE = ("generation", "resourceVersion", "uid", "creationTimestamp", "managedFields")


@pytest.fixture(autouse=True)
def ended(api: RealApi) -> Iterator[None]:
    """End the operators of each test."""
    yield
    api.heal()


@dataclass
class Held:
    """One service and what is done to it."""

    api: RealApi
    namespace: str
    name: str

    def seed(self) -> Manifest:
        return small_service(self.namespace, self.name)

    def put(self, body: Manifest) -> None:
        """Apply a service as its user does."""
        path = f"apis/weft.dev/v1alpha1/namespaces/{self.namespace}/disagginferenceservices/{self.name}"
        self.api.send("PATCH", f"{path}?fieldManager=user&force=true", body)

    def service(self) -> Manifest:
        found = self.api.read(f"apis/weft.dev/v1alpha1/namespaces/{self.namespace}/disagginferenceservices/{self.name}")
        assert found is not None
        return found

    def children(self) -> dict[str, Manifest]:
        """Return all that belongs to the service, as the API server has it."""
        found = {}
        for kind in CHILDREN:
            for item in self.api.items(kind, self.namespace):
                if (item["metadata"].get("labels") or {}).get("weft.dev/service") == self.name:
                    found[f"{kind}/{item['metadata']['name']}"] = item
        return found

    def converge(self) -> Manifest:
        """Wait until the operator has seen the spec and there is nothing left to do for it; return the service."""

        def rests() -> Manifest:
            body = self.service()
            if (body.get("status") or {}).get("observedGeneration") != body["metadata"]["generation"]:
                return {}
            if condition(body, "Planned")["status"] == "False":
                return body
            done = condition(body, "Progressing")["status"] == "False" and condition(body, "Ready")["status"] == "True"
            return body if done else {}

        return wait_for(f"rest of {self.name}", rests, timeout=CONVERGE_S)

    def hold(self, number: int, mutation: Mutation) -> None:
        """Carry out one change and undo it."""
        before = self.children()
        value: Any = mutation.value
        self.put(changed(self.seed(), mutation.path, value))
        body = self.converge()
        where = f"{number}: {mutation.name}"
        if condition(body, "Planned")["status"] == "False":
            assert "spec" in condition(body, "Planned")["message"], where
            assert versions(self.children()) == versions(before), where
        there = versions(self.children())
        time.sleep(2 * RESYNC_S + 1)  # two more passes, which must write nothing
        assert versions(self.children()) == there, where
        self.put(self.seed())
        self.converge()
        was = masked(before)
        wait_for(f"{where}: what was before", lambda: masked(self.children()) == was, timeout=CONVERGE_S)


def versions(children: dict[str, Manifest]) -> dict[str, int]:
    """Return the generations of objects, or what they hold where they have none."""
    return {
        name: item["metadata"].get("generation") or hash(json.dumps(item.get("data"), sort_keys=True))
        for name, item in children.items()
    }


def masked(children: dict[str, Manifest]) -> dict[str, Manifest]:
    """Return objects without what differs between two that are alike."""
    found = {}
    for name, item in children.items():
        metadata = {key: value for key, value in item["metadata"].items() if key not in SERVER_SIDE}
        owners = [{**owner, "uid": ""} for owner in metadata.get("ownerReferences", ())]
        notes = {
            key: value
            for key, value in (metadata.get("annotations") or {}).items()
            if key not in (HASH_ANNOTATION, "deployment.kubernetes.io/revision")
        }
        metadata |= {"ownerReferences": owners, "annotations": notes}
        found[name] = {**item, "metadata": metadata, "status": None}
    return found


def test_changes_are_carried_out_and_undone(api: RealApi) -> None:
    namespace = api.namespace()
    api.replica("a", namespace).start()
    services = [Held(api, namespace, f"demo-{number}") for number in range(SERVICES)]
    for held in services:
        held.put(held.seed())
    for held in services:
        held.converge()
    chosen = [
        mutation
        for mutation in mutations()
        if mutation.seed == "small"
        and not mutation.path.startswith(("metadata", "spec.capacity", "spec.rollout"))
        and (mutation.value is not REMOVED)
        and not service_messages(mutation.body())
    ][:CHANGES]
    assert len(chosen) == CHANGES

    def work(number: int) -> None:
        for at in range(number, CHANGES, SERVICES):
            services[number].hold(at, chosen[at])

    with ThreadPoolExecutor(SERVICES) as threads:
        for done in [threads.submit(work, number) for number in range(SERVICES)]:
            done.result()
