"""Unchanged means not rebuilt; what is pushed is what the chart asks for."""

import threading
from pathlib import Path

import pytest
import yaml

from weft_e2e import images
from weft_e2e.cluster import children
from weft_e2e.cluster.errors import SetupError
from weft_e2e.cluster.progress import Work
from weft_e2e.images import BuildFailedError, CannotBuildError, architectures, buildah, shelf
from weft_e2e.images.architectures import ARCHITECTURES
from weft_e2e.images.catalogue import IMAGES, repository_root
from weft_e2e.images.cli import main


class FakeStore:
    """Stands in for buildah: remembers what was built and pushed."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.size = 60.0
        self.built: list[str] = []
        self.contexts: dict[str, set[str]] = {}
        self.architectures: dict[str, str] = {}
        self.compiled: dict[str, str | None] = {}
        self.pushed: list[tuple[str, str, tuple[str, ...]]] = []
        self.indexes: dict[str, list[str]] = {}

    def names(self) -> list[str]:
        return [*self.held, "docker.io/library/redis:7", "localhost/weft-other:1"]

    def remove(self, refs: list[str], *, log: Path) -> None:
        assert log.name == "prune.log"
        self.held -= set(refs)

    def megabytes(self, ref: str) -> float:
        assert ref in self.held
        return self.size

    def exists(self, ref: str) -> bool:
        return ref in self.held

    def build(self, ref: str, *, context: Path, dockerfile: str, args: dict[str, str], log: Path, arch: str) -> None:
        assert log.name == f"{ref.partition('/')[2].partition(':')[0]}.log"
        assert (context / dockerfile).is_file()
        assert args["PYTHON_IMAGE"] == "base:1"
        self.compiled[ref] = args.get("COMPILED")
        self.contexts[ref] = {str(path.relative_to(context)) for path in context.rglob("*") if path.is_file()}
        self.built.append(ref)
        self.architectures[ref] = arch
        self.held.add(ref)

    def push(self, ref: str, destination: str, *, options: tuple[str, ...], log: Path) -> None:
        assert log.name.startswith("push-")
        self.pushed.append((ref, destination, tuple(options)))

    def push_for_all(self, refs: list[str], destination: str, *, options: tuple[str, ...], log: Path) -> None:
        assert log.name.startswith("push-")
        assert options == ()
        self.indexes[destination] = [self.architectures[ref] for ref in refs]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeStore:
    fake = FakeStore()
    for verb in ("exists", "megabytes", "build", "push", "push_for_all", "names", "remove"):
        monkeypatch.setattr(buildah, verb, getattr(fake, verb))
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    monkeypatch.setenv("WEFT_PYTHON_IMAGE", "base:1")
    return fake


def test_an_unchanged_image_is_not_built_again(store: FakeStore) -> None:
    first = images.build(["weft-router", "weft-mock-engine"])
    assert sorted(store.built) == sorted(first.values())
    assert images.build(["weft-router", "weft-mock-engine"]) == first
    assert len(store.built) == 2
    assert images.refs(["weft-router", "weft-mock-engine"]) == first


def test_an_image_above_its_limit_is_refused_also_when_it_is_there(store: FakeStore) -> None:
    store.size = 501.0
    for _ in range(2):
        with pytest.raises(BuildFailedError, match=r"weft-operator:\w+ has 501 MB, and 500 are allowed"):
            images.build(["weft-operator"])
    assert len(store.built) == 1
    images.build(["weft-operator"], silicon=True)
    store.size = 651.0
    with pytest.raises(BuildFailedError, match="has 651 MB, and 650 are allowed"):
        images.build(["weft-operator"], silicon=True)


def test_context_holds_the_hashed_files_and_the_dockerfile_only(store: FakeStore) -> None:
    ref = images.build(["weft-router"])["weft-router"]
    recipe = shelf.recipe_of(IMAGES["weft-router"], python_image="base:1")
    assert store.contexts[ref] == {*recipe.files, "images/router/Dockerfile"}
    assert not any("weft_operator" in name or "_tests" in name for name in store.contexts[ref])


def test_another_base_gives_another_tag(store: FakeStore) -> None:
    assert images.refs(["weft-router"], python_image="base:2") != images.refs(["weft-router"])


def test_only_who_asks_waits_for_the_compiled_router(store: FakeStore) -> None:
    plain = images.build(["weft-router", "weft-mock-engine"])
    compiled = images.build(["weft-router", "weft-mock-engine"], compiled=True)
    assert plain["weft-router"] != compiled["weft-router"]
    assert plain["weft-mock-engine"] == compiled["weft-mock-engine"], "nothing of it is ever compiled"
    said = store.compiled
    assert (said[plain["weft-router"]], said[compiled["weft-router"]]) == ("0", "1")
    assert said[plain["weft-mock-engine"]] is None


@pytest.mark.parametrize("words", [["--published"], ["--compiled", "weft-router"]])
def test_what_is_for_a_registry_is_compiled(store: FakeStore, words: list[str]) -> None:
    assert main(["build", *words]) == 0
    assert store.compiled[images.refs(["weft-router"], compiled=True)["weft-router"]] == "1"


def test_images_are_built_two_at_a_time(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    met = threading.Barrier(2, timeout=20)

    def build(ref: str, **_: object) -> None:
        met.wait()
        store.held.add(ref)

    monkeypatch.setattr(buildah, "build", build)
    assert set(images.build(["weft-router", "weft-mock-engine"]).values()) == store.held


def test_a_second_builder_says_that_it_waits_and_finds_the_work_done(store: FakeStore) -> None:
    waits = threading.Event()
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        waits.set()

    with shelf.one_at_a_time():
        second = threading.Thread(target=images.build, args=(["weft-router"],), kwargs={"report": report})
        second.start()
        assert waits.wait(20)
        assert lines == ["waiting for another process that builds images …"]
        store.held = set(images.refs(["weft-router"]).values())
    second.join(20)
    assert store.built == []


def test_a_failed_build_is_told_and_the_other_one_kept(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(ref: str, **_: object) -> None:
        if "router" in ref:
            raise BuildFailedError("no such package")
        store.held.add(ref)

    monkeypatch.setattr(buildah, "build", build)
    lines: list[str] = []
    with pytest.raises(BuildFailedError, match="no such package"):
        images.build(["weft-router", "weft-mock-engine"], report=lines.append)
    assert [ref.partition(":")[0] for ref in store.held] == ["localhost/weft-mock-engine"]
    assert not any(line.startswith("made weft-router") for line in lines)


def test_beside_the_programs_all_images_are_built_that_hold_none(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: "/usr/bin/buildah")
    names = ["weft-operator", "weft-router", "weft-mock-engine", "weft-redis"]
    task = images.task()
    assert list(task.parts) == names
    assert min(task.parts.values()) > 0
    lines: list[str] = []
    task.run(Work(task.parts, lines.append))
    assert store.held == set(images.refs(names).values())
    assert {line.partition(" in ")[0] for line in lines} == {f"made {name}" for name in names}
    assert images.task().parts == {}, "nothing is built twice"


def test_on_a_bare_machine_all_images_are_still_to_be_built(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_PYTHON_IMAGE")
    monkeypatch.setattr("shutil.which", lambda _name: None)
    monkeypatch.setattr(buildah, "exists", buildah.require)
    parts = images.task().parts
    assert next(iter(parts)) == "base image"
    assert len(parts) == 5


def test_an_unknown_image_is_refused_with_the_choice(store: FakeStore) -> None:
    with pytest.raises(CannotBuildError, match=r"no image 'weft-rooter'; choose from weft-operator, weft-router"):
        images.build(["weft-rooter"])
    assert store.built == []


def test_push_builds_and_names_images_as_the_chart_does(store: FakeStore) -> None:
    chart = yaml.safe_load((repository_root() / "charts/weft/Chart.yaml").read_text())
    pushed = images.push("registry.example.com/team/", options=["--tls-verify=false"])
    version = chart["appVersion"]
    assert pushed == {
        name: f"registry.example.com/team/{name}:{version}"
        for name in ("weft-operator", "weft-router", "weft-mock-engine")
    }
    assert [destination for _, destination, _ in store.pushed] == [f"docker://{ref}" for ref in pushed.values()]
    assert {ref for ref, _, _ in store.pushed} == set(store.built)
    assert all(options == ("--tls-verify=false",) for _, _, options in store.pushed)


def test_push_for_two_architectures_gives_one_name_for_both(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    register_emulators(monkeypatch, tmp_path)
    pushed = images.push("registry.example.com/team", tag="v1", architectures=["amd64", "arm64"])
    assert store.indexes == {f"docker://{name}": ["amd64", "arm64"] for name in pushed.values()}
    assert len(store.built) == 2 * len(pushed)
    assert store.pushed == []


def register_emulators(monkeypatch: pytest.MonkeyPatch, folder: Path, *, flags: str = "POCF") -> None:
    """Make this machine one that runs programs of both architectures."""
    for machine in ARCHITECTURES.values():
        (folder / f"qemu-{machine}").write_text(f"enabled\ninterpreter /usr/bin/qemu-{machine}\nflags: {flags}\n")
    monkeypatch.setattr(architectures, "BINFMT", folder)


@pytest.mark.parametrize("flags", [None, "P"])
def test_an_architecture_that_cannot_run_here_is_refused_before_anything_is_built(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: str | None
) -> None:
    foreign = next(arch for arch in ARCHITECTURES if arch != architectures.native())
    if flags is None:
        monkeypatch.setattr(architectures, "BINFMT", tmp_path / "none")
    else:
        register_emulators(monkeypatch, tmp_path, flags=flags)
    with pytest.raises(CannotBuildError, match=f"cannot run {foreign} programs: .*qemu-user-static"):
        images.push("registry.example.com/team", architectures=[architectures.native(), foreign])
    assert store.built == []


def test_push_adds_the_operator_with_the_tables_under_a_tag_of_its_own(store: FakeStore) -> None:
    pushed = images.push("registry.example.com/team", tag="v1", silicon=True)
    assert pushed["weft-operator"] == "registry.example.com/team/weft-operator:v1"
    assert pushed["weft-operator-silicon"] == "registry.example.com/team/weft-operator:v1-silicon"
    assert len(set(store.built)) == len(pushed) == 4
    with_tables = images.refs(["weft-operator", "weft-router"], silicon=True)
    without = images.refs(["weft-operator", "weft-router"])
    assert with_tables["weft-operator"] != without["weft-operator"]
    assert with_tables["weft-router"] == without["weft-router"]
    assert (with_tables["weft-operator"], f"docker://{pushed['weft-operator-silicon']}", ()) in store.pushed


def test_push_takes_a_tag_of_your_own(store: FakeStore) -> None:
    assert images.push("localhost:5000", tag="v1")["weft-router"] == "localhost:5000/weft-router:v1"


@pytest.mark.parametrize("registry", ["", "  ", "https://registry.example.com", "two words"])
def test_a_registry_that_is_none_is_refused_before_anything_is_built(store: FakeStore, registry: str) -> None:
    with pytest.raises(CannotBuildError, match=r"write it as registry\.example\.com/team"):
        images.push(registry)
    assert store.built == []


def test_chart_values_name_values_that_the_chart_has() -> None:
    values = yaml.safe_load((repository_root() / "charts/weft/values.yaml").read_text())
    refs = {name: f"localhost/{name}:abc" for name in IMAGES}
    arguments = images.chart_values(refs)
    assert arguments[::2] == ["--set-string"] * len(IMAGES)
    for argument in arguments[1::2]:
        path, _, ref = argument.partition("=")
        node = values
        for key in path.split("."):
            node = node[key]
        assert isinstance(node, str)
        assert ref in refs.values()
    assert images.chart_values({"weft-router": "r:1"}) == ["--set-string", "router.image=r:1"]


def test_prune_removes_old_builds_and_nothing_of_others(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "programs_of", lambda image: dict.fromkeys(image.programs, Path(__file__)))
    current = set(images.refs().values())
    current |= set(images.refs(compiled=True).values()) | set(images.refs(silicon=True).values())
    old = {"localhost/weft-router:000000000000", "localhost/weft-python:000000000000"}
    store.held = current | old
    assert set(images.prune()) == old
    assert store.held == current


def test_list_prints_names_as_json_without_building(store: FakeStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json", "weft-router"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == images.refs(["weft-router"])
    assert main(["list", "weft-router"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("not built")
    assert store.built == []


def test_only_the_published_images_are_built_for_a_registry(store: FakeStore) -> None:
    assert main(["build", "--published"]) == 0
    assert sorted(ref.partition(":")[0] for ref in store.built) == [
        "localhost/weft-mock-engine",
        "localhost/weft-operator",
        "localhost/weft-router",
    ]


def test_an_error_is_one_line_and_exit_status_1(store: FakeStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "nothing"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: there is no image 'nothing'")


def test_a_missing_program_says_how_to_get_it(store: FakeStore) -> None:
    with pytest.raises(CannotBuildError, match=r"weft-prometheus: prometheus-\S+ is not built yet"):
        images.refs(["weft-prometheus"])


def test_without_root_or_buildah_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    with pytest.raises(CannotBuildError, match="apt-get install buildah"):
        buildah.require()
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(CannotBuildError, match="needs root"):
        buildah.require()


def test_who_waits_for_another_build_ends_when_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "images_cache", lambda: tmp_path)
    checks = iter([None, SetupError("interrupted")])

    def check() -> None:
        if (error := next(checks)) is not None:
            raise error

    monkeypatch.setattr(children, "check", check)
    monkeypatch.setattr(shelf, "LOCK_PAUSE_S", 0.01)
    with shelf.one_at_a_time(), pytest.raises(SetupError, match="interrupted"), shelf.one_at_a_time():
        raise AssertionError("two builds at a time")
