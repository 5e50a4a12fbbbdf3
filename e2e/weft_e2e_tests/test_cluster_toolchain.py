"""Builds: nothing twice, nothing half, and clear words about what is missing."""

import threading
from pathlib import Path

import pytest

from weft_e2e.cluster import cgroups, cli, packages, preflight, toolchain
from weft_e2e.cluster.cgroups import tree
from weft_e2e.cluster.errors import Refused, SetupError


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    return tmp_path


def test_an_empty_cache_lacks_everything(empty_cache: Path) -> None:
    assert set(toolchain.missing()) == {"kubernetes", "helm", "kwok", "coredns", "prometheus", "pause", "forward"}
    with pytest.raises(SetupError, match="setup"):
        toolchain.tool_path("helm")


def test_what_is_optional_is_built_for_who_asks(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def build(tool: toolchain.Tool) -> None:
        built.append(tool.name)
        tool.path.write_text("program")

    monkeypatch.setattr(toolchain, "_build_go", build)
    monkeypatch.setattr(toolchain, "check_go", lambda: None)
    toolchain.build_all(lambda _: None, frozenset({"kube-router"}))
    toolchain.build_all(lambda _: None, frozenset({"kube-router"}))
    assert built == ["kube-router"]
    assert toolchain.tool_path("kube-router").exists()


def test_two_builders_build_once(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    entered = threading.Event()

    def slow(tool: toolchain.Tool) -> None:
        built.append(tool.name)
        entered.set()
        tool.path.write_text("program")

    monkeypatch.setattr(toolchain, "_build_go", slow)
    monkeypatch.setattr(toolchain, "check_go", lambda: None)
    lines: list[str] = []
    builders = [
        threading.Thread(target=toolchain.build_all, args=(lines.append, frozenset({"helm"}))) for _ in range(4)
    ]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join(15)
    assert entered.is_set()
    assert built == ["helm"]
    assert "helm" not in toolchain.missing()


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
    assert toolchain.go_version_suffices(text) is enough


def test_a_missing_go_is_named_with_the_version_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"Go is missing: install Go 1\.26"):
        toolchain.check_go()


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
    assert "weft local -f docs/examples/llama-3.1-70b.yaml" in said, "what can be done here is offered"
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
