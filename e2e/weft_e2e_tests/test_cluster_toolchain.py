"""Builds: nothing twice, nothing half, and clear words about what is missing."""

import json
import re
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from weft_e2e.cluster import cgroups, cli, coredns, fake_nodes, golang, packages, preflight, state, toolchain
from weft_e2e.cluster.cgroups import tree
from weft_e2e.cluster.errors import NotRunning, Refused, SetupError
from weft_e2e.cluster.paths import ClusterPaths
from weft_e2e.cluster.progress import Work


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    return tmp_path


COMMON = ["kubernetes", "coredns", "helm", "prometheus", "promtool"]


def test_an_empty_cache_lacks_what_every_cluster_needs_and_no_more(empty_cache: Path) -> None:
    assert toolchain.missing() == [*COMMON, "pause", "forward"]
    with pytest.raises(SetupError, match="setup"):
        toolchain.tool_path("helm")


class Builder:
    """Builds every program at once, and keeps their names in the order of the calls."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def __call__(self, tools: Sequence[toolchain.Tool], *_flags: object, output: Path, **_other: object) -> None:
        self.calls.append([tool.name for tool in tools])
        for tool in tools:
            (output / tool.name if output.is_dir() else output).write_text("program")


@pytest.fixture
def builder(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Builder:
    made = Builder()
    monkeypatch.setattr(toolchain, "_compile", made)
    monkeypatch.setattr(toolchain, "_build_native", lambda name: toolchain.native_path(name).write_text("program"))
    monkeypatch.setattr(golang, "check_go", lambda: None)
    monkeypatch.setattr(golang, "run", lambda *_, **__: json.dumps({"Dir": "/nowhere"}))
    return made


def test_what_every_cluster_needs_is_built_in_one_go_and_once(builder: Builder) -> None:
    toolchain.build_all(lambda _: None)
    toolchain.build_all(lambda _: None)
    assert builder.calls == [COMMON]
    assert toolchain.missing() == []
    toolchain.tool_path("helm").unlink()
    toolchain.build_all(lambda _: None)
    assert builder.calls == [COMMON, ["helm"]], "only what is missing"


def test_all_that_was_announced_is_done_at_the_end(builder: Builder) -> None:
    names = frozenset([*COMMON, "kwok"])
    work = Work(toolchain.work_of(sorted(names)), lambda _: None)
    assert work.state().startswith("0 % done")
    toolchain.build(work, names)
    assert work.state().startswith("100 % done")


def test_others_are_built_for_who_asks(builder: Builder) -> None:
    toolchain.build_all(lambda _: None, frozenset({"kube-router"}))
    toolchain.build_all(lambda _: None, frozenset({"kube-router"}))
    assert builder.calls == [["kube-router"]]
    assert toolchain.tool_path("kube-router").exists()


def test_of_some_modules_manifests_are_kept_and_no_program_is_built(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "module/config/crd/standard"
    folder.mkdir(parents=True)
    (folder / "httproutes.yaml").write_text("kind: CustomResourceDefinition")
    monkeypatch.setattr(golang, "run", lambda *_, **__: json.dumps({"Dir": str(tmp_path / "module")}))
    toolchain.build_all(lambda _: None, frozenset({"gateway-api"}))
    assert builder.calls == []
    assert [path.name for path in toolchain.manifests_of("gateway-api")] == ["httproutes.yaml"]
    assert toolchain.missing(frozenset({"gateway-api"})) == []


def test_fake_nodes_build_their_program_for_a_cluster_that_runs(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = ClusterPaths.of("test")
    with pytest.raises(NotRunning):
        fake_nodes.scale(paths, 3, lambda _: None)
    assert builder.calls == []
    monkeypatch.setattr(state, "require", lambda _paths: None)
    monkeypatch.setattr(state, "locked", lambda _paths: pytest.fail("built before the cluster is touched"))
    with pytest.raises(pytest.fail.Exception):
        fake_nodes.scale(paths, 3, lambda _: None)
    assert builder.calls == [["kwok"]]


def test_a_program_is_built_anew_for_other_sources_or_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = shutil.copytree(toolchain.PROGRAMS, tmp_path / "programs")
    before = toolchain.digest(sources)
    (sources / "go.sum").write_text((sources / "go.sum").read_text() + "\n")
    other = shutil.copytree(toolchain.PROGRAMS, tmp_path / "others")
    monkeypatch.setattr(golang, "FLAGS", ("-trimpath",))
    digests = {before, toolchain.digest(sources), toolchain.digest(other)}
    assert len(digests) == 3


def test_two_builders_build_once(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    builders = [threading.Thread(target=toolchain.build_all, args=(lines.append,)) for _ in range(4)]
    for thread in builders:
        thread.start()
    for thread in builders:
        thread.join(15)
    assert builder.calls == [COMMON]
    assert toolchain.missing() == []


def test_programs_that_share_packages_are_of_one_kubernetes() -> None:
    """The containerd of Debian 12 carries Kubernetes 1.35 and no later one."""
    module = (toolchain.PROGRAMS / "go.mod").read_text()
    replaced = set(re.findall(r"^\tk8s\.io/\S+ => k8s\.io/\S+ (v\S+)", module, re.MULTILINE))
    assert toolchain.KUBERNETES.startswith("v1.35.")
    assert replaced == {"v0" + toolchain.KUBERNETES.removeprefix("v1")}


def test_dns_has_the_plugins_that_its_configuration_names() -> None:
    main = (toolchain.PROGRAMS / "cmd" / "coredns" / "main.go").read_text()
    compiled = set(re.findall(r"coredns/plugin/(\w+)", main))
    named = set(re.findall(r"^    (\w+)", coredns.COREFILE, re.MULTILINE))
    assert compiled == named


GO = """\
#!/bin/sh
case "$1" in
  list) printf 'small\ttrue\t{folder}\ta.go\nlarge\ttrue\t{folder}\tb.go\nready\tfalse\t{folder}\tb.go/a.go\n' ;;
  build) echo small >&2; echo 'go: downloading x v1' >&2; echo large >&2
         [ -e {folder}/fails ] && {{ echo '# large' >&2; echo 'b.go:1:1: no such type' >&2; exit 1; }}
         exit 0 ;;
esac
"""


def test_a_build_tells_how_far_it_is_by_the_size_of_what_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.go").write_text("x" * 100)
    (tmp_path / "b.go").write_text("x" * 300)
    go = tmp_path / "go"
    go.write_text(GO.format(folder=tmp_path))
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    sizes, share = golang.stale_sizes(["./x"], [], cwd=tmp_path)
    assert (sizes, share) == ({"small": 100, "large": 300}, 0.5)
    told: list[float] = []
    golang.build(["./x"], [], cwd=tmp_path, output=tmp_path / "out", sizes=sizes, advance=told.append)
    assert told == pytest.approx([0.225, 0.9]), "the last tenth is for linking"
    (tmp_path / "fails").touch()
    with pytest.raises(SetupError, match=r"(?s)go build.* failed:\n# large\nb.go:1:1: no such type") as failed:
        golang.build(["./x"], [], cwd=tmp_path, output=tmp_path / "out", sizes=sizes, advance=told.append)
    assert "downloading" not in str(failed.value)


def test_a_failed_build_leaves_nothing_and_tells_why(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    gcc = tools / "gcc"
    gcc.write_text('#!/bin/sh\nfor last; do :; done\necho "$last: no such compiler" >&2\nexit 1\n')
    gcc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    with pytest.raises(SetupError, match="no such compiler"):
        toolchain.build_all(lambda _: None, frozenset({"pause"}))
    assert [file.name for file in (empty_cache / "bin").iterdir()] == [".pause.lock"]


@pytest.mark.parametrize(
    ("text", "enough"),
    [
        ("go version go1.26.8 linux/amd64", True),
        ("go version go1.27rc1 linux/amd64", True),
        ("go version go2.0 linux/amd64", True),
        ("go version go1.25.9 linux/amd64", False),
        ("go version go1.9 linux/amd64", False),
        ("", False),
    ],
)
def test_go_versions_are_compared_as_numbers(text: str, enough: bool) -> None:
    assert golang.go_version_suffices(text) is enough


def test_a_missing_go_is_named_with_the_version_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"Go is missing: install Go 1\.26"):
        golang.check_go()


def test_missing_packages_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(packages, "SYSTEM_PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SetupError, match=r"containerd.*apt-get install .*libc6-dev"):
        packages.install(lambda _: None)
    assert "nsenter" in packages.missing_commands()


APT = """\
#!/bin/sh
echo "$@" >> {folder}/calls
if [ "$1" = update ]; then : > {folder}/lists; exit 0; fi
[ -e {folder}/lists ] || {{ echo "Unable to locate package socat" >&2; exit 100; }}
: > {folder}/socat; chmod +x {folder}/socat
"""


def test_missing_packages_are_installed_after_fetching_the_lists(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:

    def only_there(name: str, **_: object) -> str | None:
        return str(tmp_path / name) if (tmp_path / name).exists() else None

    monkeypatch.setattr(packages, "DEBIAN", {"socat": ("socat",)})
    monkeypatch.setattr(packages, "SYSTEM_PATH", str(tmp_path))
    monkeypatch.setattr(packages, "CNI_FOLDERS", (str(tmp_path),))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    (tmp_path / "ptp").touch()
    apt = tmp_path / "apt-get"
    apt.write_text(APT.format(folder=tmp_path))
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr("shutil.which", only_there)
    lines: list[str] = []
    packages.install(lines.append)
    install = "install -y -q --no-install-recommends socat"
    assert (tmp_path / "calls").read_text().splitlines() == [install, "update -q", install]
    assert lines == ["installing socat …"]
    packages.install(lines.append)
    assert len(lines) == 1, "nothing is installed twice"


def test_a_cluster_of_ones_own_needs_its_clients_and_no_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match="missing on PATH: kubectl and helm"):
        packages.check_clients()
    for client in ("kubectl", "helm"):
        (tmp_path / client).touch(mode=0o755)
    packages.check_clients()


def test_only_root_may_start_a_cluster(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(Refused, match="root"):
        preflight.check_start()


def test_another_system_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(Refused, match=r"needs Linux .*darwin"):
        preflight.check_start()


@pytest.mark.parametrize("unfit", ["darwin", "not root", "no control groups"])
def test_setup_refuses_an_unfit_machine_before_it_installs_or_builds(
    unfit: str, monkeypatch: pytest.MonkeyPatch, empty_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[str] = []
    monkeypatch.setattr(packages, "install", lambda _progress: started.append("packages"))
    monkeypatch.setattr(toolchain, "build_all", lambda _progress: started.append("programs"))
    monkeypatch.setattr(packages, "check_clients", lambda: started.append("clients"))
    monkeypatch.setattr(preflight, "SETUP_GIB", 0.0)
    monkeypatch.setattr("sys.platform", "darwin" if unfit == "darwin" else "linux")
    monkeypatch.setattr("os.geteuid", lambda: 1000 if unfit == "not root" else 0)
    proc = empty_cache / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text("0::/\n")
    (proc / "mountinfo").write_text("22 27 0:21 / /proc rw,relatime - proc proc rw\n")
    if unfit == "no control groups":
        monkeypatch.setattr(tree, "PROC", proc)

    assert cli.main(["setup"]) == 1
    word = {"darwin": "needs Linux", "not root": "needs root", "no control groups": "needs control groups"}[unfit]
    said = capsys.readouterr().err
    assert word in said
    assert "weft local --replay claude_code" in said, "what can be done here is offered"
    assert started == []

    assert cli.main(["setup", "--client-only"]) == 0
    assert started == ["clients"], "a cluster of one's own asks nothing of this machine"


def test_setup_needs_room_only_for_what_is_not_built(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(cgroups, "detect", lambda: None)
    monkeypatch.setattr(preflight, "SETUP_GIB", 1e6)
    with pytest.raises(Refused, match="1000000 GiB of free disk"):
        preflight.check_setup()
    monkeypatch.setattr(toolchain, "missing", list)
    preflight.check_setup()


def test_a_full_disk_is_refused_with_both_figures(empty_cache: Path) -> None:
    with pytest.raises(Refused, match=r"1000000 GiB of free disk are needed at .*, [\d.]+ GiB are there"):
        preflight.check_disk(1e6)


def test_a_cache_that_the_nodes_would_not_see_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("WEFT_CACHE", "/run/weft")
    with pytest.raises(Refused, match="WEFT_CACHE"):
        preflight.check_machine(needed_gib=0)


@pytest.mark.component
def test_a_taken_port_is_refused_and_an_unasked_one_is_found() -> None:
    with preflight.listen(None) as first, preflight.listen(None) as second:
        taken = int(first.getsockname()[1])
        assert taken != int(second.getsockname()[1])
        with pytest.raises(Refused, match=f"port {taken} .* is taken"):
            preflight.listen(taken)
