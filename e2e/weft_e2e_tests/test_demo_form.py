"""Where no cluster can run, `make demo` says so in one line and runs without one; by name a cluster is insisted on."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from weft_e2e.cluster import cgroups, lifecycle, packages, preflight, toolchain
from weft_e2e.cluster.errors import Refused
from weft_e2e.cluster.paths import ClusterPaths
from weft_e2e.cluster.preflight import is_whole_user_space, missing_capabilities
from weft_e2e.demo import cli

PRIVILEGED = "Name:\tx\nCapEff:\t000001ffffffffff\nCapBnd:\t000001ffffffffff\n"
IN_A_CONTAINER = "Name:\tx\nCapEff:\t00000000a80425fb\n"
"""What a container has by default."""
WHOLE = "         0          0 4294967295\n"
ROOTLESS = "         0       1000          1\n         1     100000      65536\n"

Unfit = Callable[[pytest.MonkeyPatch], None]


def _darwin(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("sys.platform", "darwin")


def _not_root(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("os.geteuid", lambda: 1000)


def _container(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(preflight, "missing_capabilities", lambda _status: ["CAP_SYS_ADMIN", "CAP_NET_ADMIN"])


def _user_namespace(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(preflight, "is_whole_user_space", lambda _uid_map: False)


def _no_control_groups(patch: pytest.MonkeyPatch) -> None:
    def refused() -> cgroups.ControlGroups:
        raise Refused("the local cluster needs control groups")

    patch.setattr(cgroups, "detect", refused)


def _full_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(preflight, "SETUP_GIB", 1e6)
    patch.setattr(toolchain, "missing", lambda: ["helm"])


def _not_debian(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packages, "can_install", lambda: False)
    patch.setattr(packages, "missing_packages", lambda: ["containerd"])


def _no_go(patch: pytest.MonkeyPatch) -> None:
    def no_go(argv: list[str], **_: object) -> None:
        raise FileNotFoundError(argv[0])

    patch.setattr(toolchain, "missing", lambda: ["helm"])
    patch.setattr(subprocess, "run", no_go)


UNFIT: dict[str, tuple[Unfit, str]] = {
    "macOS": (_darwin, "needs Linux (this is darwin)"),
    "no root": (_not_root, "needs root"),
    "a container": (_container, "needs CAP_SYS_ADMIN and CAP_NET_ADMIN, which root lacks here, as in most containers"),
    "a user namespace": (_user_namespace, "root of a user namespace"),
    "no control groups": (_no_control_groups, "needs control groups"),
    "a full disk": (_full_disk, "GiB of free disk are needed"),
    "no Debian": (_not_debian, "missing: containerd"),
    "no Go": (_no_go, "Go is missing"),
}


@pytest.fixture(autouse=True)
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Give what was run: this machine could run a cluster, until a test takes something away."""
    done: list[str] = []
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    monkeypatch.delenv("KUBE_CONTEXT", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(preflight, "SETUP_GIB", 0.0)
    monkeypatch.setattr(preflight, "missing_capabilities", lambda _status: [])
    monkeypatch.setattr(preflight, "is_whole_user_space", lambda _uid_map: True)
    monkeypatch.setattr(cgroups, "detect", list)
    monkeypatch.setattr(packages, "can_install", lambda: True)
    monkeypatch.setattr(toolchain, "missing", list)

    def run_embedded(*_: object) -> int:
        done.append("embedded")
        return 0

    def run_cluster(*_: object) -> None:
        done.append("cluster")
        raise Refused("a cluster is not for this test")

    monkeypatch.setattr(cli, "run_embedded", run_embedded)
    monkeypatch.setattr(cli, "run", run_cluster)
    return done


@pytest.mark.parametrize("machine", UNFIT)
def test_where_no_cluster_can_run_the_demo_says_so_in_one_line_and_runs_without(
    machine: str, ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unfit, words = UNFIT[machine]
    unfit(monkeypatch)

    assert cli.main(["up"]) == 0

    assert ran == ["embedded"], "nothing is installed or built"
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1
    assert said[0].startswith("No cluster can run here: ")
    assert words in said[0]
    assert "make demo-cluster" in said[0]


@pytest.mark.parametrize("machine", UNFIT)
def test_by_name_a_cluster_is_refused_with_the_same_reason(
    machine: str, ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unfit, words = UNFIT[machine]
    unfit(monkeypatch)

    assert cli.main(["up", "--form", "cluster"]) == 1

    said = capsys.readouterr().err
    assert words in said
    assert "weft local --replay claude_code" in said
    assert ran == []


def test_where_a_cluster_can_run_it_is_taken(ran: list[str]) -> None:
    assert cli.main(["up"]) == 1
    assert ran == ["cluster"]


def test_without_a_cluster_by_name(ran: list[str]) -> None:
    assert cli.main(["up", "--form", "embedded"]) == 0
    assert ran == ["embedded"]


def test_a_cluster_of_ones_own_asks_nothing_of_the_machine(
    ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _darwin(monkeypatch)
    monkeypatch.setattr(packages, "check_clients", lambda: None)

    assert cli.main(["up", "--context", "mine"]) == 1
    assert ran == ["cluster"]

    assert cli.main(["up", "--context", "mine", "--form", "embedded"]) == 1
    assert "--form embedded uses no cluster: leave out --context mine" in capsys.readouterr().err


@pytest.mark.parametrize("asked", ["auto", "embedded"])
def test_helm_values_are_not_dropped_where_there_is_no_cluster(
    asked: str, ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _not_root(monkeypatch)

    assert cli.main(["up", "--form", asked, "--set", "operator.replicas=2"]) == 1

    assert "--set is for a cluster" in capsys.readouterr().err
    assert ran == []


def test_what_a_container_may_do_is_read_from_the_kernel() -> None:
    assert missing_capabilities(PRIVILEGED) == []
    assert missing_capabilities(IN_A_CONTAINER) == ["CAP_SYS_ADMIN", "CAP_NET_ADMIN"]
    assert missing_capabilities("") == ["CAP_SYS_ADMIN", "CAP_NET_ADMIN"]
    assert is_whole_user_space(WHOLE)
    assert not is_whole_user_space(ROOTLESS)


def test_taking_down_what_could_not_be_made_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _not_root(monkeypatch)
    assert not lifecycle.down("demo")

    ClusterPaths.of("demo").root.mkdir(parents=True)
    with pytest.raises(Refused, match="needs root"):
        lifecycle.down("demo")


def test_a_cache_that_only_root_may_see_is_no_trouble_of_who_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied() -> list[str]:
        raise PermissionError(13, "Permission denied", "bin")

    monkeypatch.setattr(toolchain, "missing", denied)
    _not_root(monkeypatch)
    assert preflight.obstacle() == "the local cluster needs root (namespaces, mounts, control groups)"
