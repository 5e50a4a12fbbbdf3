"""Images come to a kind, k3d or minikube cluster by Docker or Podman: the exact commands, held by strict stand-ins."""

import json
from pathlib import Path

import pytest

from weft_e2e import images
from weft_e2e.demo.install import bring_up, check_setup
from weft_e2e.demo.settings import Settings
from weft_e2e.demo.steps import DemoFailed, Steps
from weft_e2e.images import BuildFailedError, CannotBuildError, node_loading
from weft_e2e.images.catalogue import published_names
from weft_e2e.images.node_loading import NodeLoader, loader_of
from weft_e2e_tests.fake_kube import GPU_NODE
from weft_e2e_tests.stand_ins import StandIns, Verb, verb

BUILD = verb("build", valued=["--file", "--tag", "--build-arg"], required=["--file", "--tag"], arguments=(1, 1))
KIND_NAMES = verb("load docker-image", valued=["--name"], required=["--name"], arguments=(1, 99))
KIND_ARCHIVES = verb("load image-archive", valued=["--name"], required=["--name"], arguments=(1, 99))
K3D = verb("image import", valued=["--cluster"], required=["--cluster"], arguments=(1, 99))
MINIKUBE = verb("image load", valued=["--profile"], required=["--profile"], arguments=(1, 1))
PROFILES = verb(
    "profile list",
    valued=["--output"],
    required=["--output"],
    output=json.dumps({"valid": [{"Name": "mini"}], "invalid": []}),
)


def docker(*, runs: bool = True, has: bool = False) -> list[Verb]:
    return [
        verb("info", status=0 if runs else 1),
        verb("image inspect", arguments=(1, 1), status=0 if has else 1),
        BUILD,
    ]


def podman() -> list[Verb]:
    save = verb("save", valued=["--output", "--format"], required=["--output", "--format"], arguments=(1, 1))
    return [*docker(), save]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandIns:
    """Give an empty PATH, to put stand-ins on."""
    found = StandIns(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(found.folder))
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    for variable in ("WEFT_PYTHON_IMAGE", "PIP_INDEX_URL", "KUBE_CONTEXT"):
        monkeypatch.delenv(variable, raising=False)
    return found


def load(context: str) -> dict[str, str]:
    loader = loader_of(context)
    assert loader is not None
    return node_loading.build_and_load(loader, node_loading.check_tools(loader), lambda _line: None)


@pytest.mark.parametrize(
    ("context", "loader"),
    [
        ("kind-kind", NodeLoader("kind", "kind")),
        ("kind-two-words", NodeLoader("kind", "two-words")),
        ("k3d-k3s-default", NodeLoader("k3d", "k3s-default")),
        ("minikube", NodeLoader("minikube", "minikube")),
        ("mini", NodeLoader("minikube", "mini")),
        ("production", None),
        ("kind-", None),
        ("my-kind-x", None),
    ],
)
def test_a_context_tells_by_its_name_how_images_come_to_its_nodes(
    context: str, loader: NodeLoader | None, programs: StandIns
) -> None:
    programs.put("minikube", PROFILES)
    assert loader_of(context) == loader


@pytest.mark.parametrize("said", ['{"error": {"Op": "open"}}', "", "not JSON"])
def test_minikube_without_a_profile_knows_no_context(said: str, programs: StandIns) -> None:
    programs.put("minikube", verb("profile list", valued=["--output"], output=said, status=1))
    assert loader_of("mini") is None


@pytest.mark.parametrize(
    ("context", "tool", "known", "words"),
    [
        ("kind-x", "kind", KIND_NAMES, "kind load docker-image {ref} --name x"),
        ("k3d-x", "k3d", K3D, "k3d image import {ref} --cluster x"),
        ("minikube", "minikube", MINIKUBE, "minikube image load {ref} --profile minikube"),
    ],
)
def test_docker_builds_and_the_tool_takes_each_image_by_name(
    context: str, tool: str, known: Verb, words: str, programs: StandIns
) -> None:
    programs.put("docker", *docker())
    programs.put(tool, known)

    built = load(context)

    assert list(built) == published_names()
    assert programs.lines(tool) == [words.format(ref=ref) for ref in built.values()]
    builds = [call for call in programs.calls if call[:2] == ["docker", "build"]]
    assert [call[call.index("--tag") + 1] for call in builds] == list(built.values())
    for call, name in zip(builds, ("operator", "router", "mock-engine"), strict=True):
        assert call[call.index("--file") + 1] == f"{call[-1]}/images/{name}/Dockerfile"
        assert call[call.index("--build-arg") + 1] == "PYTHON_IMAGE=python:3.11-slim-bookworm"
    values = images.chart_values(built)
    assert f"router.image={built['weft-router']}" in values
    assert built["weft-router"].startswith("localhost/weft-router:")


@pytest.mark.parametrize(
    ("context", "tool", "known", "words"),
    [
        ("kind-x", "kind", KIND_ARCHIVES, "kind load image-archive {archive} --name x"),
        ("k3d-x", "k3d", K3D, "k3d image import {archive} --cluster x"),
        ("minikube", "minikube", MINIKUBE, "minikube image load {archive} --profile minikube"),
    ],
)
def test_podman_saves_each_image_and_the_tool_takes_the_archive(
    context: str, tool: str, known: Verb, words: str, programs: StandIns
) -> None:
    programs.put("docker", *docker(runs=False))
    programs.put("podman", *podman())
    programs.put(tool, known)

    built = load(context)

    saved = [call for call in programs.calls if call[:2] == ["podman", "save"]]
    archives = [call[call.index("--output") + 1] for call in saved]
    assert [call[-1] for call in saved] == list(built.values())
    assert all(call[call.index("--format") + 1] == "docker-archive" for call in saved)
    assert programs.lines(tool) == [words.format(archive=archive) for archive in archives]
    assert not any(Path(archive).exists() for archive in archives), "what was loaded takes no more room"
    assert programs.lines("docker") == ["docker info"], "whose daemon does not answer builds nothing"


def test_what_is_built_is_not_built_again_and_loaded_all_the_same(programs: StandIns) -> None:
    programs.put("docker", *docker(has=True))
    programs.put("kind", KIND_NAMES)

    load("kind-x")

    assert not any(call[:2] == ["docker", "build"] for call in programs.calls)
    assert len(programs.lines("kind")) == 3


def test_another_base_and_index_reach_the_build(programs: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    programs.put("docker", *docker())
    programs.put("kind", KIND_NAMES)
    monkeypatch.setenv("WEFT_PYTHON_IMAGE", "mirror.example.com/python:3.11")
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example.com/simple")

    load("kind-x")

    build = next(line for line in programs.lines("docker") if line.startswith("docker build"))
    assert "--build-arg PYTHON_IMAGE=mirror.example.com/python:3.11" in build
    assert "--build-arg PIP_INDEX_URL=https://mirror.example.com/simple" in build


def test_a_tool_that_fails_is_named_with_the_image(programs: StandIns) -> None:
    programs.put("docker", *docker())
    programs.put(
        "kind", verb("load docker-image", valued=["--name"], arguments=(1, 1), status=1, output="no nodes found")
    )

    with pytest.raises(BuildFailedError, match=r"(?s)loading localhost/weft-operator:\w+ failed .*no nodes found"):
        load("kind-x")


def test_what_is_missing_is_said_before_anything_starts(programs: StandIns) -> None:
    with pytest.raises(CannotBuildError, match="kind is not on PATH"):
        check_setup(Settings(context="kind-x"))

    programs.put("kind", KIND_NAMES)
    with pytest.raises(CannotBuildError, match="neither `docker info` nor `podman info` answers"):
        check_setup(Settings(context="kind-x"))

    programs.put("docker", *docker())
    check_setup(Settings(context="kind-x"))
    check_setup(Settings(context="kind-x", helm_set=("operator.replicas=2",)))
    assert programs.lines("kind") == []


def test_a_registry_needs_no_engine_and_an_unknown_context_needs_a_registry(programs: StandIns) -> None:
    check_setup(Settings(context="kind-x", registry="registry.example.com/team"))
    check_setup(Settings(context="mine", helm_set=("operator.image=registry.example.com/weft-operator:1",)))

    with pytest.raises(DemoFailed, match=r"(?s)make images push REGISTRY=.*kind \(context kind-NAME\), k3d"):
        check_setup(Settings(context="mine", helm_set=("operator.replicas=2",)))
    assert programs.calls == []


def test_the_demo_installs_the_chart_with_the_images_it_has_loaded(programs: StandIns) -> None:
    nodes = json.dumps({"items": [GPU_NODE, GPU_NODE]})
    programs.put("docker", *docker())
    programs.put("kind", KIND_NAMES)
    programs.put(
        "kubectl",
        verb("--context kind-x get nodes", valued=["-o"], required=["-o"], output=nodes),
        verb(
            "--context kind-x get namespace",
            valued=["-o", "-l"],
            flags=["--ignore-not-found"],
            arguments=(0, 1),
        ),
        verb("--context kind-x create", valued=["-f"], required=["-f"]),
    )
    programs.put(
        "helm",
        verb("--kube-context kind-x list", valued=["--namespace", "--filter"], flags=["--short"]),
        verb(
            "--kube-context kind-x upgrade",
            valued=["--namespace", "--timeout", "--set-string", "--set"],
            flags=["--install", "--wait"],
            required=["--install"],
            arguments=(2, 2),
        ),
    )
    said: list[str] = []

    bring_up(Settings(context="kind-x", helm_set=("operator.replicas=2",)), Steps(said.append))

    names = [call[0] for call in programs.calls]
    assert names.index("docker") < names.index("kind") < names.index("helm")
    upgrade = next(call for call in programs.calls if "upgrade" in call)
    loaded = [call[3] for call in programs.calls if call[0] == "kind"]
    keys = ("operator.image", "router.image", "mockEngine.image")
    assert {f"{key}={ref}" for key, ref in zip(keys, loaded, strict=True)} < set(upgrade)
    assert "operator.replicas=2" in upgrade
    assert not any("redis" in word or "prometheus" in word for word in upgrade), "those come from the public registry"
    assert any("load them into kind's cluster 'x'" in line for line in said)
