"""A real API server takes rendered pods and policies, and sees no difference to a repository after a status write."""

import json
from typing import Any

import pytest
import yaml

from weft_operator.api.service import GROUP, KIND, VERSION
from weft_operator.kube.client import FIELD_MANAGER
from weft_operator.render.inputs import Rendering
from weft_operator.render.network_policies import network_policies
from weft_operator.render.objects import desired_objects
from weft_operator.status.conditions import build_status
from weft_operator_tests.cluster import Kube
from weft_operator_tests.samples import TOKEN, colocated, rendering
from weft_operator_tests.test_status import NOW, result
from weft_operator_tests.valid import (
    changed,
    front_service,
    neuron_service,
    rich_service,
    service,
    sglang_service,
    tensorrt_llm_service,
    vllm_service,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180, func_only=True)]


def with_everything() -> dict[str, Any]:
    """Return a service with claims, priority, affinity and patches."""
    body = vllm_service()
    body["spec"]["capacity"]["elastic"] = True
    body["spec"]["capacity"]["pools"][0] |= {
        "gpusFromClaims": True,
        "resourceClaims": [{"name": "gpus", "template": "gpus"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
                }
            }
        },
    }
    body["spec"]["podTemplates"] = [
        {
            "patch": {
                "spec": {
                    "runtimeClassName": "nvidia",
                    "containers": [
                        {"name": "engine", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}},
                        {"name": "exporter", "image": "registry.example.com/exporter:1"},
                    ],
                }
            }
        }
    ]
    body["spec"]["networkPolicy"] = {
        "clientsFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}, {"ipBlock": {"cidr": "fd00::/8"}}],
        "workersFrom": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "debug"}}}],
    }
    return body


CASES: dict[str, Rendering] = {
    "mock": rendering(service()),
    "vllm": rendering(vllm_service()),
    "vllm-colocated": colocated(vllm_service()),
    "sglang": rendering(sglang_service()),
    "neuron": rendering(neuron_service()),
    "tensorrt-llm": rendering(tensorrt_llm_service()),
    "front": rendering(front_service()),
    "everything": rendering(with_everything()),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_rendered_pods_and_policies_are_taken(kube: Kube, name: str) -> None:
    base = CASES[name]
    bodies = [{**item, "metadata": {"name": item["metadata"]["name"]}} for item in network_policies(base)]
    for item in desired_objects(base, token=TOKEN):
        if item["kind"] in ("WorkerGroup", "Deployment"):
            # A PodTemplate is checked as strictly as what would be made from it, and is made by nobody.
            named = {"name": item["metadata"]["name"]}
            bodies.append(
                {"apiVersion": "v1", "kind": "PodTemplate", "metadata": named, "template": item["spec"]["template"]}
            )
    done = kube.run("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=yaml.safe_dump_all(bodies))
    assert done.count("server dry run") == len(bodies) >= 5


@pytest.mark.usefixtures("crds")
@pytest.mark.parametrize("body", [service(), rich_service(), front_service(), with_everything()], ids=str)
def test_a_repository_stays_in_sync_while_the_operator_writes(kube: Kube, namespace: str, body: dict[str, Any]) -> None:
    body = changed(body, "metadata.namespace", namespace)
    text = yaml.safe_dump(body)

    def differs() -> int:
        return kube.attempt(
            "diff", "--server-side", "--field-manager=argocd-controller", "-f", "-", stdin=text
        ).returncode

    kube.run("apply", "--server-side", "--field-manager=argocd-controller", "-f", "-", stdin=text)
    assert differs() == 0
    for step, ready in enumerate(("000", "110", "111")):
        status = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {"name": body["metadata"]["name"], "namespace": namespace},
            "status": build_status(result(ready), {}, now=NOW.replace("T00", f"T0{step}")),
        }
        words = (
            "apply",
            "--server-side",
            "--force-conflicts",
            f"--field-manager={FIELD_MANAGER}",
            "--subresource=status",
        )
        kube.run(*words, "-f", "-", stdin=json.dumps(status))
        assert differs() == 0
    generation = kube.run(
        "-n", namespace, "get", "dis", body["metadata"]["name"], "-o", "jsonpath={.metadata.generation}"
    )
    assert generation == "1"
