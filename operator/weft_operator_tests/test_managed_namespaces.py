"""The operator's bindings in labelled namespaces, and the start anew where other namespaces have the label."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from weft_operator.api.objects import Manifest, ObjectKey
from weft_operator.controllers import program
from weft_operator.errors import ConflictError, NotFoundError, TransientError
from weft_operator.kube.managed_namespaces import ManagedNamespaces, role_binding
from weft_operator.settings import Settings, SettingsError, settings_from_env
from weft_operator_tests.samples import SETTINGS

ROLE, ACCOUNT = "weft-system-weft-operator-namespace", "weft-system/weft-operator"


class Api:
    """Namespaces with their labels and the bindings of one name, as an API server has them."""

    def __init__(self, **managed: str) -> None:
        self.labels = {name.replace("_", "-"): value for name, value in managed.items()}
        self.ending: set[str] = set()
        self.gone: set[str] = set()
        self.bindings: dict[str, Manifest] = {}
        self.writes: list[str] = []
        self.down = 0

    def list(
        self, api_version: str, kind: str, *, namespace: str = "", selector: str = "", fields: str = ""
    ) -> list[Manifest]:
        assert namespace == ""
        if self.down:
            self.down -= 1
            raise TransientError("no answer")
        if kind == "Namespace":
            assert (api_version, selector) == ("v1", "weft.dev/managed=true")
            marks = {name: {"deletionTimestamp": "now"} if name in self.ending else {} for name in self.labels}
            chosen = [name for name, value in self.labels.items() if value == "true"]
            return [{"metadata": {"name": name, **marks[name]}} for name in chosen]
        assert (kind, fields) == ("RoleBinding", f"metadata.name={ROLE}"), "others may not be listed"
        return [
            {**item, "metadata": {**item["metadata"], "uid": f"uid-{name}"}} for name, item in self.bindings.items()
        ]

    def create(self, manifest: Manifest) -> Manifest:
        namespace = manifest["metadata"]["namespace"]
        self.writes.append(f"create {namespace}")
        if namespace in self.gone:
            raise NotFoundError("it is gone")
        if namespace in self.bindings:
            raise ConflictError("it exists")
        self.bindings[namespace] = manifest
        return manifest

    def delete(self, key: ObjectKey, *, uid: str) -> None:
        assert (key.kind, key.name, uid) == ("RoleBinding", ROLE, f"uid-{key.namespace}")
        self.writes.append(f"delete {key.namespace}")
        del self.bindings[key.namespace]


def managed(api: Api) -> ManagedNamespaces:
    return ManagedNamespaces(api, role=ROLE, account=ACCOUNT, sleep=lambda _: asyncio.sleep(0))


async def test_labelled_namespaces_are_bound_once_and_others_let_go() -> None:
    api = Api(team_a="true", team_b="false", team_c="true")
    found = managed(api)
    assert await found.names() == ("team-a", "team-c")
    assert await found.names() == ("team-a", "team-c")
    assert api.writes == ["create team-a", "create team-c"], "what is right stays"
    assert api.bindings["team-a"]["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": ROLE,
    }
    assert api.bindings["team-a"]["subjects"] == [
        {"kind": "ServiceAccount", "name": "weft-operator", "namespace": "weft-system"}
    ]
    api.labels["team-a"] = "no"
    api.ending.add("team-c")
    assert await found.names() == ()
    assert api.bindings == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"subjects": [{"kind": "ServiceAccount", "name": "intruder", "namespace": "team-a"}]},
        {"subjects": [*role_binding(ROLE, ACCOUNT, "team-a")["subjects"], {"kind": "User", "name": "intruder"}]},
        {"subjects": None},
        {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"}},
    ],
)
async def test_a_binding_that_was_changed_is_recreated(wrong: dict[str, Any]) -> None:
    api = Api(team_a="true")
    api.bindings["team-a"] = {**role_binding(ROLE, ACCOUNT, "team-a"), **wrong}
    assert await managed(api).names() == ("team-a",)
    assert api.writes == ["delete team-a", "create team-a"]
    assert api.bindings["team-a"] == role_binding(ROLE, ACCOUNT, "team-a")


async def test_a_namespace_that_vanishes_meanwhile_is_none_and_another_replica_may_be_faster() -> None:
    api = Api(team_a="true", team_b="true")
    api.gone.add("team-a")
    assert await managed(api).names() == ("team-b",)


async def test_an_api_server_that_is_away_changes_nothing() -> None:
    api = Api(team_a="true")
    api.down = 2
    found = managed(api)
    assert await found.first_names() == ("team-a",)
    api.down = 3
    waiting = asyncio.create_task(found.changed(("team-a",)))
    for _ in range(200):
        await asyncio.sleep(0.001)
        assert not waiting.done()
        if not api.down:
            break
    api.labels["team-b"] = "true"
    assert await asyncio.wait_for(waiting, 60) == ("team-a", "team-b")


async def test_everything_begins_anew_with_other_namespaces_and_ends_when_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: list[tuple[str, ...]] = []
    now = asyncio.Event()
    api = Api(team_a="true")

    async def serve(_api: object, settings: Settings, stopping: asyncio.Event, changed: Any = None) -> None:
        served.append(settings.watch_namespaces)
        now.set()
        await asyncio.wait((asyncio.ensure_future(stopping.wait()), changed), return_when=asyncio.FIRST_COMPLETED)

    monkeypatch.setattr(program, "connect", lambda: api)
    monkeypatch.setattr(program, "_serve", serve)
    monkeypatch.setattr("weft_operator.kube.managed_namespaces.POLL_S", 0.001)
    stops: list[Any] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", lambda _number, call: stops.append(call))
    settings = replace(SETTINGS, namespace_role=ROLE, service_account=ACCOUNT)
    running = asyncio.create_task(program.run(settings))
    steps: tuple[tuple[dict[str, str], tuple[str, ...]], ...] = (
        ({}, ("team-a",)),
        ({"team-b": "true"}, ("team-a", "team-b")),
        ({"team-a": "x"}, ("team-b",)),
    )
    for labels, expected in steps:
        api.labels |= labels
        await asyncio.wait_for(now.wait(), 60)
        now.clear()
        assert served[-1] == expected
    api.labels = {}
    await asyncio.wait_for(now.wait(), 60)
    assert served[-1] == (), "it waits, and does not watch all"
    stops[0]()
    await asyncio.wait_for(running, 60)


def test_the_settings_of_labelled_namespaces() -> None:
    least = {"WEFT_ROUTER_IMAGE": "r"}
    found = settings_from_env({**least, "WEFT_NAMESPACE_ROLE": ROLE, "WEFT_SERVICE_ACCOUNT": ACCOUNT})
    assert (found.namespace_role, found.service_account) == (ROLE, ACCOUNT)
    for wrong in (
        {"WEFT_NAMESPACE_ROLE": ROLE},
        {"WEFT_NAMESPACE_ROLE": ROLE, "WEFT_SERVICE_ACCOUNT": "weft"},
        {"WEFT_NAMESPACE_ROLE": ROLE, "WEFT_SERVICE_ACCOUNT": ACCOUNT, "WEFT_WATCH_NAMESPACES": "a"},
    ):
        with pytest.raises(SettingsError, match="WEFT_"):
            settings_from_env({**least, **wrong})
