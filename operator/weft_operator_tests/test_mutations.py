"""A6 and A7: of 500 changes of services each is carried out, or refused with the field and nothing changed; each can
be undone.

Admission is what ``weft plan -f`` checks, which is held to the API server elsewhere. A refused spec is given to the
operator all the same, as one that was stored before the rule was. The planner answers as the request says, at once.
"""

import asyncio
import copy
import json
import pickle
import re
from datetime import timedelta
from typing import Any

import pytest

from weft_core_tests.property_tests import examples
from weft_operator.api.objects import HASH_ANNOTATION, Manifest, ObjectKey
from weft_operator.commands.manifest_checks import service_messages
from weft_operator.planning.planner_process import Answer
from weft_operator.planning.request import Request
from weft_operator_tests.mutations import COUNT, SEEDS, Mutation, mutations, spec_schema, stored
from weft_operator_tests.operator_with_plans import solve
from weft_operator_tests.world import World, summary

CHUNKS = 20
MOST_ROUNDS = 40
FIELD = re.compile(r"^(spec|metadata)\b[^:]*: \S")
BOOKS = ("ControllerRevision",)
"""Kinds that hold what was, and so do not come back to what they were."""

every = mutations()
held = every[:: COUNT // examples(COUNT)]
schema = spec_schema()


class Mutated(World):
    """A service whose planner answers as the request says."""

    async def _solve(self, request: Request) -> Answer:
        self.requests.append(request)
        return await solve(request, deadline=1.0)

    async def converge(self) -> None:
        """Run passes, controllers and the clock until there is nothing to do and nothing to wait for."""
        for _ in range(MOST_ROUNDS):
            await self.until_quiet()
            if summary(self)["Ready"][0] == "True" and summary(self)["Progressing"][0] == "False":
                return
            if summary(self)["Planned"][0] == "False":
                return
            self.now += timedelta(seconds=30)
        raise AssertionError(f"does not converge: {summary(self)}")

    def put(self, spec: dict[str, Any]) -> None:
        """Store a spec in the place of the one there is, as a user does."""
        self.cluster.service["spec"] = stored(schema, spec)
        self.cluster.service["metadata"]["generation"] += 1

    def children(self) -> dict[ObjectKey, Manifest]:
        """Return all objects but their books, without what the cluster adds to them."""
        return {key: masked(item) for key, item in self.cluster.objects.items() if key.kind not in BOOKS}


def masked(item: Manifest) -> Manifest:
    """Return an object without what differs between two that are alike."""
    kept = copy.deepcopy(item)
    kept.pop("status", None)
    for name in ("generation", "resourceVersion", "uid", "creationTimestamp"):
        kept["metadata"].pop(name, None)
    # The hash of what was applied, which holds the owner's uid.
    kept["metadata"].get("annotations", {}).pop(HASH_ANNOTATION, None)
    for owner in kept["metadata"].get("ownerReferences", ()):
        owner.pop("uid", None)
    return kept


_at_rest: dict[str, bytes] = {}


async def at_rest(seed: str) -> Mutated:
    """Return a seed that serves."""
    world = Mutated(SEEDS[seed]())
    world.put(world.cluster.service["spec"])
    cluster = world.cluster
    if seed not in _at_rest:
        await world.converge()
        assert summary(world)["Ready"] == ("True", "Serving"), summary(world)
        _at_rest[seed] = pickle.dumps((cluster.service, cluster.objects, cluster.pods, cluster.uids))
    cluster.service, cluster.objects, cluster.pods, cluster.uids = pickle.loads(_at_rest[seed])  # noqa: S301
    world.restart()
    return world


async def hold(mutation: Mutation) -> str:
    """Hold one change to A6 and A7; return what became of it.

    Raises:
        AssertionError: it was neither carried out nor refused as it must be, or could not be undone.
    """
    body = mutation.body()
    refused = service_messages(body)
    assert all(FIELD.match(message) for message in refused), refused
    if mutation.path.startswith("metadata"):
        assert refused  # a name cannot change
        return "refused"
    world = await at_rest(mutation.seed)
    before, objects = world.children(), copy.deepcopy(world.cluster.objects)
    world.put(body["spec"])
    await world.converge()
    planned = world.cluster.condition("Planned")
    if planned["status"] == "False":
        assert world.cluster.objects == objects, "refused, and yet something was changed"
        assert re.search(r"\bspec\b", planned["message"]), planned
    else:
        consistent(world, body["spec"])
    await unchanged(world)
    world.put(SEEDS[mutation.seed]()["spec"])
    await world.converge()
    after = world.children()
    assert after.keys() == before.keys()
    for key, item in before.items():
        assert after[key] == item, f"{key} is not what it was"
    return "refused" if refused else "not planned" if planned["status"] == "False" else "carried out"


def consistent(world: Mutated, spec: dict[str, Any]) -> None:
    """Check that what there is follows from the spec."""
    status = world.cluster.service["status"]
    assert status["observedGeneration"] == world.cluster.service["metadata"]["generation"]
    assert summary(world)["Ready"] == ("True", "Serving")
    (front,) = (item for item in world.cluster.objects.values() if item["kind"] == "Deployment")
    assert front["spec"]["replicas"] == spec.get("coordinator", {}).get("replicas", front["spec"]["replicas"])
    image = spec["engine"].get("image")
    for item in world.cluster.objects.values():
        if item["kind"] == "StatefulSet" and image:
            assert image in {one.get("image") for one in item["spec"]["template"]["spec"]["containers"]}
    router = json.dumps([item.get("data") for item in world.cluster.objects.values() if item["kind"] == "ConfigMap"])
    assert json.dumps(spec["model"]["name"])[1:-1] in router


async def unchanged(world: Mutated) -> None:
    """Check that an operator that was started anew finds nothing to do."""
    there = copy.deepcopy((world.cluster.service, world.cluster.objects))
    world.restart()
    await world.step()
    await world.step()
    assert (world.cluster.service, world.cluster.objects) == there


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_change_is_carried_out_or_refused_and_can_be_undone(chunk: int) -> None:
    for mutation in held[chunk::CHUNKS]:
        try:
            asyncio.run(hold(mutation))
        except Exception as error:
            raise AssertionError(f"{mutation.name}: {error!r}") from error


def test_there_are_enough_changes_of_every_kind() -> None:
    assert len(every) == COUNT
    assert len({mutation.name for mutation in every}) == COUNT
    refused = sum(bool(service_messages(mutation.body())) for mutation in every)
    assert 150 <= refused <= 400
