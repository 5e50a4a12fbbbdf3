"""Which workers get a new template now: of each role one serving worker at a time."""

import copy
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from weft_operator.api.objects import Manifest
from weft_operator.kube.diff import Action, diff, stamped
from weft_operator.render.inputs import Rendering
from weft_operator.render.objects import desired_objects
from weft_operator.render.statefulsets import statefulset
from weft_operator.rollout.template_updates import UpdateStage, stage
from weft_operator.workers.fleet import Worker
from weft_operator.workers.groups import parse_group
from weft_operator.workers.readiness import WorkerState
from weft_operator_tests.samples import TOKEN, rendering, with_spec
from weft_operator_tests.world import serving, summary

BASE = rendering()
FASTER = with_spec(BASE, routing=BASE.spec.routing.model_copy(update={"prefill_concurrency": 2}))
P0, P1, P2 = (Worker("prefill", 4, index, "h20", fixed=False) for index in range(3))
D0, D1 = (Worker("decode", 8, index, "h20", fixed=False) for index in range(2))
ALL = (P0, P1, P2, D0, D1)


def sets(base: Rendering = BASE, *, workers: Sequence[Worker] = ALL, token: bytes = TOKEN) -> list[Manifest]:
    found = []
    for item in desired_objects(base, token=token):
        if item["kind"] == "WorkerGroup":
            of = parse_group({**item, "metadata": {**item["metadata"], "uid": "u"}})
            found += [statefulset(of, worker) for worker in workers if worker == of.worker(worker.index, worker.role)]
    return [copy.deepcopy(item) for item in found]


def live(workers: Sequence[Worker] = ALL) -> list[Manifest]:
    found = [stamped(item) for item in sets(workers=workers)]
    for item in found:
        item["metadata"]["uid"] = f"uid of {item['metadata']['name']}"
    return found


def run(
    wanted: list[Manifest], found: list[Manifest], *, down: Sequence[Worker] = (), workers: Sequence[Worker] = ALL
) -> UpdateStage:
    actions: tuple[Action, ...] = diff(wanted, found, prunable=("StatefulSet",))
    states = [WorkerState(worker, worker.name("demo"), worker not in down) for worker in workers]
    return stage(actions, states=states, statefulsets=found)


def names(found: UpdateStage) -> list[str]:
    return [action.key.name for action in found.actions]


def test_one_serving_worker_of_each_role_goes_first() -> None:
    found = run(sets(FASTER), live())
    assert names(found) == ["demo-w4-0", "demo-w8-0"]
    assert found.waiting == {"demo-w8-1", "demo-w4-1", "demo-w4-2"}


def test_the_next_one_waits_until_the_first_is_back() -> None:
    current = live()
    for number, item in enumerate(sets(FASTER)):
        if item["metadata"]["name"] in ("demo-w8-0", "demo-w4-0"):
            current[number] = stamped(item)
    restarting = run(sets(FASTER), current, down=(P0, D0))
    assert names(restarting) == []
    assert restarting.waiting == {"demo-w8-1", "demo-w4-1", "demo-w4-2"}
    assert names(run(sets(FASTER), current)) == ["demo-w4-1", "demo-w8-1"]


def test_a_broken_worker_is_updated_at_once_and_the_serving_ones_wait_for_it() -> None:
    found = run(sets(FASTER), live(), down=(P1,))
    assert names(found) == ["demo-w4-1", "demo-w8-0"]
    assert found.waiting == {"demo-w8-1", "demo-w4-0", "demo-w4-2"}


def test_workers_that_get_another_role_with_the_template_wait_for_those_of_both_roles() -> None:
    """P1 and P2 are to become decode workers; they serve as prefill workers until they restart."""
    workers = tuple(Worker("decode", 4, index, "h20", fixed=False) for index in (1, 2))
    wanted, found = sets(FASTER, workers=(P0, *workers, D0)), live((P0, P1, P2, D0))
    actions: tuple[Action, ...] = diff(wanted, found, prunable=("StatefulSet",))
    states = [WorkerState(P0, "demo-w4-0", ready=True), WorkerState(D0, "demo-w8-0", ready=True)]
    states += [WorkerState(one, one.name("demo"), ready=True, switching=True) for one in workers]
    first = stage(actions, states=states, statefulsets=found)
    assert names(first) == ["demo-w4-0"]
    found = [next(item for item in wanted if item["metadata"]["name"] == "demo-w4-1"), *live((P0, P2, D0))]
    found[0] = stamped(found[0])
    actions = diff(wanted, found, prunable=("StatefulSet",))
    restarting = [replace(state, ready=state.name != "demo-w4-1") for state in states]
    held = stage(actions, states=restarting, statefulsets=found)
    assert names(held) == ["demo-w4-0"], "prefill workers all serve, and it restarts none of decode"


def test_with_nobody_serving_all_are_updated() -> None:
    found = run(sets(FASTER), live(), down=ALL)
    assert len(names(found)) == 5
    assert found.waiting == frozenset()


def test_the_only_worker_of_a_role_is_updated() -> None:
    assert names(run(sets(FASTER, workers=(P0, D0)), live((P0, D0)), workers=(P0, D0))) == ["demo-w4-0", "demo-w8-0"]


def test_what_restarts_nothing_waits_for_nobody() -> None:
    wanted = sets()
    for item in wanted:
        item["metadata"]["labels"]["weft.dev/plan-revision"] = "other"
    found = run(wanted, live())
    assert len(found.actions) == 5
    assert found.waiting == frozenset()


def test_new_and_superfluous_workers_are_not_held_up() -> None:
    found = run(sets(workers=(P0, P1, D0)), live((P0, P2, D0)), workers=(P0, P1, D0), down=(P1,))
    assert sorted(names(found)) == ["demo-w4-1", "demo-w4-2"]


def test_a_field_that_is_no_longer_wanted_is_a_restart_too() -> None:
    found = live()
    before = sets(with_spec(BASE, engine=BASE.spec.engine.model_copy(update={"image_pull_secrets": ["pull"]})))
    for number, item in enumerate(before):
        found[number] = stamped(item)
    assert names(run(sets(), found)) == ["demo-w4-0", "demo-w8-0"]


def test_a_template_changed_by_hand_is_put_back_one_at_a_time() -> None:
    found = live()
    for item in found:
        item["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    assert names(run(sets(), found)) == ["demo-w4-0", "demo-w8-0"]


def test_a_change_beside_the_statefulset_takes_nobodys_turn() -> None:
    """A pod group has the name of its worker."""
    found = live()
    wanted = [item for item in sets(FASTER) if item["metadata"]["name"] == "demo-w4-1"]
    pod_group: Manifest = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "demo-w4-0", "namespace": "default"},
        "spec": {"minMember": 2},
    }
    both: tuple[Action, ...] = (*diff([pod_group], [], prunable=()), *diff(wanted, found, prunable=()))
    states = [WorkerState(worker, worker.name("demo"), ready=True) for worker in ALL]
    staged = stage(both, states=states, statefulsets=found)
    assert (staged.actions, staged.waiting) == (both, frozenset())


def test_a_new_token_goes_to_all_at_once() -> None:
    found = run(sets(token=b"another token of thirty-two bytes"), live())
    assert len(found.actions) == 5
    assert found.waiting == frozenset()


@given(down=st.sets(st.sampled_from(ALL)), changed=st.sets(st.sampled_from(ALL)))
def test_no_pass_takes_a_second_serving_worker_and_none_stops_without_a_reason(
    down: set[Worker], changed: set[Worker]
) -> None:
    current = live()
    for number, item in enumerate(sets(FASTER)):
        if not any(worker.name("demo") == item["metadata"]["name"] for worker in changed):
            current[number] = stamped(item)
    found = run(sets(FASTER), current, down=tuple(down))
    now = set(names(found))
    assert now | found.waiting == {worker.name("demo") for worker in changed}
    for role in ("prefill", "decode"):
        mine = [worker for worker in ALL if worker.role == role]
        taken = [worker for worker in mine if worker.name("demo") in now and worker not in down]
        broken = [worker for worker in mine if worker in down]
        assert len(taken) <= (0 if broken else 1)
        assert all(worker.name("demo") in now for worker in broken if worker in changed)
        if not broken and any(worker in changed for worker in mine):
            assert taken, "with all serving there is progress"


async def test_a_change_of_routing_never_stops_a_role_that_has_two_workers() -> None:
    world = await serving()
    before = {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()}
    world.cluster.change(routing={"sessionTTL": "30m"})
    await world.step()
    changed = [action.key for action in world.cluster.actions if action.reason == "changed"]
    assert [key.name for key in changed if key.kind == "StatefulSet"] == ["demo-w4-0", "demo-w8-0"]
    assert "1 still serve with the old template" in world.cluster.condition("Progressing")["message"]
    for _ in range(12):
        await world.step()
        assert {"demo-w4-0-0", "demo-w4-1-0"} & world.cluster.pods.keys(), "one of both serves"
        world.cluster.settle()
    await world.until_quiet()
    after = {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()}
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())
    assert summary(world)["Ready"] == ("True", "Serving")
    assert len(world.cluster.names("ConfigMap")) == 3


async def test_a_change_of_policy_restarts_nothing() -> None:
    world = await serving()
    pods = {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()}
    world.cluster.change(routing={"policy": "remote-jsq"})
    await world.until_quiet()
    assert {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()} == pods
    live = next(item for key, item in world.cluster.objects.items() if key.name == "demo-live")
    assert '"policy":"remote-jsq"' in live["data"]["live.json"]
    assert summary(world)["Ready"] == ("True", "Serving")
