"""Many services in one listing: what passes see of it, and that none acts on it."""

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from weft_operator.api.objects import GroupKey, Manifest, ObjectKey, ServiceKey
from weft_operator.controllers.program import Replica
from weft_operator.errors import StaleListError
from weft_operator.kube.cluster import KubeCluster
from weft_operator.kube.diff import Delete
from weft_operator.kube.observe import Observed
from weft_operator.kube.observe_many import BATCH_SIZE, batches, observe_many
from weft_operator.kube.watch_handlers import WatchEvent
from weft_operator_tests.samples import SETTINGS
from weft_operator_tests.test_apiserver import KINDS, ROOT, Scripted

pytestmark = pytest.mark.component

WEFT = "/apis/weft.dev/v1alpha1/namespaces/default"
A, B = ServiceKey("default", "a"), ServiceKey("default", "b")
GROUP = GroupKey("default", "a-p4")


def test_batches_are_of_one_namespace_and_keep_groups_with_their_services() -> None:
    services = [ServiceKey(space, f"s{n:03}") for space in ("x", "y") for n in range(BATCH_SIZE + 1)]
    groups = [GroupKey(one.namespace, f"{one.name}-{part}") for one in services for part in ("d8", "p4")]
    parts = list(batches([*groups, *services]))
    assert [len(part) for part in parts] == [3 * BATCH_SIZE, 3, 3 * BATCH_SIZE, 3]
    for part in parts:
        assert len({key.namespace for key in part}) == 1
        named = {key.name for key in part if isinstance(key, ServiceKey)}
        assert {key.name.rpartition("-")[0] for key in part if isinstance(key, GroupKey)} == named
    assert list(batches([])) == []


@pytest.fixture
def server() -> Iterator[Scripted]:
    """An API server with the services a and b, of which a has a group with a worker."""
    scripted = Scripted()
    for path in (*KINDS, "policy/v1/poddisruptionbudgets"):
        group, version, plural = path.split("/")
        scripted.on("GET", f"/apis/{group}/{version}/namespaces/default/{plural}", {"items": []})
    for plural in ("services", "serviceaccounts", "configmaps", "pods"):
        scripted.on("GET", f"{ROOT}/{plural}", {"items": []})
    scripted.on("GET", f"{WEFT}/disagginferenceservices", {"items": [named("a"), named("b"), named("of-another-part")]})
    scripted.on("GET", f"{WEFT}/disagginferenceservices/a", named("a", resourceVersion="9"))
    owner = {"kind": "DisaggInferenceService", "uid": "uid of a", "controller": True}
    group_body = {**named("a-p4", "a", ownerReferences=[owner]), "spec": {"role": "prefill", "service": "a"}}
    scripted.on("GET", f"{WEFT}/workergroups", {"items": [group_body]})
    worker = named("a-p4-0", "a", component="prefill", ownerReferences=[{"uid": "uid of a-p4", "controller": True}])
    scripted.on("GET", "/apis/apps/v1/namespaces/default/statefulsets", {"items": [worker]})
    pods = [
        named("a-p4-0-0", "a", component="prefill", managedFields=[{"manager": "kubelet"}]),
        named("a-x", "a", component="coordinator"),
        named("b-x", "b"),
    ]
    scripted.on("GET", f"{ROOT}/pods", {"items": pods})
    yield scripted
    scripted.close()


def named(name: str, service: str = "", *, component: str = "", **metadata: Any) -> Manifest:
    labels = {"weft.dev/service": service, "app.kubernetes.io/component": component}
    kept = {key: value for key, value in labels.items() if value}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid of {name}", "labels": kept, **metadata},
        "spec": {},
    }


def names(items: tuple[Manifest, ...]) -> list[str]:
    return [item["metadata"]["name"] for item in items]


def test_many_are_listed_at_once_and_each_is_seen_as_by_itself(server: Scripted) -> None:
    found = observe_many(server.api, "default", {"a", "b", "gone"})
    assert found.keys() == {A, B, GROUP}
    alone = KubeCluster(server.api)
    (a, group) = found[A], found[GROUP]
    assert isinstance(a, Observed)
    assert (names(a.owned), names(a.workers), names(a.pods)) == (["a-p4"], ["a-p4-0"], ["a-p4-0-0", "a-x"])
    assert not any("managedFields" in item["metadata"] for item in (*a.owned, *a.pods)), "they are a third of it all"
    assert not isinstance(group, Observed)
    assert (names(group.statefulsets), names(group.pods)) == (["a-p4-0"], ["a-p4-0-0"])
    selectors = {
        selector
        for _, path, _, _ in server.asked
        for selector in parse_qs(urlsplit(path).query).get("labelSelector", ())
    }
    assert selectors == {
        "weft.dev/service in (a,b,gone)",
        "weft.dev/service in (a,b,gone),app.kubernetes.io/component=plan",
    }
    assert asyncio.run(alone.observe_many([GROUP])) == {}, "a group without its service is read by its own pass"


async def test_a_pass_on_a_list_of_many_services_writes_nothing_and_then_observes_for_itself(server: Scripted) -> None:
    cluster = KubeCluster(server.api)
    listed = (await cluster.observe_many([A]))[A]
    with cluster.use_listing(A, listed):
        assert await cluster.observe(A) is listed
        for write in (
            cluster.write_status(A, {}, version="1"),
            cluster.write_group_status(GROUP, {}, version="1"),
            cluster.carry_out(Delete(ObjectKey("v1", "ConfigMap", "default", "x"), "u", "r"), owner_uid="uid of a"),
        ):
            with pytest.raises(StaleListError):
                await write
    assert not any(method != "GET" for method, *_ in server.asked)
    seen = await cluster.observe(A)
    assert isinstance(seen, Observed)
    assert seen.service["metadata"]["resourceVersion"] == "9"
    server.on("PATCH", f"{WEFT}/disagginferenceservices/a/status", {})
    await cluster.write_status(A, {}, version="9")


async def test_which_keys_a_watch_event_enqueues(server: Scripted) -> None:
    replica = Replica(server.api, SETTINGS, elector=None)
    other = ServiceKey("elsewhere", "c")
    replica.on_event(WatchEvent("default", service=A, group=GROUP, listed=True))
    replica.on_event(WatchEvent("elsewhere", service=other, listed=True))
    timers, to_browse = replica.work_queue._timers, replica.work_queue._resync_pending
    assert to_browse == {A, GROUP, other}
    assert not timers, "nothing happened yet"
    replica.on_event(WatchEvent("default", service=A))
    assert timers.keys() == {A}, "a coordinator's pod: no worker waits for that"
    replica.on_event(WatchEvent("default", service=A, affects_groups=True))
    assert timers.keys() == {A, GROUP}
    replica.on_event(WatchEvent("elsewhere"))
    assert timers.keys() == {A, GROUP, other}, "a CostProfile: all services of its namespace"
    replica.on_event(WatchEvent("default", service=A, changed=True))
    assert replica.work_queue._changed == {A}
    replica.on_event(WatchEvent("default", service=A, group=GROUP, gone=True))
    timers.pop(GROUP).cancel()
    replica.on_event(WatchEvent("default", service=A, affects_groups=True))
    assert GROUP not in timers
    for timer in timers.values():
        timer.cancel()
