"""Real engines without starting one: what they are started with, and what is said when they cannot be set up."""

import platform
import shutil
import subprocess
from collections import namedtuple
from pathlib import Path

import pytest

from weft_core.plan import Role
from weft_e2e.cluster import packages
from weft_e2e.cluster.errors import SetupError
from weft_e2e.engines import environment as setup
from weft_e2e.engines.command import command, tiny_service
from weft_e2e.engines.environment import EngineEnv, EngineSetupError
from weft_e2e.engines.pods import example
from weft_operator.api.service import DisaggInferenceService
from weft_operator.render.engines import vllm
from weft_operator.render.engines.container import EngineRequest

SPEC = DisaggInferenceService.model_validate(tiny_service()).spec
ENV = EngineEnv(Path("/somewhere"))
_Usage = namedtuple("_Usage", "total used free")


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_engine_of_this_machine_differs_from_a_pods_in_addresses_and_places_only(role: Role, tmp_path: Path) -> None:
    pod = vllm.build_container(SPEC, EngineRequest(role=role, degree=1, default_image=""))
    here = command(SPEC, ENV, role, port=4001, side_port=4002, core=1, home=tmp_path)
    assert here.argv == (str(ENV.vllm), "serve", str(ENV.model), *here.argv[3:])
    changed = [(a, b) for a, b in zip(pod.args[1:], here.argv[3:], strict=True) if a != b]
    assert changed == [("--port=8000", "--port=4001")]
    own = {"HOME", "VLLM_CACHE_ROOT", "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"}
    for name, value in pod.env:
        assert name in own or here.env[name] == value
    assert here.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"
    assert here.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "4002"
    assert here.env["VLLM_PLUGINS"] == "weft_kv"


def test_an_engine_without_a_partner_has_no_connector(tmp_path: Path) -> None:
    alone = command(SPEC, ENV, "decode", port=4001, side_port=0, core=0, home=tmp_path, paired=False)
    assert not any("kv-transfer-config" in arg for arg in alone.argv)
    assert "VLLM_NIXL_SIDE_CHANNEL_HOST" not in alone.env


def test_a_step_that_fails_tells_what_was_said_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        EngineSetupError, match=r"(?s)`sh -c echo oh no >&2; exit 3 …` failed with status 3:\noh no; mend"
    ):
        setup.run(["sh", "-c", "echo oh no >&2; exit 3"], limit_s=20, fix="mend")
    with pytest.raises(EngineSetupError, match="did not end within"):
        setup.run(["sleep", "30"], limit_s=0.05)
    setup.run(["pwd"], limit_s=20, cwd=tmp_path)


def test_a_full_disk_and_missing_packages_are_named_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(setup, "_DEBIAN", {"libnuma1": tmp_path / "absent"})
    monkeypatch.setattr(packages, "can_install", lambda: False)
    for attempt in (setup.ensure, setup.check):
        with pytest.raises(EngineSetupError, match=r"missing: libnuma1\. On Debian 12: apt-get install libnuma1"):
            attempt()
    monkeypatch.setattr(setup, "_DEBIAN", {})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(2**40, 2**40 - 2**30, 2**30))
    with pytest.raises(EngineSetupError, match=r"1\.0 GiB are free and 9 needed; make room, or set WEFT_CACHE"):
        setup.ensure()


def test_missing_packages_are_installed_where_that_is_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(setup, "NEEDED_GIB", 0.0)
    monkeypatch.setattr(setup, "_DEBIAN", {"libnuma1": tmp_path / "absent", "there": tmp_path})
    monkeypatch.setattr(packages, "can_install", lambda: True)

    def refuse(wanted: list[str]) -> None:
        raise SetupError(f"no {' '.join(wanted)} here")

    monkeypatch.setattr(packages, "apt_install", refuse)
    setup.check()
    with pytest.raises(EngineSetupError, match=r"no libnuma1 here\. Real engines need Debian 12's own Python"):
        setup.ensure()


def test_a_download_that_fails_leaves_nothing_that_looks_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    monkeypatch.setattr(setup, "_DEBIAN", {})
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(setup, "NEEDED_GIB", 0.0)
    calls: list[list[str]] = []

    def refuse(argv: list[str], **_: object) -> "subprocess.CompletedProcess[str]":
        calls.append(argv)
        return subprocess.CompletedProcess(argv, 2 if "-r" in argv else 0, "", "could not fetch torch")

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(EngineSetupError, match=r"(?s)could not fetch torch; check that this machine reaches"):
        setup.ensure()
    assert len(calls) == 2
    assert not setup.environment().there


def test_what_vllm_notes_of_the_model_is_made_once_and_for_every_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    env = setup.environment()
    env.root.mkdir(parents=True)
    (env.root / "made").touch()
    (env.root / setup._plugin_mark()).touch()
    monkeypatch.setattr(setup, "_add_plugin", lambda _: None)
    times: list[str] = []

    def note(argv: list[str], *, env: dict[str, str], **_: object) -> "subprocess.CompletedProcess[str]":
        times.append(argv[0])
        kept = Path(env["VLLM_CACHE_ROOT"]) / "modelinfos"
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "llama.json").write_text("{}")
        (kept / "llama.json").chmod(0o600)
        return subprocess.CompletedProcess(argv, 0, "", "")

    monkeypatch.setattr(subprocess, "run", note)
    for _ in range(2):
        setup.ensure()
    assert times == [str(env.python)]
    assert (env.cache / "modelinfos/llama.json").stat().st_mode & 0o777 == 0o644


def test_the_example_for_two_nodes_takes_engine_and_model_from_one_volume() -> None:
    disk, claim, service = example(ENV, image="localhost/host:1", nodes=["a", "b"], volume="v")
    spec = DisaggInferenceService.model_validate(service).spec
    assert spec.model.source is not None
    assert spec.model.source.pvc is not None
    assert spec.model.source.pvc.claim_name == claim["metadata"]["name"]
    assert spec.model.source.pvc.path == ENV.model.name
    path = {variable.name: variable.value for variable in spec.engine.env}["PATH"]
    assert path.split(":")[0] == f"/models/{ENV.vllm.parent.relative_to(ENV.root)}"
    assert spec.engine.image == "localhost/host:1"
    assert disk["metadata"]["name"] == claim["spec"]["volumeName"] == "v"
    assert disk["spec"]["local"]["path"] == str(ENV.root)
    assert spec.model.config == SPEC.model.config
    kept = {"handle_ttl_seconds": SPEC.engine.kv_transfer.handle_ttl_seconds}  # in pods rounds pause for longer
    assert spec.engine.kv_transfer.model_copy(update=kept) == SPEC.engine.kv_transfer
