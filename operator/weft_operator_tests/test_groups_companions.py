"""What workers on several nodes have beside their StatefulSets: made with them, removed with them, refused in words."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from weft_operator.api.objects import GroupKey, Manifest, ObjectKey
from weft_operator.errors import ForbiddenError, NotFoundError, OperatorError, Right
from weft_operator.kube.diff import Action, Apply, Delete, stamped
from weft_operator.kube.observe_group import list_companions, observe_group
from weft_operator.render.companions import companion_kinds, companion_objects, refusal
from weft_operator.rollout.group_plan import GroupPlan, plan_group
from weft_operator.workers.groups import WorkerGroupView
from weft_operator_tests.test_apiserver import Scripted
from weft_operator_tests.test_rollout_group_plan import NOW, group, made, pod
from weft_operator_tests.valid import changed, service
from weft_operator_tests.world import World

SPAN: dict[str, Any] = {"degree": 16, "nodesPerWorker": 2}
VOLCANO: dict[str, Any] = {**SPAN, "gang": {"scheduler": "volcano"}, "computeDomain": True}
ROOT = "/apis/{}/namespaces/default/{}"


def beside(of: WorkerGroupView, *indices: int) -> list[Manifest]:
    """Return what workers have beside their StatefulSets, as the API server has it."""
    found = [stamped(item) for index in indices for item in companion_objects(of, of.worker(index))]
    for item in found:
        item["metadata"] |= {"uid": f"{item['kind']} of {item['metadata']['name']}", "resourceVersion": "1"}
    return found


def run(
    of: WorkerGroupView, sets: Sequence[Manifest] = (), others: Sequence[Manifest] = (), pods: Sequence[Manifest] = ()
) -> GroupPlan:
    return plan_group(of, statefulsets=sets, pods=pods, records={}, now=NOW, companions=others)


def named(plan: GroupPlan, kind: type[Action]) -> list[tuple[str, str]]:
    return [(action.key.kind, action.key.name) for action in plan.actions if isinstance(action, kind)]


def test_they_are_made_before_the_pods_that_need_them() -> None:
    plan = run(group(1, **VOLCANO))
    assert named(plan, Apply) == [
        ("PodGroup", "demo-p16-0"),
        ("ComputeDomain", "demo-p16-0-2"),
        ("StatefulSet", "demo-p16-0"),
    ]


def test_they_go_with_their_worker() -> None:
    of = group(1, **VOLCANO)
    plan = run(of, made(of, 0, 1), beside(of, 0, 1))
    assert named(plan, Delete) == [
        ("ComputeDomain", "demo-p16-1-2"),
        ("PodGroup", "demo-p16-1"),
        ("StatefulSet", "demo-p16-1"),
    ]
    assert named(plan, Apply) == []


def test_a_worker_that_drains_keeps_them_until_its_pods_are_gone() -> None:
    """Its engines still answer rounds, for which they reach each other."""
    of = group(1, **VOLCANO, isolated=True)
    sets, others = made(of, 0, 1), beside(of, 0, 1)
    plan = run(of, sets, others, [pod(sets[1], deleted=30)])
    assert named(plan, Delete) == [("StatefulSet", "demo-p16-1")]
    assert named(run(of, sets[:1], others, [pod(sets[1], deleted=30)]), Delete) == []
    gone = {kind for kind, _ in named(run(of, sets[:1], others), Delete)}
    assert gone == {"ComputeDomain", "NetworkPolicy", "PodGroup"}


def test_a_worker_on_another_number_of_nodes_has_another_compute_domain() -> None:
    """The spec of one can never change."""
    before, after = group(1, **VOLCANO), group(1, **{**VOLCANO, "nodesPerWorker": 4})
    plan = run(after, made(before, 0), beside(before, 0))
    assert ("ComputeDomain", "demo-p16-0-4") in named(plan, Apply)
    assert named(plan, Delete) == [("ComputeDomain", "demo-p16-0-2")]


def test_they_go_when_the_spec_asks_for_none_any_more() -> None:
    before, after = group(1, **VOLCANO), group(1, **SPAN)
    sets = made(before, 0)
    plan = run(after, sets, beside(before, 0))
    assert named(plan, Delete) == [("ComputeDomain", "demo-p16-0-2"), ("PodGroup", "demo-p16-0")]
    asked = companion_kinds({"nodesPerWorker": 2}, sets)
    assert {kind for _, kind in asked} == {"NetworkPolicy", "PodGroup", "ComputeDomain"}, "their pods still name them"


@pytest.mark.parametrize(
    ("scheduler", "api"),
    [
        ("volcano", "scheduling.volcano.sh/v1beta1"),
        ("kai", "scheduling.run.ai/v2alpha2"),
        ("coscheduling", "scheduling.x-k8s.io/v1alpha1"),
        ("kueue", None),
    ],
)
def test_kinds_are_asked_for_where_they_may_be(scheduler: str, api: str | None) -> None:
    queue = {} if scheduler == "coscheduling" else {"queue": "team-a"}
    spec = {"nodesPerWorker": 2, "gang": {"scheduler": scheduler}}
    wanted = {("networking.k8s.io/v1", "NetworkPolicy")} | ({(api, "PodGroup")} if api else set())
    assert set(companion_kinds(spec, [])) == wanted
    of = group(1, **SPAN, gang={"scheduler": scheduler, **queue})
    assert set(companion_kinds({"nodesPerWorker": 2}, made(of, 0))) == wanted, "by the marks of pods"
    assert companion_kinds({**spec, "nodesPerWorker": 1}, []) == ()


async def test_a_service_says_which_kind_the_cluster_lacks_and_what_to_do() -> None:
    body = changed(service(), "spec.capacity.pools.0.gpusPerNode", 4)
    body["spec"]["scheduling"] = {"gang": {"scheduler": "volcano"}}
    world = World(body)

    def refuse(action: Action) -> OperatorError | None:
        return NotFoundError("PATCH podgroups: 404", status=404) if action.key.kind == "PodGroup" else None

    world.cluster.fail = refuse
    for _ in range(4):
        world.cluster.settle()
        await world.step()
    told = world.cluster.condition("Progressing")
    assert (told["status"], told["reason"]) == ("False", "KindMissing")
    assert told["message"].endswith(
        "PodGroup default/demo-w8-0 cannot be made, because the cluster has no PodGroup of "
        "scheduling.volcano.sh/v1beta1; install Volcano, or change spec.scheduling.gang"
    )
    assert world.cluster.condition("Stalled")["status"] == "True"
    world.cluster.fail = lambda _action: None
    for _ in range(2):
        await world.step()
    assert world.cluster.condition("Progressing")["reason"] != "KindMissing"
    assert world.cluster.names("PodGroup") == ["demo-w8-0"]


def test_a_refusal_names_the_value_of_the_chart_that_gives_the_right() -> None:
    for api, value in (
        ("scheduling.run.ai", "operator.gangSchedulers={kai}"),
        ("resource.nvidia.com", "computeDomains"),
    ):
        right = Right("get", "podgroups", api, "default")
        key = ObjectKey(f"{api}/v1", "PodGroup", "default", "demo-w8-0")
        reason, words = refusal(key, ForbiddenError("403", status=403, right=right))
        assert reason == "RightMissing"
        assert value in words
    key = ObjectKey("apps/v1", "StatefulSet", "default", "demo-w8-0")
    assert refusal(key, NotFoundError("404 no namespace", status=404)) == ("ApplyFailed", "404 no namespace")


@pytest.fixture
def server() -> Iterator[Scripted]:
    scripted = Scripted()
    yield scripted
    scripted.close()


@pytest.mark.component
def test_a_kind_that_is_not_installed_or_not_to_be_listed_has_no_objects(server: Scripted) -> None:
    kinds = (("scheduling.volcano.sh/v1beta1", "PodGroup"), ("resource.nvidia.com/v1beta1", "ComputeDomain"))
    forbidden = {"message": 'computedomains is forbidden: User "a" cannot list resource "computedomains"'}
    server.on("GET", ROOT.format("resource.nvidia.com/v1beta1", "computedomains"), forbidden, status=403)
    assert list_companions(server.api, "default", "a=b", kinds) == []
    policies = ("networking.k8s.io/v1", "NetworkPolicy")
    server.on("GET", ROOT.format("networking.k8s.io/v1", "networkpolicies"), forbidden, status=403)
    with pytest.raises(ForbiddenError):
        list_companions(server.api, "default", "a=b", [policies])


@pytest.mark.component
def test_a_group_is_read_with_what_its_workers_have(server: Scripted) -> None:
    of = group(1, **VOLCANO)
    spec = {"service": "demo", "role": "prefill", "nodesPerWorker": 2, "gang": {"scheduler": "volcano"}}
    body = {"metadata": {"name": "demo-p16"}, "spec": spec}
    server.on("GET", "/apis/weft.dev/v1alpha1/namespaces/default/workergroups/demo-p16", body)
    server.on("GET", ROOT.format("apps/v1", "statefulsets"), {"items": made(of, 0)})
    server.on("GET", "/api/v1/namespaces/default/pods", {"items": []})
    server.on("GET", ROOT.format("networking.k8s.io/v1", "networkpolicies"), {"items": []})
    pod_group, domain = beside(of, 0)
    server.on("GET", ROOT.format("scheduling.volcano.sh/v1beta1", "podgroups"), {"items": [pod_group]})
    server.on("GET", ROOT.format("resource.nvidia.com/v1beta1", "computedomains"), {"items": [domain]})
    found = observe_group(server.api, GroupKey("default", "demo-p16"))
    assert found is not None
    assert [item["kind"] for item in found.companions] == ["ComputeDomain", "PodGroup"], "the former by its pods' claim"
