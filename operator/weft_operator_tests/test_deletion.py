"""A12: whenever a service is deleted, all that was made for it goes, whether an operator is there or not.

The garbage collector takes what has no owner any more; real ones do it in ``test_kill_points_apiserver``.
"""

from collections.abc import Callable

import pytest

from weft_operator.api.objects import Manifest, controller_of
from weft_operator.api.service import KIND
from weft_operator.controllers.result import ReconcileResult
from weft_operator.errors import OperatorError
from weft_operator.kube.diff import Action
from weft_operator_tests.fake_cluster import UID
from weft_operator_tests.samples import KEY
from weft_operator_tests.test_reconcile_weights import WORDS, Cached
from weft_operator_tests.test_weights import CLAIM
from weft_operator_tests.valid import service
from weft_operator_tests.world import World

WRITES = 24
"""More than a new service takes in its first passes."""

SOURCES: dict[str, Callable[[], World]] = {
    "plain": lambda: World(service()),
    "weights": lambda: Cached(CLAIM),
}


async def advance(world: World) -> None:
    """Run a pass and all controllers; a download ends at once."""
    await world.step()
    world.cluster.settle()
    if isinstance(world, Cached) and any(key.kind == "Job" for key in world.cluster.objects):
        world.end(WORDS)


def collect(world: World) -> None:
    """Remove what the garbage collector would, until nothing changes; a finalizer keeps an object."""
    cluster = world.cluster
    here = {UID} if cluster.service["metadata"]["name"] == KEY.name else set()
    while True:
        alive = here | {item["metadata"]["uid"] for item in cluster.objects.values()}
        lost = [key for key, item in cluster.objects.items() if _orphaned(item, alive)]
        if not lost:
            break
        for key in lost:
            if key in cluster.objects:
                cluster._remove(key)
    sets = {item["metadata"]["uid"] for item in cluster.objects.values()}
    for name in [name for name, pod in cluster.pods.items() if _orphaned(pod, sets)]:
        cluster.remove_pod(name)


def _orphaned(item: Manifest, alive: set[str]) -> bool:
    owner = controller_of(item)
    return owner is not None and owner["uid"] not in alive and not item["metadata"].get("finalizers")


@pytest.mark.parametrize("operator", ["goes on", "is gone"])
@pytest.mark.parametrize("write", range(WRITES))
@pytest.mark.parametrize("source", SOURCES)
async def test_a_service_deleted_before_any_write_leaves_nothing(source: str, write: int, operator: str) -> None:
    world = SOURCES[source]()
    count = 0

    def delete_it(_action: Action) -> OperatorError | None:
        nonlocal count
        count += 1
        if count == write + 1:
            # The pass that is under way does not know; what it still makes has to go as well.
            world.cluster.service["metadata"]["name"] = "deleted"
        return None

    world.cluster.fail = delete_it
    for _ in range(6):
        await advance(world)
        if operator == "is gone" and world.cluster.service["metadata"]["name"] == "deleted":
            break
    world.cluster.service["metadata"]["name"] = "deleted"
    collect(world)
    if operator == "goes on":
        written = len(world.cluster.actions)
        assert await world.reconciler.reconcile(KEY) == ReconcileResult(gone=True)
        assert len(world.cluster.actions) == written
    left = [*map(str, world.cluster.objects), *world.cluster.pods]
    assert left == []


async def test_what_a_rollout_makes_has_an_owner_and_no_finalizer() -> None:
    for source in SOURCES.values():
        world = source()
        for _ in range(6):
            await advance(world)
        assert "StatefulSet" in {key.kind for key in world.cluster.objects}
        for key, item in world.cluster.objects.items():
            owner = controller_of(item)
            assert owner is not None, key
            assert owner["kind"] in (KIND, "WorkerGroup", "Job", "StatefulSet"), key
            assert not item["metadata"].get("finalizers"), key
