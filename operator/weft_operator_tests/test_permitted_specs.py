"""An active plan is made again only while the spec it was made from is allowed: whoever wrote it, and whenever."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from weft_operator.api.objects import Manifest, ObjectKey, ServiceKey
from weft_operator.api.pod_template_permissions import Permission
from weft_operator.api.secret_references import SecretReference
from weft_operator.api.worker_group import GROUP_KIND
from weft_operator.errors import NotFoundError
from weft_operator.kube.client import KubeClient
from weft_operator.kube.observe import MAX_PATCHED_SECRETS, observe
from weft_operator_tests.samples import SETTINGS
from weft_operator_tests.valid import changed, service
from weft_operator_tests.world import World, serving, summary

FORGED: Manifest = {
    "patch": {
        "spec": {
            "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
            "containers": [{"name": "mine", "image": "x:1", "securityContext": {"privileged": True}}],
        }
    }
}
OF_A_SECRET: Manifest = {"patch": {"spec": {"volumes": [{"name": "s", "secret": {"secretName": "other-token"}}]}}}
PLAN = ObjectKey("v1", "ConfigMap", "default", "demo-plan")


def forge(kept: Manifest, path: str, value: Any) -> None:
    """Write a part of a spec into a record, as whoever may write ConfigMaps can."""
    spec = json.loads(kept["data"]["spec.json"])
    kept["data"]["spec.json"] = json.dumps(changed({"spec": spec}, f"spec.{path}", value)["spec"])


def made(world: World) -> str:
    kinds = (GROUP_KIND, "StatefulSet", "Deployment", "Job")
    return json.dumps([item for key, item in world.cluster.objects.items() if key.kind in kinds])


def refuse_newest(world: World) -> None:
    world.cluster.change(profile={"ref": {"name": "not-there"}})


def hide_weights(world: World) -> None:
    source = {"huggingFace": {"revision": "v2", "cache": {"claim": {"size": "100Gi", "accessMode": "ReadWriteMany"}}}}
    world.cluster.change(model={**world.cluster.service["spec"]["model"], "source": source})


@pytest.mark.parametrize("newest", [refuse_newest, hide_weights], ids=["refused", "weights"])
async def test_nothing_is_made_of_a_forged_plan(newest: Callable[[World], None]) -> None:
    world = await serving()
    forge(world.cluster.objects[PLAN], "podTemplates", [FORGED])
    before = made(world)
    newest(world)
    await world.until_quiet()
    assert "hostPath" not in made(world)
    if newest is refuse_newest:
        assert made(world) == before, "what runs stays"
        assert summary(world)["Planned"] == ("False", "ProtectedField")
        message = world.cluster.condition("Planned")["message"]
        assert "the active plan: spec.podTemplates[0].patch.spec.volumes[host].hostPath" in message
        assert "ProfileNotFound: spec.profile.ref" in message


async def test_a_forged_path_of_nodes_is_not_mounted() -> None:
    world = await serving()
    forge(
        world.cluster.objects[PLAN],
        "model.source",
        {"huggingFace": {"revision": "v1", "cache": {"node": {"path": "/etc/kubernetes"}}}},
    )
    refuse_newest(world)
    await world.until_quiet()
    assert "/etc/kubernetes" not in made(world)
    assert summary(world)["Planned"] == ("False", "ProtectedField")


async def test_a_permission_that_is_withdrawn_holds_for_the_plan_in_force_too() -> None:
    world = World(changed(service(), "spec.podTemplates", [FORGED]))
    world.restart(replace(SETTINGS, pod_templates_allow=(Permission("hostPath"), Permission("privileged"))))
    await world.until_quiet()
    assert "hostPath" in made(world)
    world.restart()
    await world.until_quiet()
    assert "hostPath" in made(world), "what runs stays"
    for key in [key for key in world.cluster.objects if key.kind in (GROUP_KIND, "StatefulSet")]:
        del world.cluster.objects[key]
    await world.until_quiet()
    assert "hostPath" not in made(world), "and is not made again"
    assert summary(world)["Planned"] == ("False", "ProtectedField")
    world.cluster.change(podTemplates=[])
    await world.until_quiet()
    assert "hostPath" not in made(world)
    assert summary(world)["Planned"] == ("True", "PlanReady")


@pytest.mark.parametrize("known", [{}, {"other-token": "unmarked"}], ids=["missing", "unmarked"])
async def test_a_forged_plan_brings_no_secret_into_pods(known: dict[str, Any]) -> None:
    world = await serving()
    forge(world.cluster.objects[PLAN], "podTemplates", [OF_A_SECRET])
    world.cluster.patched_secrets = known
    refuse_newest(world)
    await world.until_quiet()
    assert "other-token" not in made(world)
    assert summary(world)["Planned"] == ("False", "SecretNotAllowed" if known else "SecretNotFound")


async def test_a_forged_reference_to_a_secret_is_refused() -> None:
    world = await serving()
    forge(
        world.cluster.objects[PLAN], "coordinator", {"auth": {"apiKeySecretRef": {"name": "other-token", "key": "t"}}}
    )
    world.cluster.unmarked_in_active_plan = (
        SecretReference("spec.coordinator.auth.apiKeySecretRef", "other-token", "api-keys"),
    )
    refuse_newest(world)
    await world.until_quiet()
    assert "other-token" not in made(world)
    assert summary(world)["Planned"] == ("False", "SecretNotAllowed")


async def test_the_spec_of_an_older_plan_never_comes_into_pods() -> None:
    world = await serving()
    for key, item in world.cluster.objects.items():
        if key.kind == "ControllerRevision":
            forge(item, "podTemplates", [FORGED])
            number = item["revision"]
    world.cluster.service["metadata"].setdefault("annotations", {})["weft.dev/rollback-to"] = str(number)
    await world.until_quiet()
    assert summary(world)["Planned"] == ("True", "RolledBack")
    assert "hostPath" not in made(world)


async def test_secrets_of_the_plan_in_force_are_read_as_far_as_there_are_few() -> None:
    world = await serving()
    plan = world.cluster.objects[PLAN]
    names = [f"s{number:02}" for number in range(MAX_PATCHED_SECRETS + 8)]
    volumes = [{"name": name, "secret": {"secretName": name}} for name in names]
    forge(plan, "podTemplates", [{"patch": {"spec": {"volumes": volumes}}}])
    forge(plan, "coordinator", {"auth": {"apiKeySecretRef": {"name": "keys", "key": "t"}}})
    read: list[str] = []

    class Stored:
        def get(self, key: ObjectKey) -> Manifest:
            if key.kind == "Secret":
                read.append(key.name)
                return {
                    "type": "weft.dev/credentials" if key.name == "s00" else "Opaque",
                    "metadata": {"name": key.name},
                }
            if key.name == "demo" and key.kind == "DisaggInferenceService":
                return world.cluster.service
            raise NotFoundError(f"{key.name} is not there")

        def list(self, _version: str, kind: str, **_: str) -> list[Manifest]:
            return [plan] if kind == "ConfigMap" else []

    seen = observe(cast(KubeClient, Stored()), ServiceKey("default", "demo"))
    assert seen is not None
    assert [reference.name for reference in seen.unmarked_in_active_plan] == ["keys"]
    assert seen.patched_secrets == {name: "marked" if name == "s00" else "unmarked" for name in names[:32]}
    assert set(read) == {"demo-token", "keys", *names[:MAX_PATCHED_SECRETS]}
