"""NetworkPolicies on a real cluster: what is rendered for a service is enforced between real pods, port by port."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import yaml

from weft_e2e import cluster, images
from weft_e2e.cluster import Cluster, ClusterConfig
from weft_e2e.waiting import until
from weft_operator.api.objects import WORKER_LABEL
from weft_operator_tests.samples import on_nodes, rendered
from weft_operator_tests.valid import changed, vllm_service

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.skipif(not os.environ.get("WEFT_E2E_NETWORK"), reason="builds kube-router first: make e2e-network"),
]

NAME = "policies"
TRACES = 4317
PORTS = (5600, 6379, 8000, 8080, 29_500, 40_000, TRACES)
"""KV channel, Redis, engine (at every address, so that the policy alone closes it), sidecar, rendezvous, KV data."""
SERVICE = changed(vllm_service(), "spec.telemetry", {"otlpEndpoint": f"http://collector.example.com:{TRACES}"})
WIDE = "demo-w8-0"
"""A worker on two nodes, leader and follower; ``one`` and ``other`` are the only pods of others."""
NODES = {
    "one": "node-1",
    "other": "node-2",
    "leader": "node-1",
    "follower": "node-2",
    "coordinator": "node-1",
    "stranger": "node-2",
    "prometheus": "node-1",
    "redis": "node-2",
    "outside": "node-2",
}
OUTSIDE = "outside"
"""A process in a node's network: an address beyond the pods, as those of the internet and of metadata services."""
REDIS = {"podSelector": {"matchLabels": {"app": "redis"}}}
ENFORCED_S = 60.0

LISTEN = """
import selectors, socket, sys
s = selectors.DefaultSelector()
for port in sys.argv[1:]:
    l = socket.create_server(("", int(port))); s.register(l, selectors.EVENT_READ)
while True:
    for key, _ in s.select():
        key.fileobj.accept()[0].close()
"""

CONNECT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def opens(place):
    try:
        socket.create_connection(place, 2).close()
        return True
    except OSError:
        return False
places = json.loads(sys.argv[1])
with ThreadPoolExecutor(32) as pool:
    print(json.dumps([place for place, opened in zip(places, pool.map(opens, map(tuple, places))) if opened]))
"""


@dataclass(frozen=True)
class Pods:
    """Listening pods of one service, a stranger and a Prometheus, on a cluster that enforces policies."""

    kube: Cluster
    addresses: dict[str, str]

    def reached(self, source: str) -> set[tuple[str, int]]:
        """Return the (pod, port) that a pod can connect to, of all the others."""
        asked = [(self.addresses[name], port) for name in self.addresses if name != source for port in PORTS]
        told = self.kube.kubectl("exec", source, "--", "python", "-c", CONNECT, json.dumps(asked), timeout=120).stdout
        names = {address: name for name, address in self.addresses.items()}
        return {(names[host], port) for host, port in json.loads(told)}


@pytest.fixture(scope="module")
def pods() -> Iterator[Pods]:
    """Give the pods on a cluster of the test's own, because enforcement stays until nodes lose their power."""
    cluster.down(NAME)  # what an interrupted run left
    local = cluster.up(ClusterConfig(name=NAME, gpus=0, rdma=0))
    try:
        built = images.build(["weft-mock-engine"])
        local.load(list(built.values()))
        base = on_nodes(SERVICE)
        labels = {
            "coordinator": base.labels("coordinator"),
            **{part: base.labels("worker") for part in ("one", "other")},
            **{part: {**base.labels("worker"), WORKER_LABEL: WIDE} for part in ("leader", "follower")},
            "stranger": {"app": "anything"},
            "prometheus": {"app.kubernetes.io/name": "prometheus"},
            "redis": {"app": "redis"},
            OUTSIDE: {"app": "anything"},
        }
        image = built["weft-mock-engine"]
        for name, node in NODES.items():
            local.kubectl("apply", "-f", "-", input=json.dumps(_pod(name, labels[name], node, image)))
        local.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=90s", timeout=100)
        found = json.loads(local.kubectl("get", "pods", "-o", "json").stdout)["items"]
        yield Pods(local, {item["metadata"]["name"]: item["status"]["podIP"] for item in found})
    finally:
        cluster.down(NAME)


def _pod(name: str, labels: dict[str, str], node: str, image: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "nodeName": node,
            "hostNetwork": name == OUTSIDE,
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "listener",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python", "-c", LISTEN, *map(str, PORTS)],
                    "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
                }
            ],
        },
    }


def test_pods_reach_and_are_reached_as_the_table_of_the_guide_says(pods: Pods) -> None:
    everything = {(name, port) for name in pods.addresses for port in PORTS}
    assert pods.reached("stranger") == {pair for pair in everything if pair[0] != "stranger"}, "nothing is closed yet"

    pods.kube.enforce_policies()
    base = on_nodes(SERVICE)
    base = replace(base, settings=replace(base.settings, redis_peers=(REDIS,)))
    found = [item for item in rendered(base) if item["kind"] == "NetworkPolicy"]
    assert WIDE in {item["metadata"]["name"] for item in found}
    policies = [{**item, "metadata": _bare(item["metadata"])} for item in found]
    pods.kube.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(policies))
    # Each node enforces by itself: a worker of each is closed to a pod of the other one and to one of the same.
    closed = {("one", 8000), ("other", 8000)}
    until(lambda: not closed & pods.reached("stranger"), what="enforced policies on both nodes", timeout_s=ENFORCED_S)

    open_to_all = {(name, port) for name in ("stranger", "prometheus", "redis", OUTSIDE) for port in PORTS}
    # Redis is known by its labels; where traces go to, is not known.
    store = {("redis", 6379), *((name, TRACES) for name in ("stranger", "prometheus", "redis", OUTSIDE))}
    front = {("coordinator", 8080)}
    workers = ("one", "other", "leader", "follower")
    sidecars = {(name, 8080) for name in workers}
    # Any worker may read the KV of any other one: which of them prefills changes.
    to_workers = {(name, port) for name in workers for port in (8080, 5600, 40_000)}
    expected = {
        "stranger": front | open_to_all,
        "prometheus": front | sidecars | open_to_all,
        # Pods of the service connect to each other, to Redis and to where traces go, and to no other pod or address.
        "coordinator": store | sidecars,
        "one": store | front | to_workers,
        "other": store | front | to_workers,
        # The nodes of one worker reach each other at every port, that of the rendezvous too; no other pod does.
        "leader": store | front | to_workers | {("follower", port) for port in PORTS},
        "follower": store | front | to_workers | {("leader", port) for port in PORTS},
    }
    expected = {name: {pair for pair in pairs if pair[0] != name} for name, pairs in expected.items()}
    assert {name: pods.reached(name) for name in expected} == expected

    # Probes come from the node and pass.
    ready = pods.kube.kubectl("get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[0].ready}").stdout
    assert set(ready.split()) == {"true"}

    pods.kube.kubectl("delete", "networkpolicies", "--all")
    until(lambda: ("one", 8000) in pods.reached("stranger"), what="an open network", timeout_s=ENFORCED_S)


def _bare(metadata: dict[str, object]) -> dict[str, object]:
    """Return the metadata without the owner, which is not there."""
    return {name: value for name, value in metadata.items() if name != "ownerReferences"}
