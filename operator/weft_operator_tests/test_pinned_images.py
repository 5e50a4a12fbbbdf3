"""A service keeps its router through upgrades of the operator, until it is to change."""

from dataclasses import replace

import pytest

from weft_operator.api.objects import Manifest
from weft_operator.render.objects import desired_objects
from weft_operator.render.pinned_images import PinnedImages, images_json, read_images, with_pinned_images
from weft_operator.settings import Settings
from weft_operator_tests.samples import KEY, SETTINGS, SYMMETRIC, TOKEN, group, planned, rendering, with_both_roles
from weft_operator_tests.test_groups_apiserver import FIXED_ROLES
from weft_operator_tests.valid import changed, service
from weft_operator_tests.world import World, serving, summary

NEWER = replace(SETTINGS, router_image="registry.example.com/weft-router:2", mock_image="registry.example.com/mock:2")


def routers(world: World) -> set[str]:
    """Return the router images in all templates: of groups, of workers, of the coordinator."""
    items = [item for item in world.cluster.objects.values() if "template" in (item.get("spec") or {})]
    specs = [item["spec"]["template"]["spec"] for item in items]
    containers = [one for spec in specs for one in (*spec.get("initContainers", ()), *spec["containers"])]
    return {one["image"] for one in containers if one["name"] == "router"}


def uids(world: World) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()}


async def upgraded(settings: Settings = NEWER) -> World:
    """Return a world whose service was made by the operator before this one."""
    world = await serving()
    world.restart(settings)
    return world


async def test_another_operator_changes_no_pod_and_says_what_it_offers() -> None:
    world = await serving()
    assert world.cluster.service["status"]["router"] == {"image": SETTINGS.router_image}
    before, actions = uids(world), len(world.cluster.actions)
    world.restart(NEWER)
    await world.until_quiet()
    assert (uids(world), len(world.cluster.actions)) == (before, actions)
    assert routers(world) == {SETTINGS.router_image}
    assert world.cluster.service["status"]["router"] == {
        "image": SETTINGS.router_image,
        "offered": NEWER.router_image,
    }
    world.restart()
    await world.until_quiet()
    assert (uids(world), len(world.cluster.actions)) == (before, actions), "and back"


async def test_workers_that_are_lost_or_added_are_made_of_what_the_others_run() -> None:
    world = await serving()
    load = service()["spec"]["workload"]
    world.answer = planned(group("prefill", 4, 1), group("decode", 8, 1))
    world.cluster.change(workload={**load, "arrivalRate": 0.1})
    await world.until_quiet()
    before = uids(world)
    world.restart(NEWER)
    world.answer = planned(group("prefill", 4, 2), group("decode", 8, 1))
    world.cluster.change(workload={**load, "arrivalRate": 0.2})
    await world.until_quiet()
    assert len(uids(world)) > len(before)
    assert before.items() <= uids(world).items()
    assert routers(world) == {SETTINGS.router_image}


@pytest.mark.parametrize(
    ("wanted", "runs"),
    [(NEWER.router_image, NEWER.router_image), ("registry.example.com/weft-router:3", SETTINGS.router_image)],
)
async def test_the_annotation_names_what_is_taken_once_the_operator_brings_it(wanted: str, runs: str) -> None:
    world = await upgraded()
    world.cluster.service["metadata"]["annotations"] = {"weft.dev/upgrade-router-to": wanted}
    await world.until_quiet()
    assert routers(world) == {runs}
    assert world.cluster.service["status"]["router"]["image"] == runs
    assert summary(world)["Ready"] == ("True", "Serving")
    world.cluster.service["metadata"].pop("annotations")
    await world.until_quiet()
    assert routers(world) == {runs}, "it stays when the annotation goes"


async def test_when_all_workers_restart_anyway_the_newer_images_come_along() -> None:
    world = await upgraded()
    world.cluster.change(engine={"type": "mock", "image": "registry.example.com/mock:9"})
    await world.until_quiet()
    assert routers(world) == {NEWER.router_image}
    assert "offered" not in world.cluster.service["status"]["router"]


async def test_at_once_all_services_change_with_the_operator() -> None:
    world = await upgraded(replace(NEWER, router_upgrade="AtOnce"))
    await world.until_quiet()
    assert routers(world) == {NEWER.router_image}


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '{"router": ""}', '{"router": "a"}'])
def test_what_somebody_damaged_is_taken_for_nothing(text: str) -> None:
    assert read_images(text) is None


def test_what_is_kept_is_read_again() -> None:
    assert read_images(images_json(PinnedImages("a:1", "b:2"))) == PinnedImages("a:1", "b:2")


def test_workers_named_by_role_stay_until_the_service_takes_the_new_router() -> None:
    """The router of an older operator knows no worker whose role can change."""
    before = replace(rendering(), keeps_role_names=True)
    groups = [item for item in desired_objects(before, token=TOKEN) if item["kind"] == "WorkerGroup"]
    assert sorted(item["spec"]["role"] for item in groups) == ["decode", "prefill"]
    offered = replace(rendering(), settings=NEWER)
    kept = images_json(PinnedImages(SETTINGS.router_image, SETTINGS.mock_image))
    staying = with_pinned_images(offered, kept=kept, wanted="", groups=groups, token=TOKEN)
    assert [item for item in desired_objects(staying, token=TOKEN) if item["kind"] == "WorkerGroup"] == groups
    groups = [{**item, "status": {"observedGeneration": 1}} for item in groups]
    taken = with_pinned_images(offered, kept=kept, wanted=NEWER.router_image, groups=groups, token=TOKEN)
    assert not taken.fixed_roles
    both = replace(offered, record=with_both_roles(None, *SYMMETRIC).record)
    assert not with_pinned_images(both, kept=kept, wanted="", groups=groups, token=TOKEN).fixed_roles


UPGRADE = {"weft.dev/upgrade-router-to": NEWER.router_image}


async def from_before(body: Manifest | None = None) -> World:
    """Return a world whose workers an older operator named by role; the operator offers a newer router."""
    world = World(changed(body or service(), "spec.podTemplates", FIXED_ROLES))
    world.cluster.gpus = 32
    await world.until_quiet()
    world.restart(replace(NEWER, mock_image=SETTINGS.mock_image))
    world.cluster.change(podTemplates=[])
    await world.until_quiet()
    assert world.cluster.names("StatefulSet") == ["demo-d8-0", "demo-p4-0", "demo-p4-1"]
    return world


async def taken_over(world: World) -> None:
    """Let a rollout go on to its end."""
    for _ in range(30):
        await world.until_quiet()
        if all(name.startswith("demo-w") for name in world.cluster.names("StatefulSet")):
            return
    raise AssertionError(f"still {world.cluster.names('StatefulSet')}")


async def test_with_planning_off_an_upgrade_keeps_workers_named_by_role_and_updates_them_one_by_one() -> None:
    """Numbers take effect at once there, so groups of other names would replace all workers in one pass."""
    world = await from_before()
    world.cluster.change(planning={"mode": "Off"})
    await world.until_quiet()
    groups = world.cluster.names("WorkerGroup")
    world.cluster.service["metadata"]["annotations"] = dict(UPGRADE)
    for _ in range(6):
        await world.step()
        assert world.cluster.asked() == {"p4": 2, "d8": 1}
        assert world.cluster.names("StatefulSet") == ["demo-d8-0", "demo-p4-0", "demo-p4-1"]
        world.cluster.settle()
    assert routers(world) == {NEWER.router_image}
    assert world.cluster.names("WorkerGroup") == groups
    world.cluster.change(planning={"mode": "Auto"})
    await taken_over(world)
    assert world.cluster.asked() == {"p4": 2, "d8": 1}


@pytest.mark.parametrize(("passes", "takes_over"), [(1, False), (4, True)])
async def test_with_planning_off_amid_a_takeover_every_role_keeps_workers(passes: int, takes_over: bool) -> None:
    """Those of the kind with fewer workers go at once."""
    world = await from_before(changed(service(), "spec.capacity.gpus", 24))
    world.cluster.service["metadata"]["annotations"] = dict(UPGRADE)
    for _ in range(passes):
        await world.step()
        world.cluster.settle()
    assert {name[5] for name in world.cluster.names("WorkerGroup")} == {"d", "p", "w"}
    world.cluster.change(planning={"mode": "Off"})
    await world.until_quiet()
    assert set(world.cluster.asked()) == {"p4", "d8"}
    (kind,) = {name[5] == "w" for name in world.cluster.names("StatefulSet")}
    assert kind == takes_over


async def test_workers_from_before_there_were_groups_are_adopted_before_a_rollout_replaces_them() -> None:
    world = await from_before()
    world.cluster.service["metadata"]["annotations"] = dict(UPGRADE)
    before, named = uids(world), world.cluster.names("StatefulSet")
    owner = {"kind": "DisaggInferenceService", "uid": world.cluster.service["metadata"]["uid"], "controller": True}
    for key, item in list(world.cluster.objects.items()):
        if key.kind == "WorkerGroup":
            del world.cluster.objects[key]
        elif key.kind == "StatefulSet":
            item["metadata"]["ownerReferences"] = [dict(owner)]
    await world.reconciler.reconcile(KEY)
    assert world.cluster.names("StatefulSet") == named
    await world.reconciler.reconcile(KEY)
    for name in world.cluster.groups():
        await world.group_reconciler.reconcile(name)
    assert world.cluster.names("StatefulSet") == named, "adopted"
    assert before.items() <= uids(world).items(), "no pod was restarted"
    await taken_over(world)
    assert summary(world)["Ready"] == ("True", "Serving")


def policies(world: World) -> set[str]:
    """Return the names of the NetworkPolicies of workers, without that of the service."""
    names = (name.removeprefix("demo-") for name in world.cluster.names("NetworkPolicy"))
    return {name for name in names if not name.startswith("coordinator")}


@pytest.mark.parametrize("taken", [False, True])
async def test_network_policies_of_workers_go_when_the_service_wants_none(taken: bool) -> None:
    """Also amid the rollout that replaces workers named by role, which keep their Service."""
    world = await from_before(changed(service(), "spec.capacity.gpus", 24)) if taken else await serving()
    old = {"prefill", "decode", "prefill-egress", "decode-egress"} if taken else set()
    if taken:
        assert policies(world) == old
        world.cluster.service["metadata"]["annotations"] = dict(UPGRADE)
    await world.step()
    assert policies(world) == {"worker", "worker-egress"} | old
    world.cluster.change(networkPolicy={"restrictEgress": False})
    await world.step()
    assert policies(world) == {"worker"} | {name for name in old if not name.endswith("egress")}
    world.cluster.change(networkPolicy={"enabled": False})
    await world.step()
    assert policies(world) == set()
    headless = {"demo-prefill", "demo-decode"} if taken else set()
    assert set(world.cluster.names("Service")) == {"demo", "demo-worker"} | headless
