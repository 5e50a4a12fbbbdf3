"""Status, the context guard and the command line's manners."""

import json
from pathlib import Path

import pytest

from weft_e2e.cluster import cgroups, cli, lifecycle, status
from weft_e2e.cluster.config import ClusterConfig
from weft_e2e.cluster.context import require_named_context
from weft_e2e.cluster.errors import Refused
from weft_e2e.cluster.paths import ClusterPaths
from weft_e2e.cluster.readiness import node_is_complete

CREATED = "2026-01-01T00:00:00Z"
CREATED_S = 1767225600.0


def _node(name: str, *, ready: str = "True", gpus: str = "8") -> dict[str, object]:
    return {
        "metadata": {"name": name, "creationTimestamp": CREATED},
        "status": {
            "conditions": [
                {"type": "DiskPressure", "status": "True", "lastHeartbeatTime": CREATED},
                {"type": "Ready", "status": ready, "lastHeartbeatTime": CREATED},
            ],
            "allocatable": {"cpu": "2", "nvidia.com/gpu": gpus, "rdma/ib": "8"},
        },
    }


def test_nodes_are_listed_in_their_order_with_their_power() -> None:
    items = [_node("fake-10"), _node("fake-2"), _node("node-2", ready="Unknown"), _node("node-1")]
    nodes = status.parse_nodes(items, {"node-1": "on", "node-2": "off", "node-3": "on"}, CREATED_S + 300)
    assert [node.name for node in nodes] == ["node-1", "node-2", "node-3", "fake-2", "fake-10"]
    assert [node.ready for node in nodes] == [True, False, False, True, True]
    assert [node.power for node in nodes] == ["on", "off", "on", "fake", "fake"]
    assert nodes[0].age_s == 300
    assert nodes[2].age_s is None


def test_the_table_and_the_json_say_the_same() -> None:
    found = status.ClusterStatus(
        name="demo",
        running=True,
        context="weft-demo",
        kubeconfig="/k",
        api_url="https://127.0.0.1:1",
        logs="/l",
        problem="",
        nodes=status.parse_nodes([_node("node-1")], {"node-1": "on"}, CREATED_S + 7200),
    )
    assert found.healthy
    text = status.table(found)
    assert "node-1      True    on      2h      8       8" in text
    assert "simulated" in text
    parsed = json.loads(found.to_json())
    assert parsed["nodes"][0] == {
        "name": "node-1",
        "ready": True,
        "power": "on",
        "age_s": 7200,
        "gpus": "8",
        "rdma": "8",
    }
    assert parsed["healthy"] is True


@pytest.mark.parametrize(
    ("node", "complete"),
    [
        (_node("node-1"), True),
        (_node("node-1", ready="False"), False),
        (_node("node-1", gpus="0"), False),
        ({"metadata": {"name": "node-1"}}, False),
        ({"metadata": {"name": "node-1"}, "status": {}}, False),
    ],
)
def test_a_node_is_complete_only_with_its_devices(node: dict[str, object], complete: bool) -> None:
    assert node_is_complete(node, ClusterConfig()) is complete


def test_a_node_whose_power_has_returned_must_speak_anew() -> None:
    assert node_is_complete(_node("node-1"), ClusterConfig(), since=CREATED_S + 0.9), "heartbeats are in whole seconds"
    assert not node_is_complete(_node("node-1"), ClusterConfig(), since=CREATED_S + 1)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    monkeypatch.delenv("KUBE_CONTEXT", raising=False)
    return tmp_path


def test_no_context_is_ever_assumed(empty_cache: Path) -> None:
    with pytest.raises(Refused, match="KUBE_CONTEXT"):
        require_named_context(None)


def test_a_context_must_be_the_one_that_was_named(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBE_CONTEXT", "staging")
    assert require_named_context(None) == "staging"
    assert require_named_context("staging") == "staging"
    with pytest.raises(Refused, match="'production' was not named"):
        require_named_context("production")
    assert require_named_context("production", named="production") == "production"


def test_only_clusters_made_here_need_no_naming(empty_cache: Path) -> None:
    with pytest.raises(Refused, match="'weft-local' was not named"):
        require_named_context("weft-local")
    ClusterPaths.of("local").root.mkdir(parents=True)
    assert require_named_context("weft-local") == "weft-local"


@pytest.mark.parametrize(
    "argv",
    [
        ["status", "--name", "nowhere"],
        ["kubectl", "--name", "nowhere", "get", "nodes"],
        ["load", "--name", "nowhere", "image"],
        ["up", "--name", "Bad_Name"],
        ["fake-nodes", "--name", "nowhere", "3"],
        ["forward", "--name", "nowhere", "no-slash:80"],
    ],
)
def test_a_refusal_is_one_line_and_status_1(
    argv: list[str], empty_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 1
    told = capsys.readouterr().err
    assert told.startswith("weft cluster: ")
    assert len(told.splitlines()) == 1


COMMANDS = [
    ["up"],
    ["down"],
    ["status"],
    ["load", "image"],
    ["power-off", "node-1"],
    ["power-on", "node-1"],
    ["fake-nodes", "0"],
    ["forward", "weft/service:80"],
    ["kubectl", "get", "nodes"],
    ["helm", "list"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command[0]))
@pytest.mark.parametrize("name", ["", ".", "..", "/x", "a/b", "../x", "../../precious", "x\n", "{root}/precious"])
def test_a_name_never_leads_out_of_the_folder_of_clusters(
    command: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("precious", "cache/x", "cache/clusters/a/b", "cache/clusters/mine"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file").touch()
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    before = sorted(tmp_path.rglob("*"))

    assert cli.main([command[0], "--name", name.format(root=tmp_path), *command[1:]]) == 1

    assert capsys.readouterr().err.startswith("weft cluster: name '")
    assert sorted(tmp_path.rglob("*")) == before


def test_every_verb_with_a_name_is_tried_with_bad_ones() -> None:
    assert {command[0] for command in COMMANDS} | {"setup", "program"} == set(cli.cluster.commands), (
        "these are for all clusters: no name is used"
    )


@pytest.mark.parametrize("root", ["precious", "clusters/other", "clusters"])
def test_only_the_folder_that_belongs_to_the_name_is_removed(
    root: str, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "destroy", lambda _cluster: pytest.fail("something was ended"))
    (empty_cache / root).mkdir(parents=True)
    with pytest.raises(Refused, match="nothing was removed"):
        lifecycle._remove(ClusterPaths("mine", empty_cache / root))
    with pytest.raises(Refused, match="name"):
        lifecycle._remove(ClusterPaths("..", empty_cache / "clusters" / ".."))
    assert (empty_cache / root).is_dir()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["get", "pods"], ("local", ["get", "pods"])),
        (["-n", "weft-system", "get", "pods"], ("local", ["-n", "weft-system", "get", "pods"])),
        (["--name", "demo", "get", "pods"], ("demo", ["get", "pods"])),
        (["--name=demo", "--help"], ("demo", ["--help"])),
        (["install", "--name", "x"], ("local", ["install", "--name", "x"])),
        ([], ("local", [])),
    ],
)
def test_a_clients_own_options_are_left_to_it(words: list[str], expected: tuple[str, list[str]]) -> None:
    context = cli.cluster.commands["kubectl"].make_context("kubectl", list(words))
    assert cli.split_name(context.params["words"]) == expected
