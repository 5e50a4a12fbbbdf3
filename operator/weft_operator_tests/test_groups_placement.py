"""Where the pods of workers go, by the scheduler's rules: never two of one worker on a node, and near each other."""

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from weft_operator.api.objects import Manifest
from weft_operator_tests.samples import on_nodes, rendered, rendering
from weft_operator_tests.scheduler_model import Node, fits
from weft_operator_tests.valid import changed, service

HOSTNAME, RACK = "kubernetes.io/hostname", "example.com/rack"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
LOOSE: Manifest = {"topologyKey": HOSTNAME, "maxSkew": 9, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
OWN: list[Manifest] = [
    {},
    {"spec": {"topologySpreadConstraints": [LOOSE]}},
    {"spec": {"topologySpreadConstraints": [{"$patch": "replace"}]}},
    {"spec": {"affinity": {"podAntiAffinity": None}}},
    {"spec": {"affinity": None}},
    {"spec": {"affinity": {"$patch": "replace", "podAffinity": {}}}},
]
"""What services may change of their pods by spec.podTemplates."""


def pods(body: Manifest) -> dict[str, list[Manifest]]:
    """Return the pods of each worker of a service on nodes of 4 GPUs: one decode worker spans two of them."""
    sets = [item for item in rendered(on_nodes(body)) if item["kind"] == "StatefulSet"]
    return {
        item["metadata"]["name"]: [item["spec"]["template"] for _ in range(item["spec"]["replicas"])] for item in sets
    }


def schedule(waiting: list[Manifest], nodes: list[Node], chance: random.Random) -> int:
    """Put pods on nodes that they may go to, any of these; return how many found one."""
    placed = 0
    for pod in waiting:
        open_to = [node for node in nodes if fits(pod, node, nodes)]
        if open_to:
            chance.choice(open_to).pods.append(pod)
            placed += 1
    return placed


@settings(max_examples=60)
@given(
    slots=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    own=st.sampled_from(OWN),
    affinity=st.sampled_from([None, {"podAntiAffinity": {}}, {"podAffinity": {}}]),
    span=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 2**16),
)
def test_two_pods_of_one_worker_never_share_a_node(
    slots: list[int], own: Manifest, affinity: Manifest | None, span: int, seed: int
) -> None:
    """Whatever nodes there are, also where too few are left for the worker, and whatever the service changes."""
    body = service()
    body["spec"]["capacity"]["pools"][0] |= {"gpusPerNode": 8 // span} | ({"affinity": affinity} if affinity else {})
    body["spec"]["podTemplates"] = [{"patch": own}] if own else []
    sets = [item for item in rendered(rendering(body)) if item["kind"] == "StatefulSet"]
    (decode,) = [item for item in sets if "-w8-" in item["metadata"]["name"]]
    assert decode["spec"]["replicas"] == span
    nodes = [Node({HOSTNAME: f"node-{i}", RACK: f"rack-{i % 2}"}, room) for i, room in enumerate(slots)]
    placed = schedule([decode["spec"]["template"]] * span, nodes, random.Random(seed))
    assert placed == min(span, sum(room > 0 for room in slots))
    assert all(len(node.pods) <= 1 for node in nodes)


@settings(max_examples=40)
@given(racks=st.lists(st.integers(1, 3), min_size=1, max_size=4), seed=st.integers(0, 2**16))
def test_the_pods_of_a_worker_are_all_in_one_required_part_of_the_network(racks: list[int], seed: int) -> None:
    body = changed(service(), "spec.capacity.pools.0.topology", {"required": RACK})
    nodes = [
        Node({HOSTNAME: f"node-{rack}-{i}", RACK: f"rack-{rack}"}, 1)
        for rack, size in enumerate(racks)
        for i in range(size)
    ]
    schedule(pods(body)["demo-w8-0"], nodes, random.Random(seed))
    assert len({node.labels[RACK] for node in nodes if node.pods}) == 1


def required(pool: Manifest) -> list[str]:
    body = service()
    body["spec"]["capacity"]["pools"][0] |= {"gpusPerRack": 72, **pool}
    (pod, *_) = pods(body)["demo-w8-0"]
    return [term["topologyKey"] for term in pod["spec"]["affinity"].get("podAffinity", {}).get(REQUIRED, ())]


def test_a_worker_lies_in_one_rack_by_the_label_that_the_pool_names() -> None:
    clique = "nvidia.com/gpu.clique"
    assert required({}) == [clique]
    assert required({"topology": {"preferred": RACK}}) == [clique]
    assert required({"topology": {"required": RACK}}) == [RACK]
    assert required({"topology": {"preferred": RACK, "scope": "service"}}) == [clique]
    assert required({"topology": {"required": RACK, "scope": "service"}}) == [RACK]


@settings(max_examples=40)
@given(seed=st.integers(0, 2**16))
def test_all_workers_of_a_service_are_in_one_part_where_the_scope_is_the_service(seed: int) -> None:
    body = changed(service(), "spec.capacity.pools.0.topology", {"required": RACK, "scope": "service"})
    chance = random.Random(seed)
    every = [pod for found in pods(body).values() for pod in found]
    chance.shuffle(every)
    nodes = [Node({HOSTNAME: f"node-{rack}-{i}", RACK: f"rack-{rack}"}, 2) for rack in range(3) for i in range(4)]
    assert schedule(every, nodes, chance) == len(every)
    assert len({node.labels[RACK] for node in nodes if node.pods}) == 1


def preferences(body: Manifest, worker: str = "demo-w8-0") -> list[dict[str, Any]]:
    (pod, *_) = pods(body)[worker]
    near = ((pod["spec"].get("affinity") or {}).get("podAffinity") or {}).get(PREFERRED) or ()
    return [term["podAffinityTerm"] for term in near]


def test_the_pods_of_one_worker_are_drawn_to_one_part_of_what_workers_spread_over() -> None:
    body = changed(service(), "spec.capacity.pools.0.topologyKey", RACK)
    (near,) = preferences(body)
    own = {"weft.dev/service": "demo", "weft.dev/worker": "demo-w8-0"}
    assert near == {"topologyKey": RACK, "labelSelector": {"matchLabels": own}}
    assert preferences(body, "demo-w4-0") == [], "a worker on one node has nobody to be near to"
    mine: Manifest = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}
    assert preferences(changed(body, "spec.capacity.pools.0.affinity", mine)) == []


def test_a_preferred_part_is_asked_for_by_workers_or_by_the_whole_service() -> None:
    both = {"required": "nvidia.com/gpu.clique", "preferred": RACK}
    assert [
        term["topologyKey"] for term in preferences(changed(service(), "spec.capacity.pools.0.topology", both))
    ] == [RACK]
    wide = changed(service(), "spec.capacity.pools.0.topology", {"preferred": RACK, "scope": "service"})
    for worker in ("demo-w8-0", "demo-w4-0", "demo-w4-1"):
        (term,) = preferences(wide, worker)
        assert term["labelSelector"]["matchLabels"] == {"weft.dev/service": "demo"}
        assert term["labelSelector"]["matchExpressions"][0]["values"] == ["worker"]
